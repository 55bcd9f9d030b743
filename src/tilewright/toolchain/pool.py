"""Resident compile children, one per core: started when first needed, limited, replaced when they die.

A compilation that hangs, explodes or kills its compiler ends its child and nothing else. Safe to use from several
threads. A forked copy of this process starts children of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass

from tilewright.records import Build, BuildFailure, BuildRequest, FailureReason, RecordError, to_json
from tilewright.toolchain.errors import ToolchainError
from tilewright.toolchain.stored_form import Stored, from_stored
from tilewright.toolchain.wire import ANSWER_HEADER, FAULT, REQUEST_HEADER

_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "TILEWRIGHT_CUTLASS_INCLUDE")
_MEMORY_WORDS = re.compile(rb"bad_alloc|out of memory|memory exhausted|Cannot allocate memory", re.IGNORECASE)
_KEEP_BELOW_BYTES = 1 << 30  # a child that stays larger than this between builds is replaced


@dataclass(frozen=True)
class BuildLimits:
    """What one compilation may take. A CuTe kernel needs up to a minute and a gigabyte."""

    seconds: float = 180.0
    memory_bytes: int = 4 << 30
    answer_bytes: int = 512 << 20


class _Died(Exception):
    """The child closed its pipe before it had answered."""


class _TooSlow(Exception):
    pass


class _TooLarge(Exception):
    pass


class _Child:
    """One child process and the pipes to it."""

    def __init__(self) -> None:
        self._errors = os.memfd_create("tilewright-compile-errors")
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path if place),
        }
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tilewright.toolchain.child", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd="/",
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            os.close(self._errors)
            raise ToolchainError(f"a compile child cannot be started: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout

    def ask(self, message: bytes, limits: BuildLimits) -> tuple[bytes, Stored]:
        """Send one request and wait for its answer."""
        deadline = time.monotonic() + limits.seconds
        try:
            # The child reads a whole request before it does anything, so this cannot wait for long.
            view = memoryview(REQUEST_HEADER.pack(len(message)) + message)
            while view:
                view = view[os.write(self._requests.fileno(), view) :]
        except BrokenPipeError:
            raise _Died from None
        kind, *sizes = ANSWER_HEADER.unpack(self._read(ANSWER_HEADER.size, deadline))
        if sum(sizes) > limits.answer_bytes:
            raise _TooLarge
        record, cubin, ptx = (self._read(size, deadline) for size in sizes)
        return kind, Stored(record, cubin, ptx)

    def _read(self, size: int, deadline: float) -> bytes:
        parts = []
        poll = select.poll()
        poll.register(self._answers.fileno(), select.POLLIN)
        while size:
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                raise _TooSlow
            part = os.read(self._answers.fileno(), min(size, 1 << 20))
            if not part:
                raise _Died
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def resident_bytes(self) -> int:
        try:
            with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def end(self) -> tuple[int, int, bytes]:
        """Kill it, if it still lives, and clean up: exit code, largest resident size, what it had said last."""
        peak_bytes = 0
        self.process.kill() if self.process.returncode is None else None
        try:
            _, status, usage = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            peak_bytes = usage.ru_maxrss * 1024
        except ChildProcessError:
            pass  # someone else has waited for it
        said = os.pread(self._errors, 1 << 20, 0)[-4000:]
        self.abandon()
        return self.process.returncode or 0, peak_bytes, said

    def abandon(self) -> None:
        """Close our ends of the pipes. The process itself is left alone."""
        self._requests.close()
        self._answers.close()
        os.close(self._errors)


class CompilePool:
    """A fixed number of compile children. `run` may be called from any thread; `close` ends them all."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size or len(os.sched_getaffinity(0))
        self._condition = threading.Condition()
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        _pools.add(self)

    def run(self, request: BuildRequest, key: str, limits: BuildLimits) -> Build | BuildFailure:
        """Compile one request in a child. Whatever the source does to the compiler comes back as a failure."""
        message = {
            "request": to_json(request),
            "key": key,
            "memory_bytes": limits.memory_bytes,
            "seconds": limits.seconds,
        }
        encoded = json.dumps(message).encode()
        for attempt in range(2):
            started = time.monotonic()
            child, was_used = self._take()
            try:
                kind, stored = child.ask(encoded, limits)
                result = None if kind == FAULT else from_stored(stored)
            except (_Died, _TooSlow, _TooLarge, RecordError) as error:
                exit_code, peak_bytes, said = self._drop(child)
                quick = time.monotonic() - started < 0.05
                if isinstance(error, _Died) and was_used and quick and attempt == 0:
                    continue  # it had died while idle; the source is not to blame
                reason = _reason(error, exit_code, peak_bytes, said, limits)
                if said.startswith(b"Traceback") or b"No module named" in said:
                    raise ToolchainError(f"a compile child failed: {said.decode(errors='replace').strip()}") from None
                seconds = time.monotonic() - started
                return BuildFailure(key, request.arch, reason, (), said.decode(errors="replace"), seconds)
            except BaseException:
                self._drop(child)
                raise
            self._give_back(child)
            if result is None:
                raise ToolchainError(stored.record.decode(errors="replace"))
            return result
        raise ToolchainError("compile children die as soon as they are started; see the system's log for the reason")

    def close(self) -> None:
        """End every child. The pool can be used again; it then starts new ones."""
        with self._condition:
            children = [*self._idle, *self._busy]
            self._idle.clear()
        for child in children:
            child.process.kill()
            if child not in self._busy:
                child.end()

    def child_pids(self) -> tuple[int, ...]:
        """Process ids of the children that exist now."""
        with self._condition:
            return tuple(child.process.pid for child in (*self._idle, *self._busy))

    def _take(self) -> tuple[_Child, bool]:
        with self._condition:
            while not self._idle and len(self._busy) >= self.size:
                self._condition.wait()
            used = bool(self._idle)
            child = self._idle.pop() if used else _Child()
            self._busy.add(child)
            return child, used

    def _give_back(self, child: _Child) -> None:
        if child.resident_bytes() > _KEEP_BELOW_BYTES:
            self._drop(child)
            return
        with self._condition:
            self._busy.discard(child)
            self._idle.append(child)
            self._condition.notify()

    def _drop(self, child: _Child) -> tuple[int, int, bytes]:
        ended = child.end()
        with self._condition:
            self._busy.discard(child)
            self._condition.notify()
        return ended

    def _forget(self) -> None:
        """In a forked copy: the children belong to the process that was copied."""
        children = [*self._idle, *self._busy]
        self._condition = threading.Condition()
        self._idle, self._busy = [], set()
        for child in children:
            child.process.returncode = 0  # not ours to wait for
            child.abandon()


def _reason(error: Exception, exit_code: int, peak_bytes: int, said: bytes, limits: BuildLimits) -> FailureReason:
    if isinstance(error, _TooSlow) or exit_code == -signal.SIGXCPU:
        return FailureReason.TIME
    if isinstance(error, _TooLarge) or _MEMORY_WORDS.search(said):
        return FailureReason.MEMORY
    if isinstance(error, _Died) and peak_bytes > limits.memory_bytes // 2:
        return FailureReason.MEMORY
    return FailureReason.CRASH


_pools: weakref.WeakSet[CompilePool] = weakref.WeakSet()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _forget_all() -> None:
    for pool in list(_pools):
        pool._forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
