"""`tilewright export` as a person meets it: what is refused and how, and what is said of a kernel's standing."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.exports.small_op import KERNEL
from typer.testing import CliRunner

from tilewright.exports.cuda_project import Target, export
from tilewright.exports.python_op import small_call
from tilewright.exports.source import Source, Standing, check_metadata, from_files, from_run
from tilewright.exports.verification import measurement_text, verification_text
from tilewright.exports.writing import RECORD, Folder, NotExportable, check_target
from tilewright.frontends.cli.main import app
from tilewright.records import DType, Measured, TensorSpec, Timing, to_json
from tilewright.store import RunFolder, provenance_of, provenance_path
from tilewright.toolchain import find_toolkit

GALLERY = Path(__file__).parents[2] / "gallery"
RUNS = Path(__file__).parent / "runs"


def asked(*words: str) -> str:
    """The sentence that the command ends with."""
    done = CliRunner().invoke(app, ["export", *words])
    assert done.exception is not None
    return str(done.exception)


def test_bad_words_are_answered_with_what_to_write(tmp_path: Path) -> None:
    file = tmp_path / "row_scale.cu"
    file.write_text(KERNEL)
    out = ["-o", str(tmp_path / "out")]
    assert "write one of torch, hub, cuda" in asked(str(file), "--to", "onnx", *out)
    assert "no such file" in asked(str(tmp_path / "none.cu"), "--to", "torch", *out)
    assert "give one run, or one or several kernel files" in asked("last", "x.cu", "--to", "torch", *out)
    assert "--layer is for --to hub" in asked(str(file), "--to", "cuda", "--layer", "SiLU", *out)
    assert "is no GPU known here" in asked(str(file), "--to", "torch", "--arch", "sm_12", *out)
    assert "needs a reference" in asked(str(file), "--to", "hub", *out)
    assert not (tmp_path / "out").exists()


def test_a_cuda_project_of_files_says_that_shapes_were_guessed(tmp_path: Path) -> None:
    file = tmp_path / "row_scale.cu"
    file.write_text(KERNEL)
    done = CliRunner().invoke(app, ["export", str(file), "--to", "cuda", "-o", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.exception
    notes = json.loads(done.stdout)["notes"]
    assert notes[0] == "it is not verified: no run has judged this file"
    assert "the shapes were guessed: x f32[512, 1024], weight f32[1024]" in notes[1]
    header = (tmp_path / "out" / "row_scale.h").read_text()
    tensor = "const tilewright_tensor *"
    wanted = (
        f"int row_scale({tensor}x, {tensor}weight, {tensor}mask, double eps, {tensor}y, {tensor}norm, void *workspace"
    )
    assert wanted in header


def test_a_folder_of_somebody_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    check_target(mine)  # an empty one will do
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(NotExportable, match=r"it holds thesis\.tex"):
        check_target(mine)
    folder = Folder()
    folder.add("README.md", "one")
    folder.write(tmp_path / "out", {})
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(NotExportable, match=r"it holds thesis\.tex"):
        folder.write(tmp_path / "out", {})
    assert (tmp_path / "out" / "thesis.tex").exists()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(NotExportable, match="not a folder"):
        check_target(tmp_path / "link")


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", RECORD, "a/./../b"])
def test_no_file_of_an_export_leaves_it(path: str) -> None:
    with pytest.raises(NotExportable, match="no path inside"):
        Folder().add(path, "x")


# -- standing --


def copied(run: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(run, tmp_path / "run")))


def edit_attempt(folder: RunFolder, change: Callable[[dict[str, object]], object]) -> None:
    path = folder.path / "attempts" / "0001" / "attempt.json"
    attempt = json.loads(path.read_text())
    change(attempt)
    path.write_text(json.dumps(attempt))


def test_a_kernel_is_what_the_run_says_of_it(tmp_path: Path) -> None:
    source = from_run(RunFolder(RUNS / "rmsnorm"))
    assert source.standing is Standing.VERIFIED
    assert "verified it in" in verification_text(source)
    assert "Not measured on a GPU" in measurement_text(source)
    assert "no measurement" in measurement_text(source)


def test_a_kernel_edited_since_is_marked(tmp_path: Path) -> None:
    folder = copied(RUNS / "rmsnorm", tmp_path)
    kernel = folder.path / "attempts" / "0001" / "kernel.cu"
    kernel.write_text(kernel.read_text() + "// a little faster\n")
    with pytest.warns(UserWarning, match=r"kernel\.cu was changed after it was verified.*tilewright check /"):
        source = from_run(folder)
    assert source.standing is Standing.EDITED
    assert verification_text(source) == (
        "This kernel is not verified: the file was changed by hand since it was judged; check it with: "
        "tilewright check FILE.cu."
    )
    assert measurement_text(source) == "No measurement is on record."


def test_a_provisional_kernel_is_marked(tmp_path: Path) -> None:
    folder = copied(RUNS / "rmsnorm", tmp_path)
    edit_attempt(folder, lambda attempt: attempt["verdict"].update(unseen="too large"))  # type: ignore[attr-defined]
    source = from_run(folder)
    assert source.standing is Standing.PROVISIONAL
    assert "judged nowhere" in verification_text(source)


def test_a_kernel_judged_by_an_earlier_referee_is_marked(tmp_path: Path) -> None:
    source = from_run(RunFolder(GALLERY / "swiglu"))
    assert source.standing is Standing.EARLIER
    assert "tilewright make REQUEST --start FILE.cu --attempts 1" in verification_text(source)
    seen = copied(GALLERY / "swiglu", tmp_path)  # by a referee that looked, and could compare no value there
    edit_attempt(seen, lambda attempt: attempt["verdict"].update(is_looked_at=True))  # type: ignore[attr-defined]
    assert from_run(seen).standing is Standing.VERIFIED
    kernel = tmp_path / "silu.cu"
    shutil.copy(RUNS / "silu" / "attempts" / "0001" / "kernel.cu", kernel)
    said = to_json(provenance_of(RunFolder(RUNS / "silu")))
    for standing in (Standing.VERIFIED, Standing.EARLIER):
        provenance_path(kernel).write_text(json.dumps(said))
        assert from_files([kernel]).standing is standing
        said.pop("unjudged", None)


def test_a_rejected_kernel_is_marked(tmp_path: Path) -> None:
    folder = copied(RUNS / "rmsnorm", tmp_path)
    rejected = {"is": "Rejected", "evidence": {"is": "BadReply", "message": "none"}, "cases": []}
    edit_attempt(folder, lambda attempt: attempt.update(verdict=rejected))
    assert from_run(folder).standing is Standing.FAILED


def test_figures_come_from_the_runs_measurement() -> None:
    source = from_run(RunFolder(RUNS / "rmsnorm"))
    assert source.provenance is not None
    measured = Measured("H200", {"rows": 8}, Timing("kernel", (3.0,)), (Timing("eager", (9.5,)),), 2.0)
    known = replace(source, provenance=replace(source.provenance, measurement=measured))
    assert measurement_text(known) == "Measured on H200 with a cold cache at rows = 8: 3.0 us; eager 9.5 us (medians)."


# -- hostile records --


def test_words_of_a_record_do_not_become_code(small_source: Source) -> None:
    with pytest.raises(NotExportable, match="no SPDX expression"):
        check_metadata(replace(small_source, licence='MIT"\nbackends = ["cuda'))
    assert small_source.reference is not None
    hostile = replace(small_source.reference, function="x; import os")
    with pytest.raises(NotExportable, match="no name of Python"):
        check_metadata(replace(small_source, reference=hostile))


ODD = """\
//! op      odd(register, plan: int[2] = [1, 2], new: float?) -> call
// */ " \\" */ ; }
//! need    register.dtype == f32 and register.numel > plan[0]
//! out     call: register.dtype[register.shape]
//! launch  copy<<<ceil_div(register.numel, 128), 128>>>(register, call, register.numel, new if has(new) else 1.0)

__global__ void copy(const float* x, float* y, long long n, float scale) {
  long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < n) y[i] = x[i] * scale;
}
"""


def test_odd_kernel_texts_stay_text(tmp_path: Path) -> None:
    """Ends of comments and quotes in the text and in the file's name, words of C++ for names: the host half builds."""
    path = tmp_path / 'odd"; int main() {} * \\ .cu'
    path.write_text(ODD)
    call = {"register": TensorSpec.contiguous(DType.F32, (64, 256))}
    export(replace(from_files([path]), calls=(call,)), Target.CUDA, tmp_path / "out", "odd_one")
    header = (tmp_path / "out" / "odd_one.h").read_text()
    assert "const tilewright_tensor *register_, const int64_t *plan_, size_t plan__count, const double *new_," in header
    kept = [one.name for one in (tmp_path / "out" / "kernels").iterdir()]
    assert len(kept) == 1
    assert set(kept[0]) <= set("abcdefghijklmnopqrstuvwxyz_.-")
    headers = [f"-I{folder}" for folder in find_toolkit().search_path]
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wno-unused-function", *headers]
    done = subprocess.run([*command, "odd_one.cpp"], cwd=tmp_path / "out", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


def test_the_exports_own_test_is_at_no_degenerate_size() -> None:
    source = from_run(RunFolder(RUNS / "silu"))
    calls = [call for call in source.calls if all(size > 0 for one in specs_of(call) for size in one.shape)]
    assert any(1 in one.shape for call in calls for one in specs_of(call))
    assert all(1 not in one.shape for one in specs_of(small_call(calls)))
    own = {"x": TensorSpec.parse("1x64:f32")}
    assert small_call([own]) is own


def specs_of(call: Mapping[str, object]) -> list[TensorSpec]:
    return [one for one in call.values() if isinstance(one, TensorSpec)]
