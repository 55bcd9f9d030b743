"""Words with several readings are asked about; words without one leave a function that the next command takes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.frontends.cli import words
from tilewright.store import Request
from tilewright.words import NotUnderstood, SeveralReadings

SEVERAL = "mean pool"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TILEWRIGHT_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "tilewright", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def test_a_script_gets_the_readings_as_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "make", SEVERAL, "--author", "playbook", "--yes")
    assert done.returncode == 2
    assert "may mean several things: 1. " in done.stderr
    assert "3. " in done.stderr
    assert not (tmp_path / "request.py").exists()


def test_a_person_picks_a_reading_by_its_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(SeveralReadings) as several:
        words.refuse_early(Request(SEVERAL), anew=True)
    answers = iter((7, 2))  # the first is no number of the list
    monkeypatch.setattr(words.typer, "prompt", lambda *_, **__: next(answers))
    assert words.settled_words(Request(SEVERAL), True, tmp_path).text == several.value.readings[1].request


@pytest.mark.slow
def test_the_nearest_function_is_written_and_the_printed_command_takes_it(tmp_path: Path) -> None:
    asked = ("make", "rmsnorm with 3 frobnications of 17 wibbles", "--author", "playbook", "--yes")
    done = run(tmp_path, *asked)
    assert done.returncode == 2
    source = (tmp_path / "request.py").read_text()
    assert "# Edit this function to compute: rmsnorm with 3 frobnications of 17 wibbles\n" in source
    found = re.search(r"tilewright (make request\.py:\S+(?: --shape \S+)+)", done.stderr)
    assert found is not None, done.stderr
    small = re.sub(r"4096x1024|\b1024\b", lambda one: "16x64" if "x" in one[0] else "64", found[1].rstrip(";,"))
    made = run(tmp_path, *shlex.split(small), "--author", "playbook", "-o", "k.cu")
    assert made.returncode == 0, made.stderr
    run(tmp_path, *asked)
    assert (tmp_path / "request.py").read_text() == source  # it may have been edited
    assert (tmp_path / "request_2.py").exists()


def test_words_that_share_nothing_with_the_catalogue_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotUnderstood) as problem:
        words.settled_words(Request("make my coffee"), True, tmp_path)
    assert "request.py" not in str(problem.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "lost", ["moe router, softmax over 64 experts, take top 6, renormalise", "softmax of 3 wolves"]
)
def test_a_number_is_never_lost(lost: str) -> None:
    from tilewright.words import read

    try:
        made = read(lost, {})
    except NotUnderstood:
        return
    number = re.findall(r"\d+", lost)[-1]
    assert number in made.reference + made.description + " ".join(made.assumptions)
