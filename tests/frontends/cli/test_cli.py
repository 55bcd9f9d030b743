"""The command as a person meets it: its output and its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.frontends import in_process

from tilewright.child import boundary
from tilewright.child.boundary import Strength
from tilewright.frontends.cli import doctor
from tilewright.frontends.cli.terminal import display
from tilewright.models import key_variables, providers
from tilewright.models.protocol import Provider

GOOD = """\
//! op      double_it(x) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! tune    THREADS = 256 | 128
//! let     n = x.numel
//! launch  double_it<<<ceil_div(n, THREADS), THREADS>>>(x, y, n)
__global__ void __launch_bounds__(THREADS) double_it(const float* x, float* y, long long n) {
  long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (i < n) y[i] = 2.f * x[i];
}
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "double_it.cu"
    path.write_text(GOOD)
    return path


def tilewright(*arguments: object, **environment: str) -> in_process.Done:
    """The command, in this process; it keeps nothing."""
    return in_process.tilewright(Path("/nowhere"), *arguments, **environment)


def test_build_shows_plan_resources_and_highlights(kernel: Path, tmp_path: Path) -> None:
    done = tilewright(
        "build", kernel, "--arch", "sm_80", "--gpu", "h200", "--shape", "x=1000:f32", "-o", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    for text in ("//! launch", "double_it", "sm_80", "sm_90a", "A100", "H200", "registers", "100%", "f32[1000]", "LDG"):
        assert text in done.stdout, text
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "double_it.sm_80.cubin",
        "double_it.sm_80.ptx",
        "double_it.sm_90a.cubin",
        "double_it.sm_90a.ptx",
    ]
    assert (tmp_path / "out" / "double_it.sm_80.cubin").read_bytes()[:4] == b"\x7fELF"


def test_help_calls_the_program_by_its_name_however_it_is_started() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", "explain", "--help"], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("Usage: tilewright explain [OPTIONS]")


def test_build_json_is_the_same_report(kernel: Path) -> None:
    done = tilewright("build", kernel, "--arch", "sm_90", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["op"] == "double_it"
    assert report["guessed"] is True
    [target] = report["targets"]
    [launch] = target["launches"]
    assert target["arch"] == "sm_90a"
    assert launch["block"] == [256, 1, 1]
    assert launch["resources"]["spill_store_bytes"] == 0
    assert launch["occupancy"]["fraction"] == 1.0
    assert target["constants"] == [["THREADS", 256]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "missing.cu"], "no such file"),
        (["build", __file__], "Python; give a kernel file (.cu), or make one: tilewright make"),
        (["build", "KERNEL", "--arch", "sm_12"], "sm_12 is no GPU known here; write one of T4"),
        (["build", "KERNEL", "--gpu", "H2OO"], "H2OO is no GPU known here; write one of T4"),
        (["build", "KERNEL", "--shape", "z=3"], "one of double_it's parameters: x"),
        (["build", "KERNEL", "--shape", "x=3y4"], "write sizes and a dtype"),
        (["build", "KERNEL", "-o", "KERNEL"], "a file; give the folder to write the cubin and PTX files into"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(kernel: Path, arguments: list[str], message: str) -> None:
    done = tilewright(*(kernel if a == "KERNEL" else a for a in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_malformed_plan_is_located(kernel: Path) -> None:
    kernel.write_text(GOOD.replace("x.numel", "x.nmel"))
    done = tilewright("build", kernel)
    assert done.returncode == 1
    assert f"{kernel}:5:" in done.stderr
    assert "unknown-name" in done.stderr
    assert "numel" in done.stderr


def test_a_compile_error_is_located_in_the_file(kernel: Path) -> None:
    kernel.write_text(GOOD.replace("2.f * x[i]", "2.f * z[i]"))
    done = tilewright("build", kernel, "--shape", "x=8:f32")
    assert done.returncode == 1
    assert "double_it.cu:9:" in done.stdout
    assert 'identifier "z" is undefined' in done.stdout


def test_a_file_that_does_not_apply_says_which_need(kernel: Path) -> None:
    done = tilewright("build", kernel, "--shape", "x=8:f16")
    assert done.returncode == 1
    assert "does not apply" in done.stdout
    assert "x.dtype == f32" in done.stdout


def test_doctor_names_keys_and_never_their_values(tmp_path: Path) -> None:
    done = in_process.tilewright(tmp_path / "home", "doctor", "--json", ANTHROPIC_API_KEY="sk-very-secret")
    assert done.returncode == 0, done.stderr
    assert "very-secret" not in done.stdout + done.stderr
    found = {finding["about"]: finding for finding in json.loads(done.stdout)}
    assert {"system", "compiler", "GPU", "launcher", "disk"} <= set(found)
    assert "ANTHROPIC_API_KEY" in found["keys"]["found"]
    assert found["author"]["found"].startswith("anthropic:")
    assert found["runs"]["found"] == f"{tmp_path}/home: 0 runs, 0 kernels in the library"
    for package in ("anthropic", "openai"):
        assert found[package]["state"] == "good"


@pytest.mark.parametrize("wanted", ["", "partial", "off"])
def test_doctor_says_what_keeps_references_in(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_BOUNDARY", wanted)
    monkeypatch.setattr(boundary, "_available", lambda: Strength.FULL)
    found = doctor._boundary()
    said = {"": " and seccomp around references", "partial": "seccomp without Landlock", "off": "switched off by"}
    assert said[wanted] in found.found
    assert (found.state is doctor.State.GOOD) is (wanted == "")
    assert bool(found.improve) is (wanted != "")


def test_doctor_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    for variable in key_variables():
        monkeypatch.delenv(variable, raising=False)
    # A package that is there and does not work, and one that is not there.
    (tmp_path / "broken_client.py").write_text("raise ImportError('of another version')\n")
    monkeypatch.syspath_prepend(tmp_path)
    opened = providers()["replay"].open
    table = {
        "some": Provider("some", opened, package="broken_client", install="x"),
        "other": Provider("other", opened, package="absent_client", install="y"),
    }
    monkeypatch.setattr(doctor, "providers", lambda: table)
    display([doctor.facts_table(doctor.diagnose())])
    shown = capsys.readouterr().out
    for text in ("NVRTC", "the built-in playbook", "ImportError: of another version", "pip install y", "0 runs"):
        assert text in shown, text


def test_the_command_in_a_process_of_its_own() -> None:
    command = (sys.executable, "-m", "tilewright")
    done = subprocess.run([*command, "build", "missing.cu"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tilewright: missing.cu: no such file")
    assert len(done.stderr.splitlines()) == 1


def test_version_and_help() -> None:
    assert tilewright("--version").stdout.startswith("tilewright 0.")
    assert "build" in tilewright("--help").stdout
    assert tilewright("bild").returncode == 2
