"""A skill made of runs: valid, within the limits, with links that lead somewhere and nothing of this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from skills_ref.validator import validate
from tests.frontends.in_process import tilewright
from tests.frontends.recordings import RIGHT, SOURCE, WRONG, record
from tests.teaching.made_runs import EARLIER, SECRET, mended_run

from tilewright.frontends.cli import teach
from tilewright.records import NotFaster, Rejected
from tilewright.store import RunFolder
from tilewright.teaching.lessons import check_options, cleaner, lessons_of, reference_hash, telling_case
from tilewright.teaching.skill import missing_links, read_provenance


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples stand on their verdicts: that they are run again is for the slow test."""
    monkeypatch.setattr(teach, "run_again", lambda example: (None, ""))


def test_a_fault_is_told_with_what_mended_it(tmp_path: Path) -> None:
    lessons = lessons_of([mended_run(tmp_path), RunFolder(EARLIER)], cleaner())
    (pitfall,) = lessons.pitfalls
    assert (pitfall.attempt, pitfall.mended_by, pitfall.remedy) == (1, 2, "any size is taken")
    assert "the need does not hold" in pitfall.evidence
    assert "-//! need    x.dtype == f16 and x.ndim == 7" in pitfall.change
    assert [(step.kept, round(step.gain, 2)) for step in lessons.steps] == [(True, 1.25), (False, 0.92)]
    (example,) = lessons.examples  # of both runs, which have the same kernel
    assert example.kernel == RunFolder(EARLIER).attempt(2).text("kernel.cu")


def test_a_step_that_was_right_and_slower_is_told_too(tmp_path: Path) -> None:
    folder = mended_run(tmp_path)
    slower = replace(folder.load().attempts[0], number=3, step=3, verdict=Rejected(NotFaster(8.0, 2.0, 2)))
    folder.attempt(3).finish(slower)
    (step,) = lessons_of([folder], cleaner()).steps
    assert (step.attempt, step.gain, step.kept) == (3, 0.25, False)


def test_an_example_that_is_not_the_file_that_was_judged_is_none(tmp_path: Path) -> None:
    folder = mended_run(tmp_path)
    path = folder.attempt(2).path / "kernel.cu"
    path.write_text(path.read_text() + "// changed since\n")
    assert not lessons_of([folder], cleaner()).examples


def test_the_call_that_runs_an_example_again() -> None:
    run = RunFolder(EARLIER).load()
    assert run.best is not None
    sizes = telling_case(run.task, run.best.verdict)
    assert check_options(run.task, sizes) == ["--shape", "x=33x512:f16"]


@pytest.mark.usefixtures("untested")
def test_the_skill_is_valid_and_says_nothing_of_this_machine(tmp_path: Path) -> None:
    made, out = mended_run(tmp_path), tmp_path / "skills" / "fast-relu"
    done = tilewright(tmp_path, "teach", made.path, EARLIER, "-o", out, "--json", "--license", "MIT")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pitfalls"] == 1
    assert validate(out) == []
    files = {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()}
    body = files["SKILL.md"]
    assert len(body.splitlines()) < 500
    assert not missing_links(body, files)
    assert "license: MIT" in body
    assert r"an \[odd\] `need`" in body
    everything = "\n".join(files.values())
    assert "alice" not in everything
    assert str(tmp_path) not in everything
    assert SECRET not in everything
    provenance = read_provenance(out)
    assert provenance is not None
    assert {one.reference_hash for one in provenance.runs} == {reference_hash(RunFolder(EARLIER).load().task)}
    again = tilewright(tmp_path, "teach", EARLIER, "-o", out)
    assert again.returncode == 0, again.stderr
    assert "odd" not in (out / "SKILL.md").read_text(), "written anew as a whole"


@pytest.mark.usefixtures("untested")
def test_a_model_writes_the_guidance_and_is_asked_once_more(tmp_path: Path) -> None:
    bad, good = "See [this](examples/none.cu)", "# Pointwise\n\nMove [vectors](examples/relu_scale.cu)."
    recording = record(tmp_path / "recording", ("0001-1", bad), ("0001-2", good))
    out = tmp_path / "fast-relu"
    done = tilewright(tmp_path, "teach", EARLIER, "-o", out, "--model", f"replay:{recording}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == 2200
    text = (out / "SKILL.md").read_text()
    assert "Move [vectors]" in text
    assert "## Worked examples" in text
    assert "1.25x" not in text, "the assembled guidance is not there too"
    assert str(tmp_path) not in (out / "references" / "provenance.json").read_text()


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.md").write_text("mine")
    for arguments, said in (
        ((EARLIER, "-o", tmp_path / "Bad_Name"), "lower-case letters"),
        ((EARLIER, "-o", tmp_path / "mine"), "did not write"),
        (("none-such", "-o", tmp_path / "x"), "no run is called"),
        ((EARLIER, "-o", tmp_path / "x", "--license", "?"), "SPDX"),
    ):
        done = tilewright(tmp_path, "teach", *arguments)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert (tmp_path / "mine" / "notes.md").read_text() == "mine"


@pytest.mark.slow
def test_examples_of_a_real_run_are_run_again_and_one_that_fails_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(SOURCE)
    recording = record(tmp_path / "recording", ("0001-1", WRONG), ("0002-1", RIGHT))
    request = ("make", f"{tmp_path / 'ops.py'}:scaled_silu", "--shape", "x=2048:f32", "--model", f"replay:{recording}")
    assert tilewright(tmp_path, *request, "--attempts", "2", "--gpu", "H200").returncode == 0
    done = tilewright(tmp_path, "teach", "last", "-o", tmp_path / "silu", "--json")
    taught = json.loads(done.stdout)
    assert taught["examples"] == ["scaled_silu"]
    text = (tmp_path / "silu" / "SKILL.md").read_text()
    assert "run again here: clean" in text
    command = text.partition("Try it: `tilewright ")[2].partition("`")[0].split()
    assert tilewright(tmp_path, *command, folder=tmp_path / "silu").returncode == 0
    task = next((tmp_path / "runs").glob("*/task.json"))
    task.write_text(task.read_text().replace("* scale", "* scale * 2.0"))
    spoilt = tilewright(tmp_path, "teach", "last", "-o", tmp_path / "silu", "--json")
    assert "wrong" in json.loads(spoilt.stdout)["left_out"][0]
