"""`runs` and `show` as a person meets them, on runs written by the store."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.frontends.in_process import tilewright
from tests.store.records_for_store import (
    DUPLICATE,
    ENVIRONMENT,
    PASSED,
    SETTINGS,
    TASK,
    attempt,
    modelled,
    question,
    reply,
)

from tilewright.frontends.api.reporter import specification_blocks
from tilewright.frontends.report.document import Source
from tilewright.frontends.report.finished import end_of_run, finished, made_by_run
from tilewright.frontends.report.rendering import show
from tilewright.frontends.report.run_report import runs_report
from tilewright.records import (
    Attempt,
    Case,
    Ending,
    GpuConditions,
    Measured,
    Origin,
    Passed,
    Precision,
    Rejected,
    Run,
    SizeLimit,
    Specification,
    Timing,
)
from tilewright.records.verdict import Pattern, WrongElement, WrongOutput, WrongValues
from tilewright.runtime.errors import ReferenceUsed
from tilewright.store import Request, RunFolder, Store

WRONG = Rejected(
    WrongValues(
        Case({"n": 7}, 1),
        (
            WrongOutput(
                "y",
                3,
                7,
                Pattern.TAIL,
                "the last 3 of 7 elements",
                None,
                0.1,
                0.1,
                (WrongElement((4,), 1.0, float("nan"), 0.1),),
            ),
        ),
    )
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def made(home: Path, *attempts: Attempt) -> RunFolder:
    folder = Store(home).create_run(TASK, replace(SETTINGS, hints=((2, "one warp per row"),)), ENVIRONMENT)
    for one in attempts:
        place = folder.attempt(one.number)
        place.reply_to(1, question(one.number, text=f"please write number {one.number}"), lambda _: reply("ok"))
        place.save_text("kernel.cu", f"// double it\n// version {one.number}\n")
        place.finish(one)
    return folder


@pytest.fixture
def folder(home: Path) -> RunFolder:
    folder = made(
        home,
        attempt(1, 20.0),
        attempt(2, verdict=WRONG),
        attempt(3, 12.5),
        attempt(4, verdict=DUPLICATE),
        attempt(5, 15.0),
    )
    folder.end(Ending.ATTEMPTS)
    return folder


def test_show_has_the_task_the_table_and_a_plot(home: Path, folder: RunFolder) -> None:
    done = tilewright(home, "show", "double")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line[:3].strip().isdecimal()}
    assert rows["1"][1:5] == ["draft", "passed", "20.0", "kept"]
    assert rows["2"][1:4] == ["structure", "wrong", "values"]
    assert rows["3"][1:6] == ["structure", "passed", "12.5", "1.60x", "best"]
    assert rows["5"][1:5] == ["structure", "passed", "15.0", "0.83x"]
    assert "kept" not in rows["5"]
    for text in (
        "modelled us",
        "double_it(x) -> y",
        "x = f32[1000] -> y = f32[1000]",
        "H200 (emulated)",
        "the budget of attempts is spent",
        "one warp per row",
    ):
        assert text in done.stdout, text
    # One table: how much of the roofline each attempt reaches stands in its row.
    shares = {line.split()[0]: line.split("%")[0].split()[-1] for line in done.stdout.splitlines() if "%  " in line}
    assert int(shares["1"]) < int(shares["5"]) < int(shares["3"])
    assert done.stdout.count("roofline  ") == 1


def test_show_one_attempt_its_diff_its_prompt_and_the_kernel(home: Path, folder: RunFolder) -> None:
    assert tilewright(home, "show", "last", "--kernel").stdout == "// double it\n// version 3\n"
    shown = tilewright(home, "show", "last", "--attempt", 2).stdout
    assert "the last 3 of 7 elements" in shown
    assert tilewright(home, "show", "last", 2).stdout == shown
    assert json.loads(tilewright(home, "show", "last", 2, "--json").stdout)["attempt"]["number"] == 2
    assert "give one of them" in tilewright(home, "show", "last", 2, "--attempt", 3).stderr
    assert "give one of them" in tilewright(home, "show", "last", 2, "--diff", 3).stderr
    assert "has no attempt 9" in tilewright(home, "show", "last", 9).stderr
    assert "WARPS" not in tilewright(home, "show", "last", "--attempt", 3).stdout  # one combination is no choice
    assert "a modelled time ranks candidates" in tilewright(home, "show", "last", "--attempt", 3).stdout
    diff = tilewright(home, "show", "last", "--diff", 3).stdout
    assert "-// version 1\n+// version 3\n" in diff
    assert "--- attempt 1" in diff
    assert "please write number 3" in tilewright(home, "show", "last", "--prompt", 3).stdout
    assert tilewright(home, "show", "last", "--reply", 3).stdout == "ok\n"
    assert "no reply of a model" in tilewright(home, "show", "last", "--reply", 0).stderr
    assert tilewright(home, "show").stdout == tilewright(home, "show", "last").stdout


def test_fewer_sizes_are_told_and_given_up_only_for_a_clear_gain(home: Path) -> None:
    """Of modelled times: a kernel that takes fewer sizes needs more than the model's own error."""
    limits = (SizeLimit("n", (1, 2, 999), multiple_of=4),)
    narrow = Passed((), limits=limits)
    made(home, attempt(1, 20.0), attempt(2, 18.0, verdict=narrow), attempt(3, 17.0, verdict=narrow))
    shown = tilewright(home, "show", "last").stdout
    rows = {line.split()[0]: " ".join(line.split()) for line in shown.splitlines() if line[:3].strip().isdecimal()}
    assert "gains too little for the sizes it gives up: it takes only n a multiple of 4" in rows["2"]
    assert "1.11x" in rows["2"]
    assert "17.0 1.18x best" in rows["3"]
    assert "  only n a multiple of 4 (asked for: any n)\n" in shown
    waiting = replace(narrow, unseen="too large to emulate")
    made(home, attempt(1, 20.0), attempt(2, 1.0, verdict=waiting))
    shown = tilewright(home, "show", "last").stdout
    assert "kept behind one that passed until a GPU judges it (" in shown
    assert "attempt 2 is modelled 20.0x as fast and waits for a GPU to judge it: make it" in shown
    made(home, attempt(1, 20.0), attempt(2, 21.0, verdict=waiting))
    assert "waits for a GPU" not in tilewright(home, "show", "last").stdout
    wide = attempt(4, 16.0)
    assert wide.beats(attempt(3, 17.0, verdict=narrow), 0.04)  # what takes more sizes needs no more than usual
    assert not attempt(3, 18.0, verdict=narrow).beats(attempt(1, 20.0), 0.04)
    assert attempt(3, 18.0, verdict=narrow).beats(attempt(1, 20.0, verdict=narrow), 0.04)


def test_the_end_says_verified_or_provisional_and_why_there_is_no_time(home: Path, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("")
    untimed = replace(attempt(1), unmeasured="at these sizes it takes too long")
    folder = made(home, untimed)
    run = folder.load()

    def end(run: Run) -> str:
        shown = io.StringIO()
        answers = finished(made_by_run(run, tmp_path / "k.cu"))
        show(
            Console(file=shown, width=80),
            end_of_run(run, answers, tmp_path / "k.cu", table=True, call=True, took_s=None),
        )
        return shown.getvalue()

    assert "verified: right in 1 case on H200 (emulated)\n" in end(run)
    assert "\nspeed: it has no time: at these sizes it takes too long\n" in end(run)
    assert "it has no time: at these sizes it takes too long" in tilewright(home, "show", run.id, 1).stdout
    unseen = replace(run, attempts=(replace(untimed, verdict=replace(PASSED, unseen="it hangs")),))
    assert "\nprovisional, not verified: " in end(unseen)
    assert "\nverified" not in end(unseen)
    assert "\nnot verified: the task's answers prove nothing\n" in end(replace(run, task=replace(TASK, degenerate="0")))
    assert "no time" not in end(replace(run, attempts=(attempt(1, 20.0),)))


def test_the_call_that_is_printed_can_be_pasted(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the person's own function as reference, wherever its file lies; a kernel made from words has none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops").mkdir()
    source = "import torch\n\n\ndef double_it(x):\n    return x * 2\n"
    for name in ("mine.py", "ops/my-ops.py"):
        (tmp_path / name).write_text(source)
    kernel = tmp_path / "k.cu"
    kernel.write_text(
        "//! op      double_it(x) -> y\n//! out     y: x.dtype[x.shape]\n//! need    x.dtype == f32 and x.ndim == 1\n"
        "//! launch  k<<<1, 1>>>(x, y)\n__global__ void k(const float* x, float* y) {}\n"
    )
    run = replace(made(home, attempt(1, 20.0)).load(), task=replace(TASK, origin=Origin.FUNCTION))
    monkeypatch.syspath_prepend(str(tmp_path))
    for request, line in (("mine.py:double_it", "from mine import double_it"), ("ops/my-ops.py:double_it", "runpy")):
        answers = finished(made_by_run(run, kernel, Request(request)))
        assert line in answers.call
        names = {"x": torch.ones(2, 3)}
        with pytest.warns(ReferenceUsed):
            exec(answers.call, names)  # no file takes two dimensions, so the function runs
        assert names["y"].tolist() == [[2.0] * 3] * 2
    answers = finished(made_by_run(replace(run, task=TASK), kernel, Request("double it")))
    assert answers.call == f'import tilewright\nkernel = tilewright.load("{kernel}")\ny = kernel(x)'


def test_show_who_wrote_which_line(home: Path, folder: RunFolder) -> None:
    done = tilewright(home, "show", "last", "--provenance")
    assert done.returncode == 0, done.stderr
    assert "licence: nobody has stated one (--license)" in done.stdout
    run = folder.load()
    assert run.best is not None
    kernel = folder.attempt(run.best.number).text("kernel.cu").splitlines()
    shown = done.stdout.splitlines()[-len(kernel) :]
    assert [line.split(maxsplit=2)[2] for line in shown if len(line.split(maxsplit=2)) > 2] == [
        line.strip() for line in kernel if line.strip()
    ]
    record = json.loads(tilewright(home, "show", "last", "--provenance", "--json").stdout)
    assert record["is"] == "Provenance"
    assert sum(last - first + 1 for one in record["contributions"] for first, last in one["lines"]) == len(kernel)


def test_show_json_is_one_document(home: Path, folder: RunFolder) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    whole = json.loads(tilewright(home, "show", "last", "--json").stdout, parse_constant=refuse)
    assert whole["best"] == 3
    assert whole["kernel"].endswith("// version 3\n")
    assert [one["number"] for one in whole["run"]["attempts"]] == [1, 2, 3, 4, 5]
    one = json.loads(tilewright(home, "show", "last", "--attempt", 2, "--json").stdout, parse_constant=refuse)
    assert one["attempt"]["verdict"]["evidence"]["outputs"][0]["first"][0]["got"] == "NaN"
    assert one["replies"] == ["ok"]
    assert "version 2" in one["diff"]


def test_a_fault_of_the_program_is_no_verdict(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(record: object, as_json: bool, show: object) -> None:
        raise KeyError("what")

    monkeypatch.setattr("tilewright.frontends.cli.terminal.deliver", broken)
    done = tilewright(home, "runs")
    assert done.returncode == 3
    assert "KeyError: 'what'" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("tilewright: this is a fault of tilewright itself")


def test_a_run_under_way_says_who_is_on_it(home: Path) -> None:
    folder = made(home, attempt(1, 20.0))
    with folder.lock():
        assert f"being worked on by process {os.getpid()}" in tilewright(home, "show", "last").stdout
        assert json.loads(tilewright(home, "runs", "--json").stdout)["workers"] == {folder.id: f"process {os.getpid()}"}
    assert "it may go on: tilewright resume" in tilewright(home, "show", "last").stdout


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere/p.svg", "there is no folder"), ("p.bmp", "give a name that ends in .svg")]
)
def test_a_plot_that_cannot_be_written(home: Path, folder: RunFolder, tmp_path: Path, name: str, message: str) -> None:
    done = tilewright(home, "show", "last", "--plot", tmp_path / name)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_streams_that_take_little_or_nothing(home: Path, folder: RunFolder) -> None:
    """A closed stdout and a narrow encoding are no faults; a kernel comes out to the letter even so."""
    command = f"{sys.executable} -m tilewright"
    variables = {**os.environ, "TILEWRIGHT_HOME": str(home), "PYTHONIOENCODING": "ascii"}
    for ending, status in (("show last", 0), ("show last >&-", 0), ("runs 2>&-", 0), ("show nothing 2>&-", 2)):
        done = subprocess.run(f"{command} {ending}", shell=True, env=variables, capture_output=True, check=False)
        assert done.returncode == status, (ending, done.stderr)
        assert done.stderr == b"", ending
    best = Store(home).open_run("last").load().best
    assert best is not None
    folder.attempt(best.number).save_text("kernel.cu", "// für alle\n")
    done = subprocess.run(f"{command} show last --kernel", shell=True, env=variables, capture_output=True, check=False)
    assert done.stdout == "// für alle\n".encode()


def test_the_plot_is_a_picture(home: Path, folder: RunFolder, tmp_path: Path) -> None:
    picture = tmp_path / "progress.svg"
    done = tilewright(home, "show", "last", "--plot", picture)
    assert done.returncode == 0, done.stderr
    root = ElementTree.parse(picture).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{space}circle")) == 3
    assert len(root.findall(f".//{space}path")) == 2  # what was rejected
    heights = [float(one.attrib["cy"]) for one in root.findall(f".//{space}circle")]
    assert heights[1] > heights[2] > heights[0]  # faster is lower
    assert "modelled time by attempt" in picture.read_text()


def test_measured_times_are_called_so(home: Path) -> None:
    baselines = (Timing("eager", (40.0, 41.0, 42.0)),)
    measured = Measured(
        "NVIDIA H200",
        {"n": 1000},
        Timing("kernel", (10.0, 10.0, 11.0)),
        baselines,
        5.0,
        ("hot",),
        control=Timing("kernel again", (10.1, 10.1, 10.1)),
        precision=Precision.DTYPE,
        conditions=GpuConditions(1900, 1980, 3201, 1980, 41),
    )
    made(home, attempt(1, measurement=measured))
    whole = tilewright(home, "show", "last").stdout
    assert "measured us" in whole
    assert "faster than eager, measured on NVIDIA H200: 10.0 us; eager 41.0 us (4.10x); 50% of the roofline" in whole
    assert "modelled" not in whole
    one = tilewright(home, "show", "last", "--attempt", 1).stdout
    assert "50% of the roofline" in one
    assert re.search(r"eager +41.0  40.0 to 42.0  █+ +4.100x  3.636 to 4.200", one)
    assert "kernel again" in one
    assert re.search(r"1.010x  0.918 to 1.010", one)
    assert "kernel and baselines as PyTorch by default: f32 convolutions in TF32, other f32 products in f32" in one
    assert "SM clock 1900 to 1980 MHz of 1980, memory 3201 MHz, 41 C" in one
    picture = home / "progress.svg"
    tilewright(home, "show", "last", "--plot", picture)
    root = ElementTree.parse(picture).getroot()
    space = "{http://www.w3.org/2000/svg}"
    bars = [one for group in root.findall(f".//{space}g") for one in group.findall(f"{space}line")]
    assert len(bars) == 3, "an attempt that was measured has a bar from one end of its interval to the other"
    assert float(bars[0].attrib["y1"]) > float(bars[0].attrib["y2"])


def test_runs_lists_everything(home: Path, folder: RunFolder) -> None:
    Store(home).create_run(None, SETTINGS, ENVIRONMENT, Request("double every element"))
    broken = Store(home).create_run(TASK, SETTINGS, ENVIRONMENT)
    (broken.path / "task.json").write_text("[]")
    shown = tilewright(home, "runs")
    assert shown.returncode == 0, shown.stderr
    assert folder.id in shown.stdout
    assert "12.5 us modelled" in shown.stdout
    assert "has no accepted specification yet" in shown.stdout
    assert "cannot be read" in shown.stdout
    listed = json.loads(tilewright(home, "runs", "--json").stdout)
    assert [one["id"] for one in listed["runs"]] == [folder.id]
    assert len(listed["broken"]) == len(listed["waiting"]) == 1


@pytest.mark.parametrize("width", [40, 80, 100, 240])
def test_names_of_runs_are_whole_at_any_width(home: Path, width: int) -> None:
    words = replace(TASK, name="layer_normalisation_with_gelu", words="")
    folder = Store(home).create_run(words, replace(SETTINGS, author="openai:some/rather-long-name"), ENVIRONMENT)
    folder.end(Ending.AUTHOR_DONE)
    shown = io.StringIO()
    show(Console(file=shown, width=width, force_terminal=True, no_color=True), runs_report(Store(home).runs(), width))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    assert folder.path.name in plain
    assert "…" not in plain
    assert ("H200" in plain) == (width == 240)
    if width >= 80:
        assert " ".join(Ending.AUTHOR_DONE.words.split()[:3]) in plain


def test_long_lines_are_not_cut_on_a_terminal() -> None:
    line = "+" + "x" * 200
    shown = io.StringIO()
    console = Console(file=shown, width=80, force_terminal=True)
    show(console, [Source(f"{line}\n", "diff")])
    show(console, specification_blocks(Specification(f"# {line}", f"note = '{line}'")))
    assert shown.getvalue().replace("\n", "").count(line) == 3
    assert "97" not in shown.getvalue()  # bright white cannot be read on a light terminal


def test_no_runs_says_how_to_begin(home: Path) -> None:
    assert "tilewright make" in tilewright(home, "runs").stdout
    assert json.loads(tilewright(home, "runs", "--json").stdout)["runs"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nothing"], "no run is called 'nothing'"),
        (["show", "last", "--attempt", "9"], "has no attempt 9; it has 5"),
        (["show", "last", "--kernel", "--diff", "1"], "give one of them"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    home: Path, folder: RunFolder, arguments: list[str], message: str
) -> None:
    done = tilewright(home, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_without_a_kernel_says_so(home: Path) -> None:
    made(home, attempt(1, verdict=WRONG))
    done = tilewright(home, "show", "last", "--kernel")
    assert done.returncode == 2
    assert "no attempt" in done.stderr
    assert "none passed" in tilewright(home, "runs").stdout


def test_an_attempt_that_passed_without_a_time_is_shown(home: Path) -> None:
    made(home, attempt(1), attempt(2, measurement=modelled(3.0)))
    done = tilewright(home, "show", "last")
    assert done.returncode == 0, done.stderr
    assert "3.00" in done.stdout
