"""The run of a request: found where another process makes it or where it waits, else begun. It asks no author.

Whoever asks for what another process is making waits for that run and shares it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright import __version__
from tilewright.frontends.choices import ChosenDevice
from tilewright.frontends.run_words import seconds_words
from tilewright.frontends.talk import Talk, reminding
from tilewright.records import Environment, Run, Settings, Task
from tilewright.store import Header, NoSuchRun, NotAccepted, Request, RunFolder, RunList, Store, StoreError
from tilewright.toolchain import find_toolkit


def environment_of(device: ChosenDevice) -> Environment:
    return Environment(
        tilewright=__version__,
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        compiler=find_toolkit().compiler,
        device=device.label,
        platform=f"{platform.system()} {platform.machine()}",
        emulated=device.is_emulated,
    )


@dataclass(frozen=True)
class WantedRun:
    """A run to be found or begun."""

    store: Store
    request: Request
    task: Task | None  # None where the request is words
    settings: Settings
    environment: Environment
    fresh: bool

    @contextlib.contextmanager
    def opened(self, talk: Talk) -> Iterator[tuple[RunFolder, bool]]:
        """The run's folder, locked, and whether it is new. What another process is making is waited for."""
        with contextlib.ExitStack() as locks:
            folder, new = self._locked(locks, talk)
            yield folder, new

    def _locked(self, locks: contextlib.ExitStack, talk: Talk) -> tuple[RunFolder, bool]:
        while True:
            with self.store.opening():
                shared = None if self.fresh or self.settings.start else self._being_made()
                if shared is None:
                    return self._begun(locks)
            with contextlib.suppress(NoSuchRun), _waiting(talk, shared):  # it may be given up
                locks.enter_context(shared.lock(wait=True))
                if self._serves(shared):
                    return shared, False
                locks.close()

    def _being_made(self) -> RunFolder | None:
        """A run in which another process has the same author make a kernel for the same request or task."""
        for folder in self.store.busy():
            with contextlib.suppress(StoreError, OSError):
                if not self._alike(folder.header()):
                    continue
                same = folder.request() == self.request if self.task is None else self._has_task(folder)
                if same:
                    return folder
        return None

    def _alike(self, other: Header) -> bool:
        """Whether a run has the same author and times kernels at the same place, against the same; none is improved."""
        its, own = other.settings, self.settings
        same = (its.author, its.base_url, its.spool) == (own.author, own.base_url, own.spool)
        same = same and (its.against, its.baselines) == (own.against, own.baselines)
        return same and not its.start and other.environment.emulated == self.environment.emulated

    def _serves(self, shared: RunFolder) -> bool:
        """Whether a run that was waited for is this one's too. One that was left before its end goes on as asked here.

        One that ended without a kernel says nothing about what another budget would have come to.
        """
        header, run = shared.header(), loaded(shared)
        if run is None or run.ending is None:
            shared.reopen(replace(self.settings, hints=header.settings.hints))
            return True
        return run.best is not None or header.settings.budget == self.settings.budget

    def _begun(self, locks: contextlib.ExitStack) -> tuple[RunFolder, bool]:
        """A new run, or one that waits with the very same words: their specification is not paid for twice. Locked."""
        listing = RunList(()) if self.fresh or self.task is not None else self.store.runs()
        for one in listing.waiting:
            if one.request == self.request and one.id not in listing.workers:
                folder = self.store.open_run(one.id)
                locks.enter_context(folder.lock())
                folder.reopen(self.settings)
                return folder, False
        folder = self.store.create_run(self.task, self.settings, self.environment, self.request)
        locks.enter_context(folder.lock())
        return folder, True

    def _has_task(self, folder: RunFolder) -> bool:
        run = loaded(folder)
        return run is not None and self.task is not None and run.task.hash == self.task.hash


def loaded(folder: RunFolder) -> Run | None:
    """The run; None where it has no task yet."""
    try:
        return folder.load()
    except NotAccepted:
        return None


@contextlib.contextmanager
def _waiting(talk: Talk, folder: RunFolder) -> Iterator[None]:
    """Say which run is waited for, and from time to time how far it is. Ctrl-C ends the waiting, not that run."""
    worker = folder.worker or "another process"

    def still(seconds: float) -> None:
        with contextlib.suppress(StoreError, OSError):
            attempts = len(folder.load().attempts)
            talk.remind(f"{folder.id}: {attempts} attempts so far, waited for {seconds_words(seconds)}")

    try:
        talk.say(f"{folder.id}, which {worker} is making for the same request: waiting for it", "run")
        with talk.live(f"waiting for run {folder.id} of {worker}"), reminding(still):
            yield
    except KeyboardInterrupt as error:
        error.add_note(f"run {folder.id} of {worker} goes on")
        raise
