"""`Store`: where runs and finished kernels live on this machine, and how a run is named and found."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tilewright.records import Environment, Run, Settings, Task, digest_of
from tilewright.store import durable
from tilewright.store.durable import NoSuchRun, NotAccepted, StoreError
from tilewright.store.library import Library
from tilewright.store.run_folder import HEADER, REQUEST, TASK, Header, Request, RunFolder

HOME_VARIABLE = "TILEWRIGHT_HOME"
NEWEST = "last"  # names the newest run
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"


@dataclass(frozen=True)
class WaitingRequest:
    """A request in words whose specification is not accepted yet."""

    id: str
    created: str
    author: str
    request: Request


@dataclass(frozen=True)
class BrokenRun:
    """A folder of a run that cannot be read."""

    path: str
    problem: str


@dataclass(frozen=True)
class RunList:
    """All runs of a home, newest first, and what else was found there."""

    runs: tuple[Run, ...]
    waiting: tuple[WaitingRequest, ...] = ()
    broken: tuple[BrokenRun, ...] = ()
    workers: dict[str, str] = field(default_factory=dict)  # of runs in progress: id -> `process 4711`


class Store:
    """Runs and library under one home: the given one, TILEWRIGHT_HOME, or ~/.local/share/tilewright."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or default_home()
        self.library = Library(self.home / "library")

    # -- runs --

    def create_run(
        self, task: Task | None, settings: Settings, environment: Environment, request: Request | None = None
    ) -> RunFolder:
        """A new run; `request` is what the person typed to get it.

        One that has only words so far has no task: `RunFolder.accept` gives it one.
        """
        name = task.name if task else request.text if request else ""
        created = datetime.now(UTC).isoformat(timespec="microseconds")
        self._check_home()
        while True:
            run_id = f"{_slug(name)}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"
            path = self.place / run_id
            with contextlib.suppress(FileExistsError), durable.new_folder(path) as filling:
                if request is not None:
                    durable.write_record(filling / REQUEST, request)
                if task is not None:
                    durable.write_record(filling / TASK, task)
                header = Header(run_id, created, settings, environment, task=digest_of(filling / TASK))
                durable.write_record(filling / HEADER, header)
            if path.is_dir():
                return RunFolder(path)

    def _check_home(self) -> None:
        try:
            durable.make_folder(self.place)
            with tempfile.TemporaryFile(dir=self.place):
                pass
        except OSError as error:
            raise StoreError(
                f"runs cannot be kept in {self.home} ({error.strerror}); "
                f"name a folder that can be written with {HOME_VARIABLE}"
            ) from None

    def open_run(self, text: str) -> RunFolder:
        """The run of an id, a prefix of an id, a path, or `last`."""
        if (Path(text) / HEADER).is_file():
            return RunFolder(Path(text))
        folders = self._folders()
        ids = [folder.path.name for folder in folders]
        if text == NEWEST and folders:
            return max(folders, key=_created)
        if text in ids:
            return folders[ids.index(text)]
        meant = [folder for folder in folders if text and folder.path.name.startswith(text)]
        if len(meant) == 1:
            return meant[0]
        if meant:
            names = ", ".join(folder.path.name for folder in meant[:6])
            raise NoSuchRun(f"{len(meant)} runs begin with {text!r} ({names}); write more of the name")
        raise NoSuchRun(f"no run is called {text!r} in {self.place}; `tilewright runs` lists them")

    def runs(self) -> RunList:
        """Every run, newest first. A broken one is reported, and hides no other."""
        runs: list[Run] = []
        waiting: list[WaitingRequest] = []
        broken: list[BrokenRun] = []
        workers: dict[str, str] = {}
        for folder in self._folders():
            if worker := folder.worker:
                workers[folder.path.name] = worker
            try:
                runs.append(folder.load())
            except NotAccepted:
                header, request = folder.header(), folder.request()
                if request is not None:
                    waiting.append(WaitingRequest(header.id, header.created, header.settings.author, request))
            except (StoreError, OSError) as error:
                broken.append(BrokenRun(str(folder.path), str(error)))
        return RunList(
            tuple(sorted(runs, key=lambda run: run.created, reverse=True)),
            tuple(sorted(waiting, key=lambda one: one.created, reverse=True)),
            tuple(broken),
            workers,
        )

    @property
    def place(self) -> Path:
        """The folder of all runs."""
        return self.home / "runs"

    def _folders(self) -> list[RunFolder]:
        return run_folders(self.place)


def run_folders(place: Path) -> list[RunFolder]:
    """The runs whose folders lie in `place`, readable or not."""
    found = sorted(place.iterdir()) if place.is_dir() else []
    return [RunFolder(path) for path in found if path.is_dir() and not durable.is_unfinished(path)]


def default_home() -> Path:
    named = os.environ.get(HOME_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".local" / "share" / "tilewright"


def _slug(name: str) -> str:
    words = re.findall(r"[a-z0-9]+", name.lower())
    slug = ""
    for word in words:
        if slug and len(slug) + len(word) > 28:
            break
        slug = f"{slug}-{word[:28]}" if slug else word[:28]
    return slug or "run"


def _created(folder: RunFolder) -> str:
    try:
        return folder.header().created
    except (StoreError, OSError):
        return ""
