"""`tilewright check` as a person meets it: NVRTC and the emulator, its output and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.frontends.in_process import Done, tilewright
from tests.tasks.in_process import HereReference

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GOOD = """\
//! op      double_it(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  double_it<<<ceil_div(n, 256), 256>>>(x, y, n)
__global__ void double_it(const float* x, float* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = 2.f * x[i];
}
"""
REFERENCE = """\
import torch

def double_it(x):
    return 2 * x

def triple_it(x):
    return 3 * x

def wrong_names(z):
    return z

def raises(x):
    raise RuntimeError("no such luck")

def accumulate(y, x):
    y += x

def returned(y, x):
    return y + x

class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.offset = torch.nn.Parameter(torch.randn(16))

    def forward(self, x):
        return self.factor * x + self.offset
"""
SCALED = """\
//! op      scaled(x, offset) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32 and offset.dtype == f32 and x.ndim == 2 and offset.ndim == 1
//! need    x.shape[1] == 16 and offset.shape[0] == x.shape[1]
//! let     n = x.numel
//! launch  scaled<<<ceil_div(n, 256), 256>>>(x, offset, y, n)
__global__ void scaled(const float* x, const float* offset, float* y, long long n) {
  long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) y[i] = 2.f * x[i] + offset[i % 16];
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "k.cu").write_text(GOOD)
    (tmp_path / "reference.py").write_text(REFERENCE)
    return tmp_path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference without its process, for tests of what is said of a kernel."""
    monkeypatch.setattr("tilewright.frontends.cli.check.Reference", HereReference)


def check(*arguments: object, cwd: Path, **environment: str) -> Done:
    return tilewright(cwd / "home", "check", *arguments, folder=cwd, **environment)


def test_a_sound_kernel_is_clean(folder: Path) -> None:
    done = check("k.cu", "--reference", "reference.py:double_it", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "at x = f32[7, 203]  (guessed; choose with --shape and --set)" in done.stdout
    assert "on an emulated H200: all blocks, 3 schedules" in done.stdout
    assert "y: right: worst error 0" in done.stdout
    assert "clean: no findings, and the results agree with the reference" in done.stdout


@pytest.mark.usefixtures("here")
def test_a_wrong_result_is_wrong(folder: Path) -> None:
    done = check("k.cu", "--reference", "reference.py:triple_it", "--shape", "x=100", cwd=folder)
    assert done.returncode == 1
    assert "y: wrong: 100 of 100 elements are off, first at [0]: " in done.stdout
    assert "y is not what the reference computes" in done.stdout


@pytest.mark.usefixtures("here")
def test_findings_show_line_thread_and_tensor(folder: Path) -> None:
    (folder / "k.cu").write_text(GOOD.replace("if (i < n)", "if (i <= n)"))
    done = check("k.cu", "--reference", "reference.py:double_it", "--shape", "x=1000", cwd=folder)
    assert done.returncode == 1
    assert "global access outside every tensor in double_it" in done.stdout
    assert "  8 |   if (i <= n) y[i] = 2.f * x[i];\n    |   ^^^^" in done.stdout
    assert "thread 232 of block 3" in done.stdout
    assert "in 3 of 3 schedules" in done.stdout
    assert "2 findings; the results agree with the reference all the same" in done.stdout


def test_json_is_the_same_report(folder: Path) -> None:
    (folder / "k.cu").write_text(GOOD.replace("if (i < n)", "if (i <= n)"))
    done = check("k.cu", "--json", "--counters", "--gpu", "a100", "--shape", "x=1000", cwd=folder)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["outcome"] == "findings"
    assert report["gpu"] == "A100"
    assert [finding["line"] for finding in report["findings"]] == [8, 8]
    assert report["findings"][0]["thread"] == {
        "is": "ThreadRecord",
        "block": [3, 0, 0],
        "thread": [232, 0, 0],
    }
    assert report["counts"][0]["grid_blocks"] == 4
    assert {line["line"] for line in report["listings"][0]["lines"]} >= {7, 8}
    assert report["schedules"] == 3


@pytest.mark.usefixtures("here")
def test_counters_are_listed_beside_the_source(folder: Path) -> None:
    strided = GOOD.replace("y[i] = 2.f * x[i]", "y[i % 32 * 32 + i / 32] = 2.f * x[i % 32 * 32 + i / 32]")
    (folder / "k.cu").write_text(strided)
    done = check("k.cu", "--counters", "--shape", "x=1024", "--reference", "reference.py:double_it", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "costs more than it needs (advice, not a fault)" in done.stdout
    assert "32.0 sectors of global memory for each request, 4.0 would carry the same bytes" in done.stdout
    listed = [line for line in done.stdout.splitlines() if line.endswith("8 |   " + strided.splitlines()[7].strip())]
    assert any("32.0 (ideal 4.0)" in line for line in listed), done.stdout


IN_PLACE = """\
//! op      accumulate(y!, x)
//! need    x.dtype == f32 and y.dtype == f32 and x.shape == y.shape
//! launch  accumulate<<<ceil_div(x.numel, 128), 128>>>(y, x, x.numel)
__global__ void accumulate(float* y, const float* x, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] += x[i];
}
"""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("function", ["accumulate", "returned"])
def test_in_place_references_may_change_or_return(folder: Path, function: str) -> None:
    (folder / "k.cu").write_text(IN_PLACE)
    done = check("k.cu", "--reference", f"reference.py:{function}", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "y: right" in done.stdout


def test_the_run_that_made_a_kernel_is_offered_as_its_reference(folder: Path) -> None:
    (folder / "k.cu.provenance.json").write_text('{"run": "double-it-abcd"}')
    assert "give --reference double-it-abcd to check the results too" in check("k.cu", cwd=folder).stdout


@pytest.mark.parametrize(("factor", "status"), [("2.0", 0), ("3.0", 1)])
@pytest.mark.usefixtures("here")
def test_a_module_is_a_reference_of_its_inputs_and_parameters(folder: Path, factor: str, status: int) -> None:
    (folder / "k.cu").write_text(SCALED)
    done = check("k.cu", "--reference", f"reference.py:Scaled({factor})", cwd=folder)
    assert done.returncode == status, done.stdout + done.stderr
    assert "at x = f32[7, 16], offset = f32[16]" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--reference", "a-run"), "there is no such file or run; write FILE.py:FUNCTION"),
        (("--reference", "reference.py:Scaled"), "missing 1 required positional argument: 'factor'"),
        (("--reference", "nowhere.py:f"), "there is no file nowhere.py"),
        (("--reference", "reference.py"), "write FILE.py:FUNCTION"),
        (("--reference", "reference.py:nothing"), "defines no function 'nothing'; it has double_it"),
        (("--reference", "reference.py:wrong_names"), "it is called with the names x"),
        (("--reference", "reference.py:raises"), "RuntimeError: no such luck (line 13"),
        (("--shape", "z=3"), "double_it's parameters: x"),
        (("--fill", "x=ones"), "write normal"),
        (("--fill", "x=normal:0:1:2"), "write normal"),
        (("--fill", "x=upper"), "may end with :upper or :lower, for triangles"),
        (("--shape", "x=16", "--fill", "x=normal:upper"), "has no upper triangle; that takes two dimensions"),
        (("--fill", "x=integers:5:2"), "Integers from 5 to below 2 is empty"),
        (("--fill", "q=normal"), "double_it's tensors: x"),
        (("--gpu", "Z80"), "write one of T4"),
        (("--blocks", "2", "--reference", "reference.py:double_it"), "nothing to compare"),
    ],
)
def test_bad_input_is_one_sentence(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = check("k.cu", *arguments, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", ["nan", "-1"])
def test_a_tolerance_that_means_nothing_is_refused(folder: Path, tolerance: str) -> None:
    done = check("k.cu", "--reference", "reference.py:double_it", "--tolerance", tolerance, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "'--tolerance': Input should be greater than or equal to 0" in done.stderr


def test_a_file_that_does_not_build_or_apply(folder: Path) -> None:
    (folder / "k.cu").write_text(GOOD.replace("2.f", "two"))
    done = check("k.cu", cwd=folder)
    assert done.returncode == 1
    assert "k.cu:8:" in done.stdout
    assert "not built: the compiler rejected the source" in done.stdout
    (folder / "k.cu").write_text(GOOD)
    done = check("k.cu", "--shape", "x=5:f16", cwd=folder)
    assert done.returncode == 1
    assert "does not apply" in done.stdout


def test_a_stopped_run_is_a_fault(folder: Path) -> None:
    (folder / "k.cu").write_text(GOOD.replace("if (i < n)", "if (i == 3) __trap(); else if (i < n)"))
    done = check("k.cu", cwd=folder)
    assert done.returncode == 1
    assert "faulted: a trap or assertion fired on the device: double_it, line 8, thread 3 of block 0" in done.stdout


def test_what_cannot_be_emulated_has_a_status_of_its_own(folder: Path) -> None:
    (folder / "k.cu").write_text(
        GOOD.replace("if (i", 'asm volatile("{ .reg .u64 s; stacksave.u64 s; }" ::: "memory");\n  if (i')
    )
    done = check("k.cu", cwd=folder)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "not emulable" in done.stdout
    assert "stacksave" in done.stdout


def test_sampled_blocks_and_chosen_contents(folder: Path) -> None:
    done = check("k.cu", "--shape", "x=1000000", "--blocks", 4, "--fill", "x=uniform:1:2", "--schedules", 1, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 blocks of each launch, one schedule" in done.stdout


@pytest.mark.usefixtures("here")
def test_the_demo_s_kernel_is_right_and_its_broken_twin_is_not(tmp_path: Path) -> None:
    shapes = ("--shape", "x=4x1000", "--shape", "weight=1000", "--shape", "bias=1000")
    reference = ("--reference", EXAMPLES / "references.py:layernorm_gelu")
    done = check(EXAMPLES / "layernorm_gelu.cu", *reference, *shapes, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    twin = EXAMPLES / "broken" / "layernorm_gelu_broken.cu"
    done = check(twin, *reference, *shapes, "--json", cwd=tmp_path)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    lines = twin.read_text().splitlines()

    def line_of(text: str) -> int:
        (found,) = [number for number, line in enumerate(lines, 1) if text in line]
        return found

    write, read = line_of("    held[threadIdx.x] = value;"), line_of("held[threadIdx.x ^ offset]")
    store = line_of("column <= cols")
    found = {(finding["kind"], finding["line"], finding["other_line"]) for finding in report["findings"]}
    races = {frozenset((line, other)) for kind, line, other in found if kind == "race in shared memory"}
    assert frozenset((write, read)) in races
    assert all(read in race for race in races)
    assert ("global access outside every tensor", store, None) in found
    assert max(finding["schedules"] for finding in report["findings"]) == report["schedules"] == 3
    assert {cost["line"] for cost in report["costs"]} >= {store, line_of("? source[")}
