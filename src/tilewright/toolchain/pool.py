"""A pool of compile children, one per core: started on demand, limited, replaced when they die.

A compilation that hangs, exhausts memory or crashes the compiler ends only its child. Thread-safe and fork-safe.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import threading
import time
import weakref
from dataclasses import dataclass

from tilewright.child.envelope import message, message_in
from tilewright.child.process import Ended, EndedBy, SupervisedChild
from tilewright.records import Build, BuildFailure, BuildRequest, FailureReason
from tilewright.toolchain.nvrtc import ToolchainError

_PROGRAM = (sys.executable, "-m", "tilewright.toolchain.compile_child")
_MEMORY_WORDS = re.compile("bad_alloc|out of memory|memory exhausted|Cannot allocate memory", re.IGNORECASE)
_KEEP_BELOW_BYTES = 1 << 30  # larger idle children are replaced
_ANSWER_BYTES = 512 << 20


@dataclass(frozen=True)
class BuildLimits:
    """Limits of one compilation. A CuTe kernel needs up to a minute and a gigabyte."""

    seconds: float = 180.0
    memory_bytes: int = 4 << 30


@dataclass(frozen=True)
class CompileRequest:
    """A request to a child, with its limits."""

    request: BuildRequest
    key: str
    memory_bytes: int
    seconds: float


@dataclass(frozen=True)
class ToolchainFault:
    """A child's answer for a fault of the toolchain."""

    message: str


CompileAnswer = Build | BuildFailure | ToolchainFault


class CompilePool:
    """A fixed number of compile children. `run` may be called from any thread; `close` ends them all."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size or len(os.sched_getaffinity(0))
        self._condition = threading.Condition()
        self._idle: list[SupervisedChild] = []
        self._busy: set[SupervisedChild] = set()
        _pools.add(self)

    def run(self, request: BuildRequest, key: str, limits: BuildLimits) -> Build | BuildFailure:
        """Compile one request in a child; a crash of the compiler is returned as a failure."""
        asked = message(CompileRequest(request, key, limits.memory_bytes, limits.seconds))
        started = time.monotonic()
        child = self._take()
        try:
            # Memory is limited by the kernel (RLIMIT_AS): a compiler grows faster than polling notices.
            answer: CompileAnswer | Ended = child.converse(
                asked, limits.seconds, lambda envelope: message_in(envelope, CompileAnswer)
            )
        except BaseException:
            self._drop(child)
            raise
        if isinstance(answer, Ended):
            self._drop(child)
            if answer.last_words.startswith("Traceback") or "No module named" in answer.last_words:
                raise ToolchainError(f"a compile child failed: {answer.last_words}")
            reason = _reason(answer, limits)
            return BuildFailure(key, request.arch, reason, (), answer.last_words, time.monotonic() - started)
        if child.held_bytes > _KEEP_BELOW_BYTES:
            self._drop(child)
        else:
            with self._condition:
                self._busy.discard(child)
                self._idle.append(child)
                self._condition.notify()
        if isinstance(answer, ToolchainFault):
            raise ToolchainError(answer.message)
        return answer

    def close(self) -> None:
        """End every child. The pool can be used again."""
        with self._condition:
            idle, busy = list(self._idle), list(self._busy)
            self._idle.clear()
        for child in busy:
            child.kill()  # its waiting thread sees the death
        for child in idle:
            child.end()

    def child_pids(self) -> tuple[int, ...]:
        """The children's process ids."""
        with self._condition:
            return tuple(child.pid for child in (*self._idle, *self._busy))

    def _take(self) -> SupervisedChild:
        with self._condition:
            while not self._idle and len(self._busy) >= self.size:
                self._condition.wait()
            child = self._idle.pop() if self._idle else _start()
            if not child.alive:  # it died while idle
                child.end()
                child = _start()
            self._busy.add(child)
            return child

    def _drop(self, child: SupervisedChild) -> None:
        child.end()
        with self._condition:
            self._busy.discard(child)
            self._condition.notify()


def _start() -> SupervisedChild:
    environment = {
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        # The child must find the toolkit's wheels where this process would.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path if place),
    }
    try:
        return SupervisedChild(_PROGRAM, resident_bytes=None, answer_bytes=_ANSWER_BYTES, environment=environment)
    except OSError as error:
        raise ToolchainError(f"a compile child cannot be started: {error}") from error


def _reason(ended: Ended, limits: BuildLimits) -> FailureReason:
    if ended.by is EndedBy.TIME or ended.status == -signal.SIGXCPU:
        return FailureReason.TIME
    if ended.by is EndedBy.MEMORY or _MEMORY_WORDS.search(ended.last_words):
        return FailureReason.MEMORY
    if ended.by is EndedBy.DEATH and ended.peak_bytes > limits.memory_bytes // 2:
        return FailureReason.MEMORY
    return FailureReason.CRASH


_pools: weakref.WeakSet[CompilePool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _forget_children() -> None:  # in a forked process: they belong to its parent
    for pool in list(_pools):
        pool._condition = threading.Condition()
        pool._idle, pool._busy = [], set()


os.register_at_fork(after_in_child=_forget_children)
