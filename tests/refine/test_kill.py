"""Killed at random instants, a run goes on to the same kernel and asks for no reply twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.refine import candidates
from tests.refine.killed_child import SETTINGS
from tests.refine.runs import ENVIRONMENT, TASK
from tests.refine.silent import Silent
from tests.tasks.in_process import HereReference

from tilewright.authors.model_author import ModelAuthor
from tilewright.devices.child_device import EmulatedDevice
from tilewright.measure import Stopwatch
from tilewright.records import Question, Reply, Run, StopReason, Usage
from tilewright.refine import RunContext, refine
from tilewright.store import RunFolder, Store
from tilewright.verify import Referee

REPLIES = {
    "0001-1": candidates.WRONG,
    "0002-1": None,  # no code: a correction is asked for
    "0002-2": candidates.STRIDED,
    "0003-1": candidates.NOT_COMPILING,
    "0004-1": candidates.SIMPLE,
}


def scripted(question: Question, on_text: Callable[[str], None]) -> Reply:
    kernel = REPLIES.get(question.id, candidates.STRIDED + f"// {question.id}\n")
    text = f"Summary: reply {question.id}\n\n```cuda\n{kernel}```\n" if kernel else "I would write a kernel."
    return Reply("scripted:x", text, StopReason.END, Usage(1000, 500), 0.01)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Run]:
    """The run as it goes when nobody disturbs it."""
    folder = Store(tmp_path_factory.mktemp("recorded")).create_run(TASK, SETTINGS, ENVIRONMENT)
    with (
        HereReference(TASK.reference, TASK.function) as reference,
        EmulatedDevice(TASK.profile) as emulator,
        Referee(TASK, reference, emulator=emulator) as referee,
        Stopwatch(TASK, reference, emulator=emulator) as stopwatch,
    ):
        run = refine(folder, RunContext(ModelAuthor("scripted:x"), scripted, referee, stopwatch, Silent()))
    assert run.best is not None
    assert run.best.number == 4
    return folder, run


def outcome(run: Run) -> list[tuple[object, ...]]:
    return [(one.number, one.stage, one.kernel, one.verdict, one.time_us, one.usage) for one in run.attempts]


def kill_until_done(home: Path, recorded: Path, rng: random.Random, span_seconds: float, kills: int) -> tuple[int, Run]:
    """Run the child and kill it, again and again, at most `kills` times; then let it end."""
    log = home / "asked.log"
    made = 0
    while True:
        command = [sys.executable, "-m", "tests.refine.killed_child", str(home), str(recorded), str(log), "0.1"]
        child = subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)
        try:
            child.wait(rng.uniform(0.2, span_seconds) if made < kills else 300.0)
        except subprocess.TimeoutExpired:
            assert made < kills, "the run did not end by itself"
            child.send_signal(signal.SIGKILL)
            child.wait()
            made += 1
            continue
        assert child.returncode == 0, child.stderr.read().decode() if child.stderr else ""
        asked = log.read_text().split()
        assert len(asked) == len(set(asked)), f"asked twice: {asked}"
        return made, Store(home).runs().runs[0]


def check_kills(recording: tuple[RunFolder, Run], tmp_path: Path, kills: int, seed: int, span_seconds: float) -> None:
    folder, undisturbed = recording
    rng = random.Random(seed)
    made, number = 0, 0
    began = time.monotonic()
    while made < kills:
        home = tmp_path / f"home{number}"
        home.mkdir()
        now, run = kill_until_done(home, folder.path, rng, span_seconds, kills - made)
        made, number = made + now, number + 1
        # Verdicts carry the seconds they took, so only what they decide is compared.
        assert [(n, s, k, t, u) for n, s, k, _, t, u in outcome(run)] == [
            (n, s, k, t, u) for n, s, k, _, t, u in outcome(undisturbed)
        ]
        assert run.ending == undisturbed.ending
        assert run.best is not None
    print(f"{made} kills over {number} runs in {time.monotonic() - began:.0f} s")


@pytest.mark.slow
def test_killed_once(recording: tuple[RunFolder, Run], tmp_path: Path) -> None:
    check_kills(recording, tmp_path, kills=1, seed=1, span_seconds=6.0)


@pytest.mark.slow
def test_killed_fifty_times(recording: tuple[RunFolder, Run], tmp_path: Path) -> None:
    check_kills(recording, tmp_path, kills=50, seed=2, span_seconds=14.0)
