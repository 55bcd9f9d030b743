"""`Reference`: a function of a user's PyTorch source in a child process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable
from compileall import compile_dir
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tilewright.child.boundary import Wall
from tilewright.child.envelope import Envelope, message
from tilewright.child.process import Ended, EndedBy, SupervisedChild, uninterrupted
from tilewright.devices.protocol import Closing, Device
from tilewright.records import Execution, Job
from tilewright.reference import loading, spares
from tilewright.reference.protocol import ReferenceProblem

# -- torch.compile's cache --

KEPT = 256  # folders; the least recently used are removed
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def compile_cache(source: str) -> Path | None:
    """The cache folder of a source, created and marked as used; None where it cannot be created."""
    root = _root()
    folder = root / hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:20]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # another process may clean up too
        folders = sorted(root.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in folders[: max(len(folders) - KEPT, 0)]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _root() -> Path:
    """Beside the builds: see `toolchain.cache`."""
    named = os.environ.get("TILEWRIGHT_CACHE")
    builds = Path(named).expanduser() if named else Path.home() / ".cache" / "tilewright" / "builds"
    return builds.with_name("compiled" if named is None else f"{builds.name}-compiled")


_PROGRAM = (sys.executable, "-m", "tilewright.reference.reference_child")
T = TypeVar("T")


@dataclass(frozen=True)
class ReferenceLimits:
    """Resource limits of a reference. Time is limited per call."""

    resident_bytes: int = 8 << 30  # of the child and its descendants
    address_bytes: int = 8 << 30  # beyond torch's own; not applied with `gpu`
    file_bytes: int = 1 << 30  # of any file it writes
    load_seconds: float = 30.0  # for the source's top-level code
    start_seconds: float = 180.0  # for Python and torch
    threads: int = 0  # of torch; 0: one per core, at most 8
    gpu: bool = False  # whether it sees this machine's GPUs; CUDA needs an unlimited address space
    gpu_index: int | None = None  # the only GPU that it sees; None: all

    @classmethod
    def on_gpu(cls, index: int | None = None) -> ReferenceLimits:
        """For a reference that runs on a GPU at full size: staging and compilers need more host memory."""
        return cls(resident_bytes=64 << 30, gpu=True, gpu_index=index)

    @property
    def visible_gpus(self) -> str | None:
        """CUDA_VISIBLE_DEVICES of the child; None: as here."""
        if not self.gpu:
            return ""
        if self.gpu_index is None:
            return None
        here = os.environ.get("CUDA_VISIBLE_DEVICES")
        if here is None:
            return str(self.gpu_index)
        named = here.split(",")
        return named[self.gpu_index] if self.gpu_index < len(named) else ""


class Reference(Closing):
    """A function that `source` defines, in a child process that starts at once and is replaced when it dies.

    Importing torch takes seconds, so start one early and keep it. Threads may share it; calls are serialised.
    It runs inside a boundary (`child.boundary`): it has a folder of its own, the installed packages, and the source
    files in `folder`. `programs`: it may start programs in there, as one that sees a GPU may, for torch.compile.
    `interrupt` is polled ten times a second; when it returns true, the current call is abandoned with `Interrupted`.
    """

    def __init__(
        self,
        source: str,
        function: str,
        *,
        limits: ReferenceLimits | None = None,
        folder: str | os.PathLike[str] = "",
        programs: bool = False,
        interrupt: Callable[[], bool] = uninterrupted,
    ) -> None:
        self._interrupt = interrupt
        self._limits = limits or ReferenceLimits()
        threads = self._limits.threads or min(len(os.sched_getaffinity(0)), 8)
        bound = None if self._limits.gpu else self._limits.address_bytes
        place = os.path.abspath(folder) if os.fspath(folder) else ""
        cache = compile_cache(source) if self._limits.gpu else None
        environment = ((VARIABLE, str(cache)),) if cache is not None else ()
        folders = (*((place,) if place else ()), *loading.searched_folders(source))
        wall = Wall(folders, (str(cache),) if cache else (), programs or self._limits.gpu, self._limits.gpu)
        self._setup = loading.ReferenceSetup(
            source, function, place, threads, bound, self._limits.file_bytes, wall, environment, self._limits.gpu
        )
        self._lock = threading.Lock()
        self._closed = False
        self._loaded = False
        self._child: SupervisedChild | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        """The child's process id; None where there is none now."""
        return self._child.pid if self._child is not None and self._child.alive else None

    def call(self, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0) -> T:
        """Run `handler` in the child and return its answer.

        `handler` is "tilewright.part.module:name", a function `(function, request) -> answer` with annotations. Raises
        `ReferenceProblem` where the reference is at fault, and `RuntimeError` where the handler is.
        """
        envelope = self.exchange(message(loading.HandlerRequest(handler), request), seconds)
        made: T = loading.answer_in(envelope, handler, answer)
        return made

    def call_on_run(
        self, device: Device, job: Job, handler: str, request: Any, answer: type[T] | Any, seconds: float = 60.0
    ) -> tuple[Execution, T | None]:
        """Run a job on a device of this machine, then `handler` on its results; see `call`."""
        execution = device.execute(job)
        results = loading.results_of(execution)
        if not results:
            return execution, None
        asked = message(loading.HandlerRequest(handler, results), request)
        return execution, loading.answer_in(self.exchange(asked, seconds), handler, answer)

    def exchange(self, payload: bytes, seconds: float) -> Envelope:
        """Send a sealed request unchanged, and return the child's reply.

        Raises `ReferenceProblem` where the child exceeded a limit, died, or sent an unreadable reply.
        """
        with self._lock:
            return _converse(self._ready_child(), payload, seconds, "answering")[0]

    def check(self) -> None:
        """Wait until the function is loaded; raises `ReferenceProblem` where it cannot be."""
        with self._lock:
            self._ready_child()

    @property
    def sees_gpu(self) -> bool:
        """Whether the function may use this machine's GPUs."""
        return self._limits.gpu

    def close(self) -> None:
        """End the child and its descendants."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.end()
                self._child = None

    def _start(self) -> SupervisedChild:
        self._loaded = False
        self._child = spares.take_spare(_key(self._limits)) or _started(self._limits)
        self._child.interrupt = self._interrupt
        return self._child

    def _ready_child(self) -> SupervisedChild:
        if self._closed:
            raise RuntimeError("the reference is closed")
        child = self._child
        if child is None or (self._loaded and not child.alive):
            if child is not None:
                child.end()  # closes its pipes
            child = self._start()
        if not self._loaded:
            try:
                self._load(child)
            except BaseException:
                child.end()
                self._child = None
                raise
            self._loaded = True
        return child

    def _load(self, child: SupervisedChild) -> None:
        payload = message(self._setup)
        for seconds, doing, wanted in (
            (self._limits.start_seconds, "while Python and torch started", loading.TorchImported),
            (self._limits.load_seconds, "while it was imported", loading.ReferenceLoaded),
        ):
            _, reply = _converse(child, payload, seconds, doing)
            payload = b""
            if isinstance(reply, loading.ReferenceFault):
                raise ReferenceProblem(reply.message)
            if isinstance(reply, loading.HandlerFault):
                raise RuntimeError(f"the reference's process cannot start: {reply.traceback}")
            if not isinstance(reply, wanted):
                raise ReferenceProblem(f"the reference's process answered {type(reply).__name__} {doing}")


def start_ahead(*kinds: ReferenceLimits) -> None:
    """Start a spare child of each kind, if this program wants them: see `spares`."""
    for limits in kinds if spares.spares_are_wanted() else ():
        spares.keep_spare(_key(limits), _started(limits))


@cache
def _compile_ahead() -> None:
    """Have this package compiled to bytecode on the side: a child behind the boundary cannot keep what it compiles."""
    if not sys.dont_write_bytecode:
        package = Path(__file__).parents[1]
        threading.Thread(target=compile_dir, args=(package,), kwargs={"quiet": 2}, daemon=True).start()


def _started(limits: ReferenceLimits) -> SupervisedChild:
    _compile_ahead()
    held = limits.resident_bytes
    return SupervisedChild(_PROGRAM, resident_bytes=held, answer_bytes=held, environment=_environment(limits))


def _environment(limits: ReferenceLimits) -> dict[str, str]:
    # Spinning threads starve others on a busy machine.
    environment = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    if limits.visible_gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = limits.visible_gpus
    return environment


def _key(limits: ReferenceLimits) -> spares.Key:
    return tuple(sorted(_environment(limits).items())), limits.resident_bytes


def _converse(
    child: SupervisedChild, payload: bytes, seconds: float, doing: str
) -> tuple[Envelope, loading.ReferenceReply]:
    outcome = child.converse(payload, seconds, lambda envelope: (envelope, loading.reply_in(envelope)))
    if isinstance(outcome, Ended):
        raise ReferenceProblem(_obituary(outcome, seconds, doing))
    return outcome


def _obituary(ended: Ended, seconds: float, doing: str) -> str:
    if ended.by is EndedBy.TIME:
        return f"the reference took more than {seconds:g} s {doing}, and was ended"
    if ended.by is EndedBy.MEMORY:
        return f"the reference took too much {doing}, and was ended: {ended.detail}"
    if ended.by is EndedBy.BABBLE:
        return f"the reference's process gave no answer that can be read: {ended.detail}"
    how = f"was killed by {ended.signal_name}" if ended.signal_name else f"ended with exit status {ended.status}"
    words = ended.last_words.splitlines()
    return f"the reference's process {how} {doing}" + (f"; its last words: {words[-1][:300]}" if words else "")
