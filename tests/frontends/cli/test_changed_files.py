"""A kernel, its task or its tuned choices, changed after the verdict: no command shows or hands it over as verified."""

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
from tilewright.frontends.agents.author import AgentReporter
from tilewright.frontends.agents.session import Session
from tilewright.frontends.report.site import Site, chosen
from tilewright.records import digest_of
from tilewright.runtime import ChangedKernelFile
from tilewright.store import LibraryKernel, RunFolder, Store
from tilewright.tasks.errors import BadArgument

RUN = Path(__file__).parents[2] / "exports" / "runs" / "rmsnorm"
CHANGED = {
    "attempts/0001/kernel.cu": "kernel.cu was changed after it was verified, so it is not verified any more; check it "
    "with: tilewright check ",
    "task.json": "task.json was changed after the kernel was verified with it, so the kernels of this run are not",
}


@pytest.fixture(autouse=True)
def said_each_time() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # each call here stands for a process of its own
        yield


@pytest.fixture(params=CHANGED)
def changed(request: pytest.FixtureRequest) -> str:
    """The file of a run that was edited."""
    return str(request.param)


@pytest.fixture
def home(tmp_path: Path, changed: str) -> Path:
    """With one run, of which a file was edited."""
    folder = tmp_path / "home" / "runs" / "rmsnorm-bei5"
    shutil.copytree(RUN, folder)
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(header | {"task": digest_of(folder / "task.json")}))
    edit(folder / changed)
    return tmp_path / "home"


def edit(path: Path) -> None:
    """One more word in a comment of a kernel or of a reference, one blank elsewhere."""
    text = path.read_text()
    noted = text.replace('"reference": "', '"reference": "# easier\\n', 1)
    path.write_text(f"{text}// a little faster\n" if path.suffix == ".cu" else noted if noted != text else f" {text}")


def told(done: Done, said: str = "was changed after") -> str:
    assert said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_show_says_so(home: Path, changed: str) -> None:
    shown = told(tilewright(home, "show", "last"), CHANGED[changed])
    assert "changed since" in shown
    for word in ("verified: right", "passed", "22.7"):
        assert word not in shown
    assert " us modelled" not in told(tilewright(home, "show", "last", "1"))
    assert json.loads(told(tilewright(home, "show", "last", "--json")))["best"] is None
    for part in ("--kernel", "--provenance"):
        done = tilewright(home, "show", "last", part)
        assert (done.returncode, told(done)) == (2, "")
    assert "none passed" in told(tilewright(home, "runs"))


def test_explain_and_view_say_so(home: Path) -> None:
    assert "of which none passed" in told(tilewright(home, "explain", "last"))
    site = Site(chosen("last", Store(home)))
    pages = "".join(site.html(address, {}) for address in ("index.html", site.home))
    assert "changed since" in pages
    assert "none passed" in pages


@pytest.mark.parametrize("to", ["cuda", "torch", "hub"])
def test_an_export_says_so(home: Path, to: str, tmp_path: Path) -> None:
    told(tilewright(home, "export", "last", "--to", to, "--name", "scaled", "-o", tmp_path / "exported"))
    readme = (tmp_path / "exported" / "README.md").read_text()
    assert "not verified: the file was changed by hand since it was judged; check it with" in readme
    pages = [path for path in (tmp_path / "exported").rglob("*") if path.suffix in (".md", ".json", ".toml")]
    assert not [path for path in pages if "verified it in" in path.read_text() or '"verified"' in path.read_text()]


def test_resume_does_not_go_on_from_it(home: Path) -> None:
    done = tilewright(home, "resume", "last")
    assert "no attempt passed, so there is no kernel" in told(done)
    assert done.returncode != 0


@pytest.mark.filterwarnings("ignore:.*was changed after")
def test_tools_of_agents_neither_show_nor_write_it(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(home))
    session, reporter = Session(tmp_path), AgentReporter()
    answer = session.history(reporter, run="rmsnorm-bei5")
    assert "verified: right" not in answer.text
    assert "changed since" in answer.text
    for to in ("file", "hub"):
        with pytest.raises(BadArgument, match="no attempt of run rmsnorm-bei5 has passed"):
            session.export(reporter, run="rmsnorm-bei5", destination="out", to=to)
    assert not list(tmp_path.glob("out*"))


@pytest.fixture
def kept(tmp_path: Path) -> LibraryKernel:
    """A kernel of the library, and a home with nothing else."""
    store = Store(tmp_path / "home")
    folder = tmp_path / "run"
    shutil.copytree(RUN, folder)
    return store.library.add(RunFolder(folder), '{"entries": []}')


@pytest.mark.parametrize("name", ["rmsnorm.cu", "task.json", "rmsnorm.cu.tuned.json"])
def test_make_does_not_hand_it_over(kept: LibraryKernel, name: str, tmp_path: Path) -> None:
    source = tmp_path / "norm.py"
    source.write_text(kept.task().reference)
    shapes = ("--shape", "x=4096x4096:bf16", "--shape", "weight=4096:bf16")
    asked = ("make", f"{source}:rmsnorm", *shapes, "--gpu", "H200", "--author", "playbook", "-o", tmp_path / "out.cu")
    assert tilewright(kept.folder.parents[2], *asked).returncode == 0
    assert (tmp_path / "out.cu").read_text() == kept.text()
    (tmp_path / "out.cu").unlink()
    edit(kept.folder / name)
    done = tilewright(kept.folder.parents[2], *asked)
    assert done.returncode != 0
    told(done, f"{name} was changed after ")
    assert "not verified any more" in done.stderr
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
