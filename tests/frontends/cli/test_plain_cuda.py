"""Plain CUDA given to commands that take kernel files; requests that look like options; commands found by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.frontends.in_process import Done, tilewright

from tilewright.frontends.cli.main import COMMANDS, Command, Commands, app

OVERRUNS = """\
__global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  c[i] = a[i] + b[i];
}

void launch(const float* a, const float* b, float* c, int n) {
  add<<<(n + 255) / 256, 256>>>(a, b, c, n);
}
"""
SOUND = OVERRUNS.replace("  c[i] =", "  if (i < n) c[i] =")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "overruns.cu").write_text(OVERRUNS)
    (tmp_path / "sound.cu").write_text(SOUND)
    (tmp_path / "bare.cu").write_text("__global__ void one(float* x) { x[0] = 1.f; }\n")
    (tmp_path / "two.cu").write_text(SOUND + SOUND.replace("add", "plus").replace("launch", "start"))
    return tmp_path


def run(folder: Path, *arguments: str) -> Done:
    return tilewright(folder / "home", *arguments, folder=folder)


@pytest.mark.parametrize(("command", "said"), [("lint", "missing-bounds"), ("check", "after the end of c")])
def test_it_is_imported_and_its_faults_are_found(folder: Path, command: str, said: str) -> None:
    done = run(folder, command, "overruns.cu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout
    assert "to write it: tilewright import overruns.cu" in done.stderr
    assert run(folder, command, "sound.cu").returncode == 0


def test_it_is_built_and_timed(folder: Path) -> None:
    built = json.loads(run(folder, "build", "sound.cu", "--json").stdout)
    assert [target["launches"][0]["kernel"] for target in built["targets"]] == ["add"]
    done = run(folder, "bench", "sound.cu", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["time_us"] > 0


@pytest.mark.parametrize("command", ["build", "lint", "check", "bench"])
@pytest.mark.parametrize(
    ("file", "status", "said"),
    [
        ("bare.cu", 1, "no host function in it launches a kernel"),
        ("two.cu", 2, "2 launchers; import one of them with: tilewright import two.cu --function NAME: launch, start"),
    ],
)
def test_what_cannot_be_imported_names_the_command(
    folder: Path, command: str, file: str, status: int, said: str
) -> None:
    done = run(folder, command, file)
    assert done.returncode == status
    assert said in done.stderr
    assert f"tilewright import {file}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        (["-sum(x * y)"], {"request": "-sum(x * y)"}),
        (["-x * y", "--yes"], {"request": "-x * y", "yes": True}),
        (["--shape", "x=4x8", "-y * x", "-o", "k.cu"], {"request": "-y * x", "output": Path("k.cu")}),
        (["x + y", "-o", "-strange (1).cu"], {"request": "x + y", "output": Path("-strange (1).cu")}),
        (["-y", "--", "-sum(x)"], {"request": "-sum(x)", "yes": True}),
    ],
)
def test_a_request_may_begin_with_a_minus_sign(arguments: list[str], parsed: dict[str, object]) -> None:
    command = Commands(name="tilewright").get_command(None, "make")
    assert isinstance(command, Command)
    found = command.make_context("make", arguments).params
    assert {name: found[name] for name in parsed} == parsed


def test_minus_a_sum_is_made(folder: Path) -> None:
    asked = ("--author", "playbook", "--attempts", "1", "--yes", "--shape", "x=16x64", "--shape", "y=16x64")
    done = run(folder, "make", "-sum(x * y)", *asked, "-o", "k.cu")
    assert done.returncode == 0, done.stderr
    assert (folder / "k.cu").is_file()


def test_an_option_that_is_none_is_still_refused(folder: Path) -> None:
    done = run(folder, "make", "rmsnorm", "-q")
    assert done.returncode == 2
    assert "No such option: -q" in done.stderr


def test_gradients_of_words_are_made_too(folder: Path) -> None:
    asked = ("--author", "playbook", "--attempts", "1", "--yes", "--shape", "x=16x64", "--shape", "weight=64")
    done = run(folder, "make", "rmsnorm", *asked, "--backward", "-o", "k.cu", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["problem"] == ""
    assert made["forward"]["kernel"] != made["backward"]["kernel"]
    assert (folder / made["backward"]["kernel"]).is_file()


def test_help_imports_no_command_and_a_command_only_its_own() -> None:
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom tilewright.frontends.cli.main import app\n"
        "CliRunner().invoke(app, ['--help'])\n"
        "print(sorted({'torch', 'numpy', 'jinja2'} & {*sys.modules}))\n"
        "print([one for one in sys.modules if one.startswith('tilewright.') and one.count('.') > 2])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['tilewright.frontends.cli.main']"]


def test_every_command_of_the_list_is_there() -> None:
    group = Commands(name="tilewright")
    for name, (_, said) in COMMANDS.items():
        command = group.get_command(None, name)
        assert command is not None
        assert command.help, name
        assert said.endswith(".")
    assert group.get_command(None, "mak") is None
    assert app.info.help is not None
