"""A kernel file that was changed after it was verified is shown and handed over as verified by no command."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.frontends.in_process import Done, tilewright

import tilewright as tw
from tilewright.runtime import ChangedKernelFile
from tilewright.store import LibraryKernel, RunFolder, Store

RUN = Path(__file__).parents[2] / "exports" / "runs" / "rmsnorm"
CHANGED = (
    "kernel.cu was changed after it was verified, so it is not verified any more; check it with: tilewright check "
)


@pytest.fixture(autouse=True)
def said_each_time() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # each call here stands for a process of its own
        yield


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With one run, whose kernel was edited."""
    folder = tmp_path / "home" / "runs" / "rmsnorm-bei5"
    shutil.copytree(RUN, folder)
    edit(folder / "attempts" / "0001" / "kernel.cu")
    return tmp_path / "home"


def edit(path: Path) -> None:
    path.write_text(path.read_text() + "// a little faster\n")


def told(done: Done, said: str = CHANGED) -> str:
    assert said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_show_says_so(home: Path) -> None:
    shown = told(tilewright(home, "show", "last"))
    assert "changed since" in shown
    for word in ("verified: right", "passed", "22.7"):
        assert word not in shown
    assert " us modelled" not in told(tilewright(home, "show", "last", "1"))
    assert json.loads(told(tilewright(home, "show", "last", "--json")))["best"] is None
    for part in ("--kernel", "--provenance"):
        done = tilewright(home, "show", "last", part)
        assert (done.returncode, told(done)) == (2, "")
    assert "none passed" in told(tilewright(home, "runs"))


def test_explain_and_view_say_so(home: Path, tmp_path: Path) -> None:
    assert "of which none passed" in told(tilewright(home, "explain", "last"))
    told(tilewright(home, "view", "last", "--export", tmp_path / "pages"))
    pages = "".join(path.read_text("utf-8") for path in (tmp_path / "pages").rglob("*.html"))
    assert "changed since" in pages
    assert "none passed" in pages


def test_an_export_says_so(home: Path, tmp_path: Path) -> None:
    told(tilewright(home, "export", "last", "--to", "cuda", "-o", tmp_path / "exported"))
    readme = (tmp_path / "exported" / "README.md").read_text()
    assert "not verified: the file was changed by hand since it was judged; check it with" in readme


@pytest.fixture
def kept(tmp_path: Path) -> LibraryKernel:
    """A kernel of the library, and a home with nothing else."""
    store = Store(tmp_path / "home")
    folder = tmp_path / "run"
    shutil.copytree(RUN, folder)
    return store.library.add(RunFolder(folder))


def test_make_does_not_hand_it_over(kept: LibraryKernel, tmp_path: Path) -> None:
    source = tmp_path / "norm.py"
    source.write_text(kept.task().reference)
    shapes = ("--shape", "x=4096x4096:bf16", "--shape", "weight=4096:bf16")
    asked = ("make", f"{source}:rmsnorm", *shapes, "--gpu", "H200", "--author", "playbook", "-o", tmp_path / "out.cu")
    assert tilewright(kept.folder.parents[2], *asked).returncode == 0
    assert (tmp_path / "out.cu").read_text() == kept.text()
    (tmp_path / "out.cu").unlink()
    edit(kept.path)
    done = tilewright(kept.folder.parents[2], *asked)
    assert done.returncode != 0
    told(done, "rmsnorm.cu was changed after it was verified, so it is not verified any more; check it with: ")
    assert "or make it again with --fresh" in done.stderr
    assert not (tmp_path / "out.cu").exists()


def test_load_warns(kept: LibraryKernel) -> None:
    tw.load(kept.path)
    edit(kept.path)
    with pytest.warns(ChangedKernelFile, match=r"rmsnorm\.cu was changed after it was verified.*tilewright check "):
        tw.load(kept.path)


def test_a_suite_makes_it_again(kept: LibraryKernel, tmp_path: Path) -> None:
    from tilewright.records import provenance_path
    from tilewright.suites.suite_folder import Status, SuiteFolder, TaskRecord

    suite = SuiteFolder(tmp_path / "suite")
    place = suite.path / "kernels" / "rmsnorm.cu"
    for folder in (place.parent, suite.path / "tasks"):
        folder.mkdir(parents=True)
    place.write_text(kept.text())
    kept.copy_provenance(place)
    record = TaskRecord("1", "rmsnorm", Status.MADE, kernel="kernels/rmsnorm.cu", measurement=kept.entry.measurement)
    suite.record(record)
    assert suite.find("1") == record
    edit(place)
    found = suite.find("1")
    assert found is not None
    assert found == replace(record, status=Status.FAILED, measurement=None, kernel="", reason=found.reason)
    assert "was changed after it was verified" in found.reason
    provenance_path(place).unlink()
    assert suite.find("1") == record  # nothing is on record to compare with
