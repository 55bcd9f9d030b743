"""The gallery: recorded runs that load, whose kernels are still right, and that replay to the same kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.frontends.in_process import tilewright
from tests.refine.silent import Silent
from tests.tasks.in_process import HereReference

from tilewright.authors.model_author import ModelAuthor
from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import KernelFile
from tilewright.measure import Stopwatch
from tilewright.models import open_model
from tilewright.records import Passed, Run
from tilewright.reference import Reference
from tilewright.refine import RunContext, refine
from tilewright.store import RunFolder, Store
from tilewright.verify import Referee, read_kernel

GALLERY = Path(__file__).parents[2] / "gallery"
ALL = sorted(path.parent.name for path in GALLERY.glob("*/run.json"))
FEW = {"top1"}  # the others take longer
QUICK = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in ALL]


def recorded(name: str) -> tuple[RunFolder, Run]:
    folder = RunFolder(GALLERY / name)
    return folder, folder.load()


def test_the_gallery_is_complete() -> None:
    assert len(ALL) >= 8
    assert any(recorded(name)[1].task.words for name in ALL)


def test_what_the_page_shows_can_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GALLERY.parent)
    commands = re.findall(r"^    tilewright (show [^#\n]*)", (GALLERY / "README.md").read_text(), re.MULTILINE)
    assert len(commands) > 1
    for command in commands:
        done = tilewright(tmp_path, *command.split())
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", QUICK)
def test_the_best_kernel_is_right(name: str) -> None:
    folder, run = recorded(name)
    assert run.ending is not None
    assert run.best is not None
    kernel = read_kernel(folder.attempt(run.best.number).text("kernel.cu"), run.task)
    assert isinstance(kernel, KernelFile)
    choice = dict(run.best.tune.choice) if run.best.tune else {}
    with (
        HereReference(run.task.reference, run.task.function) as reference,
        EmulatedDevice(run.task.profile) as emulator,
        Referee(run.task, reference, emulator=emulator) as referee,
    ):
        assert isinstance(referee.judge(kernel, choice), Passed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_replay_makes_the_same_kernels(name: str, tmp_path: Path) -> None:
    folder, run = recorded(name)
    model = open_model(f"replay:{folder.path}")
    again = Store(tmp_path).create_run(run.task, run.settings, run.environment)
    with (
        Reference(run.task.reference, run.task.function) as reference,
        EmulatedDevice(run.task.profile) as emulator,
        Referee(run.task, reference, emulator=emulator) as referee,
        Stopwatch(run.task, reference, emulator=emulator) as stopwatch,
    ):
        replayed = refine(again, RunContext(ModelAuthor(model.name), model.complete, referee, stopwatch, Silent()))
    assert [one.kernel for one in replayed.attempts] == [one.kernel for one in run.attempts]
    assert [one.passed for one in replayed.attempts] == [one.passed for one in run.attempts]
    assert replayed.best is not None
    assert run.best is not None
    assert replayed.best.kernel == run.best.kernel
