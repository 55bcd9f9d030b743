"""The run of a request: found where another process makes it or where it waits, else begun. It asks no author.

Whoever asks for what another process is making waits for that run and shares it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import platform
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright import __version__
from tilewright.frontends.api.choices import ChosenDevice
from tilewright.frontends.api.reporter import Reporter, reminding
from tilewright.frontends.report.runs import seconds_words
from tilewright.records import Environment, Run, Settings, Task
from tilewright.store import Header, NoSuchRun, NotAccepted, Request, RunFolder, RunList, Store, StoreError
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.reading.python_source import INSTALLED
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
    def opened(self, reporter: Reporter) -> Iterator[tuple[RunFolder, bool]]:
        """The run's folder, locked, and whether it is new. What another process is making is waited for."""
        with contextlib.ExitStack() as locks:
            folder, new = self._locked(locks, reporter)
            yield folder, new

    def _locked(self, locks: contextlib.ExitStack, reporter: Reporter) -> tuple[RunFolder, bool]:
        while True:
            with self.store.opening():
                shared = None if self.fresh or self.settings.start else self._being_made()
                if shared is None:
                    return self._begun(locks)
            with contextlib.suppress(NoSuchRun), _waiting(reporter, shared):  # it may be given up
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
def _waiting(reporter: Reporter, folder: RunFolder) -> Iterator[None]:
    """Say which run is waited for, and from time to time how far it is. Ctrl-C ends the waiting, not that run."""
    worker = folder.worker or "another process"

    def still(seconds: float) -> None:
        with contextlib.suppress(StoreError, OSError):
            attempts = len(folder.load().attempts)
            reporter.remind(f"{folder.id}: {attempts} attempts so far, waited for {seconds_words(seconds)}")

    try:
        reporter.say(f"{folder.id}, which {worker} is making for the same request: waiting for it", "run")
        with reporter.live(f"waiting for run {folder.id} of {worker}"), reminding(still):
            yield
    except KeyboardInterrupt as error:
        error.add_note(f"run {folder.id} of {worker} goes on")
        raise


# -- a Python object by its name: --

_NAMED = re.compile(
    r"(?P<module>[A-Za-z_]\w*(?:\.\w+)*):(?P<name>[A-Za-z_][\w.]*)(?:\((?P<arguments>.*)\))?", re.DOTALL
)


def is_named_object(text: str) -> bool:
    """Whether a request is `package.module:Name`, and no words: what stands before the colon can be imported.

    Raises `BadArgument` for what cannot be words either, since a model would be paid to read it.
    """
    text = text.strip()
    place, colon, _ = text.partition(":")
    if not colon or place.endswith(".py") or Path(text).exists():
        return False
    found = _NAMED.fullmatch(text)
    if found is not None and _is_installed(found["module"].partition(".")[0]):
        return True
    if re.search(r"\s", place):
        return False
    if found is None and "(" in text and text.count("(") != text.count(")"):
        raise BadArgument(f"{text}: a bracket is not closed; write PACKAGE.MODULE:NAME(ARGUMENTS)")
    if re.search(r"\s", text.partition("(")[0]):
        return False
    raise BadArgument(f"{text}: no package called {place} can be imported; write PACKAGE.MODULE:NAME or FILE.py:NAME")


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def named_object(text: str) -> Any:
    """`package.module:Name` or `package.module:Name(64, eps=1e-5)`; arguments may use what the module has imported.

    A class without brackets is made without arguments.
    """
    found = _NAMED.fullmatch(text.strip())
    assert found is not None
    try:
        module = importlib.import_module(found["module"])
    except Exception as error:  # whatever somebody's module raises
        raise BadArgument(f"{text}: {found['module']} cannot be imported: {type(error).__name__}: {error}") from None
    value: Any = module
    for name in found["name"].split("."):
        if not hasattr(value, name):
            raise BadArgument(f"{text}: {getattr(value, '__name__', value)} has no {name}")
        value = getattr(value, name)
    if found["arguments"] is None and not isinstance(value, type):
        return value
    if not callable(value):
        raise BadArgument(f"{text}: {found['name']} is a {type(value).__name__}, which takes no arguments")
    return _called(text, module, found["name"], found["arguments"] or "")


def _called(text: str, module: types.ModuleType, name: str, arguments: str) -> Any:
    import torch

    try:
        torch.manual_seed(0)
        return eval(f"{name}({arguments})", {"torch": torch, **vars(module)})
    except SyntaxError:
        raise BadArgument(f"{text}: {arguments!r} are no arguments of a call; write them as in Python") from None
    except Exception as error:  # whatever somebody's constructor raises
        raise BadArgument(f"{text} fails: {type(error).__name__}: {' '.join(str(error).split())}") from None


def installed_name(text: str) -> str:
    """`package.module:Name(...)` for a name in a file of an installed package; any other text as it is."""
    path, mark, name = text.strip().partition(".py:")
    if not mark or not Path(f"{path}.py").is_file():
        return text
    place = Path(path).expanduser().resolve()
    for folder in map(Path, sys.path):
        if folder.name in INSTALLED and place.is_relative_to(folder.resolve()):
            return f"{'.'.join(place.relative_to(folder.resolve()).parts)}:{name}"
    return text


def resolved(request: Request) -> Request:
    """A request with the source of the object it names; any other as it is."""
    text = installed_name(request.text)
    if request.function or not is_named_object(text):
        return request
    from tilewright.frontends.api.objects import object_request  # needs torch, which takes seconds to import

    found = object_request(named_object(text), request.shapes, request.numbers, request.values).request
    return replace(
        request, text=found.text, shapes=found.shapes, values=found.values, function=found.function, module=found.module
    )
