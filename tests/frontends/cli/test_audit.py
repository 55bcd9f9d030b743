"""`tilewright audit` as a person meets it: built, emulated and modelled for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.frontends.in_process import tilewright
from tests.importing.examples import MODEL, ROWS
from tests.runtime import plans

from tilewright.frontends.cli.audit import ranked
from tilewright.frontends.cli.judging import judged_by_checkers, judged_by_referee
from tilewright.frontends.report.audit import Audit, Suggestion, Weight
from tilewright.kernel_file import TunedChoices, parse
from tilewright.prompts.verdict_text import verdict_words
from tilewright.records import (
    PROFILES,
    Case,
    Crashed,
    FaultKind,
    FindingKind,
    FindingRecord,
    Modelled,
    Rejected,
    TensorSpec,
    from_json,
    to_json,
    tuned_path,
)

# Lanes of a warp stand a row apart, and the last row is read once more than it has elements.
STRIDED = """\
//! op      row_sums(x) -> y
//! out     y: f32[x.shape[0]]
//! need    x.dtype == f32 and x.ndim == 2
//! launch  row_sums<<<ceil_div(x.shape[0], 64), 64>>>(x, y, x.shape[0], x.shape[1])
__global__ void row_sums(const float* x, float* y, int rows, int cols) {
  int row = blockIdx.x * 64 + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int k = 0; k <LESS cols; ++k) sum += x[row * (long long)cols + k];
  y[row] = sum;
}
"""
RIGHT, BROKEN = STRIDED.replace("<LESS", "<"), STRIDED.replace("<LESS", "<=")
REFERENCE = """\
import torch

def row_sums(x):
    return x.sum(-1)

def other_names(z):
    return z.sum(-1)
"""


FLAT = """\
//! op      copy(y!, x, n: int)
//! launch  run<<<ceil_div(n, 32), 32>>>(y, x, n)
__global__ void run(float* y, const float* x, int n) {
  int i = blockIdx.x * 32 + threadIdx.x;
  if (i < n) y[i] = x[i];
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "right.cu").write_text(RIGHT)
    (tmp_path / "broken.cu").write_text(BROKEN)
    (tmp_path / "reference.py").write_text(REFERENCE)
    return tmp_path


def test_what_was_tuned_beside_the_file_is_what_is_timed(tmp_path: Path) -> None:
    path, file = tmp_path / "twice.cu", parse(plans.TWICE)
    path.write_text(plans.TWICE)
    tuned = TunedChoices().with_choice(file, "NVIDIA H200", {"x": TensorSpec.parse("4096:f32")}, [("THREADS", 128)])
    tuned_path(path).write_text(json.dumps(to_json(tuned)))
    done = tilewright(tmp_path, "audit", path, "--shape", "x=4096:f32", "--json")
    audit: Audit = from_json(Audit, json.loads(done.stdout))
    assert any(one.startswith("timed with THREADS = 128: tuned on NVIDIA H200") for one in audit.notes)
    assert "grid 32 of 128 threads" in audit.speed.evidence


@pytest.mark.slow
def test_one_record_four_ways(folder: Path) -> None:
    pages = ("--markdown", folder / "a.md", "--html", folder / "a.html")
    done = tilewright(folder, "audit", folder / "broken.cu", "--shape", "x=32768x64", "--json", *pages)
    audit: Audit = from_json(Audit, json.loads(done.stdout))
    assert (done.returncode, audit.correctness.passed, audit.exit_status) == (1, False, 1)
    first = audit.suggestions[0]
    assert (first.weight, first.what, first.line) == (Weight.WRONG, "global access outside every tensor", 9)
    assert first.source.startswith("for (int k = 0; k <= cols")
    strided = next(one for one in audit.suggestions if one.what == "uncoalesced access")
    assert strided.line == 9
    assert strided.gain is not None
    assert 1.05 < strided.gain < (audit.speed.most_gain or 0.0)  # no line can gain more than there is to gain
    assert isinstance(audit.speed.measurement, Modelled)
    assert any(one.what == f"bound by {audit.speed.bound_by}" for one in audit.suggestions)
    markdown, html = (folder / "a.md").read_text(), (folder / "a.html").read_text()
    assert (folder / "a_pictures" / "roofline.svg").exists()
    for page in (markdown, html):
        assert "global access outside every tensor" in page
        assert "modelled" in page
    assert "<svg" in html
    assert "Content-Security-Policy" in html


def test_what_goes_wrong_comes_first_and_then_what_gains_most() -> None:
    plain = Suggestion(Weight.COST, "a", "k", 1, "", "", "", "", 1.2)
    wrong = replace(plain, weight=Weight.WRONG, line=5, gain=None)
    fault, told_already = replace(plain, weight=Weight.FAULT, line=6), replace(plain, weight=Weight.FAULT, line=5)
    more, remark = replace(plain, gain=2.0, line=9), replace(plain, weight=Weight.REMARK, gain=1.5)
    found = ranked([wrong], [plain, told_already, remark, fault, more])
    assert found == (wrong, fault, more, remark, plain)


def test_lines_that_the_referee_added_do_not_count() -> None:
    """It judges the file with `need` lines that its owner has not: every number is of the owner's text."""
    file = parse(RIGHT, "k.cu")
    judged = parse(RIGHT.replace("//! launch", "//! need    x.shape[1] > 0\n//! launch"), "k.cu")
    race = FindingRecord(FindingKind.RACE_GLOBAL, "row_sums", 5, 10, 0, None, "y[0]", "another at line 11", 9, 11)
    verdict = Rejected(Crashed(Case({"rows": 7}, 1), None, "it ended, with findings", "row_sums", 10, (race,)))
    told, (suggestion,) = judged_by_referee(verdict, judged, file)
    assert "line 9" in told.text
    assert "another at line 10" in told.text
    assert ">    9 |   for (int k" in told.text
    assert ">   10 |   y[row] = sum;" in told.text
    assert (suggestion.line, suggestion.evidence) == (9, "y[0]: another at line 10")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.cu"], "no such file"),
        (["."], "a folder"),
        (["right.cu", "--reference", "reference.py:row_sums", "--html", "a.pdf"], "ends in .html"),
        (["right.cu", "--function", "row_sums"], "is a kernel file"),
        (["right.cu", "--shape", "z=3"], "row_sums's parameters: x"),
        (["right.cu", "--shape", "x=8x8:f16"], "`x.dtype == f32"),
        (["reference.py"], "could not be imported"),
        (["right.cu", "--improve"], "--reference"),
    ],
)
def test_bad_input_is_one_sentence(folder: Path, arguments: list[str], said: str) -> None:
    done = tilewright(folder, "audit", *arguments, folder=folder)
    assert done.returncode == (3 if said.startswith("could") else 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_reference_decides(folder: Path) -> None:
    arguments = ("--shape", "x=2048x512", "--reference", f"{folder}/reference.py:row_sums")
    right = tilewright(folder, "audit", folder / "right.cu", *arguments)
    assert right.returncode == 0
    assert "correctness: right" in right.stdout
    assert "what pays for this kind of work, reduction" in right.stdout
    assert " us modelled (every input read once" in right.stdout
    wrong = folder / "wrong.cu"
    wrong.write_text(RIGHT.replace("y[row] = sum", "y[row] = sum + 0.01f"))
    done = tilewright(folder, "audit", wrong, *arguments)
    assert done.returncode == 1
    assert "wrong values" in done.stdout


# All its sizes come as numbers, of which a plain pointer's tensor does not know.
TOLD = """\
//! op      add(a, b, c!, n: int)
//! need    a.dtype == f32 and b.dtype == f32 and c.dtype == f32
//! launch  add<<<ceil_div(n, 256), 256>>>(a, b, c, n)
__global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [777, 900])
def test_sizes_that_come_as_numbers_are_not_left_behind(folder: Path, size: int) -> None:
    (folder / "told.cu").write_text(TOLD)
    (folder / "wrong.cu").write_text(TOLD.replace("i < n", "i < n - 1"))
    (folder / "told.py").write_text("def add(a, b, c, n: int):\n    c[:n] = a[:n] + b[:n]\n")
    shapes = [part for name in "abc" for part in ("--shape", f"{name}={size}:f32")]
    arguments = (*shapes, "--set", "n=777", "--reference", f"{folder}/told.py:add")
    right = tilewright(folder, "audit", folder / "told.cu", *arguments)
    assert right.returncode == 0, right.stdout
    assert "right at these sizes" in right.stdout
    assert tilewright(folder, "audit", folder / "wrong.cu", *arguments).returncode == 1


@pytest.mark.slow
def test_parameters_called_otherwise_are_a_bad_reference(folder: Path) -> None:
    done = tilewright(folder, "audit", folder / "right.cu", "--reference", f"{folder}/reference.py:other_names")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "the kernel file has the parameter x, and other_names has no such parameter" in done.stderr
    assert "--shape" not in done.stderr


@pytest.mark.slow
def test_cuda_as_it_is_found(folder: Path) -> None:
    (folder / "rows_found.cu").write_text(ROWS)
    done = tilewright(folder, "audit", folder / "rows_found.cu", folder=folder)
    assert done.returncode == 0
    assert "imported from" in done.stdout
    assert "uncoalesced access in row_sum" in done.stdout
    assert not list(folder.glob("rows.cu"))  # the kernel file was a temporary one


@pytest.mark.slow
def test_a_model_brings_its_own_reference(folder: Path) -> None:
    (folder / "model.py").write_text(MODEL)
    done = tilewright(folder, "audit", folder / "model.py", folder=folder)
    assert done.returncode == 0
    assert "correctness: right\n  by the referee" in done.stdout
    (folder / "model.py").write_text(MODEL.replace("x[i] + bias[i % columns]", "x[i] - bias[i % columns]"))
    done = tilewright(folder, "audit", folder / "model.py", folder=folder)
    assert done.returncode == 1


@pytest.mark.slow
def test_improve_opens_a_run_that_starts_from_the_file_and_is_told_what_was_found(folder: Path) -> None:
    asked = ("--reference", "reference.py:row_sums", "--shape", "x=4096x512", "--improve", "--author", "playbook")
    done = tilewright(folder, "audit", "right.cu", *asked, "--attempts", "2", "-o", "better.cu", folder=folder)
    assert done.returncode == 0
    shown = tilewright(folder, "show", "last", "--json", folder=folder)
    run = json.loads(shown.stdout)["run"]
    assert run["settings"]["start"] == RIGHT
    ((made, hint),) = run["settings"]["hints"]
    assert made == 0
    assert "uncoalesced access, line 9" in hint
    first, second = run["attempts"]
    assert second["measurement"]["time_us"] < first["measurement"]["time_us"]
    assert (folder / "better.cu").read_text() != RIGHT


def test_of_what_lies_past_a_guessed_length_nothing_is_concluded() -> None:
    file = parse(FLAT, "k.cu")
    arguments = {"y": TensorSpec.parse("96:f32"), "x": TensorSpec.parse("40:f32"), "n": 96}
    wrong, found = judged_by_checkers(file, arguments, PROFILES["H200"], None, str)
    assert wrong.passed is False
    assert "after the end of x" in found[0].evidence
    unsure, found = judged_by_checkers(file, arguments, PROFILES["H200"], None, str, frozenset(("x",)))
    assert (unsure.passed, found) == (None, ())
    assert "accesses go past x, whose length was guessed" in unsure.notes[-1]


def test_a_race_is_called_one_and_a_crash_a_crash() -> None:
    """Of a run that got to its end nobody says that it crashed."""
    kinds = {
        FindingKind.RACE_SHARED: ("race", "race in shared memory"),
        FindingKind.OUT_OF_BOUNDS_GLOBAL: ("out of bounds", "out of bounds: global access outside every tensor"),
        FindingKind.COUNTER_LEFT: ("at fault", "at fault: counter not left at zero"),
    }
    for kind, (reason, words) in kinds.items():
        found = FindingRecord(kind, "f", 5, 10, 0, None, "y[0]", "", 9, 11)
        verdict = Rejected(Crashed(Case({"rows": 7}, 1), None, "it ended, with findings", "f", 10, (found,)))
        assert (verdict.reason, verdict_words(verdict)) == (reason, words)
    stopped = Rejected(Crashed(Case({"rows": 7}, 1), FaultKind.STOPPED, "deadlock", "f", 10, (found,)))
    assert stopped.reason == "crashed"
