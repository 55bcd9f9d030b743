"""One child from the parent's side: starting it, talking to it within limits, ending it with all it started."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tilewright.devices.envelope import Envelope, EnvelopeError, Stream
from tilewright.devices.supervisor import Interrupted, child_environment
from tilewright.reference.problems import ReferenceProblem

TICK_S = 0.1  # how often limits are looked at while nothing arrives
_END_WAIT_S = 10.0
_SCAN_TICKS = 5  # every so many ticks the memory of all that the child started is added up
_READ_BYTES = 1 << 20
_LAST_WORDS_BYTES = 4096
_HOME_PREFIX = "tilewright-reference-"
_ABANDONED_S = 86400.0  # another machine's process may use the same folder for temporary files


class ChildProcess:
    """A started child. Not safe for several threads at once; its owner holds a lock."""

    def __init__(self, resident_bytes: int, visible_gpus: str | None, interrupt: Callable[[], bool]) -> None:
        self._resident_limit = resident_bytes
        self._interrupt = interrupt
        _remove_abandoned_homes()
        self._home = tempfile.TemporaryDirectory(prefix=f"{_HOME_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
        self._replies, replies_end = os.pipe()
        arguments = [sys.executable, "-m", "tilewright.reference.child", "--replies", str(replies_end)]
        # The parent-death signal comes when the *thread* that started the child ends, so only the main thread may ask
        # for it; the closed pipe serves in every case.
        if threading.current_thread() is threading.main_thread():
            arguments += ["--parent", str(os.getpid())]
        environment = child_environment(self._home.name)
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin starve others on a busy machine
        if visible_gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible_gpus
        try:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(replies_end,),
                cwd=self._home.name,
                env=environment,
                start_new_session=True,
            )
        except OSError:
            os.close(self._replies)
            self._home.cleanup()
            raise
        finally:
            os.close(replies_end)
        self._stream = Stream()
        self._arrived: deque[Envelope] = deque()
        self._last_words = bytearray()
        self._silent = False  # its reply pipe is closed
        self._ticks = 0
        self._open_pipes()

    def _open_pipes(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._requests = self._process.stdin.fileno()
        self._errors = self._process.stderr.fileno()
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._replies, self._errors):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        os.set_blocking(self._requests, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    # -- conversation --

    def converse(self, payload: bytes, seconds: float, doing: str) -> Envelope:
        """Send what is to be sent and wait for the next message.

        Raises `ReferenceProblem`, after which the child is gone: it took too long or too much, or died. So does
        `Interrupted`, where the owner has to stop.
        """
        deadline = time.monotonic() + seconds
        unsent = memoryview(payload)
        try:
            while True:
                unsent = self._exchange(unsent)
                if self._arrived:
                    return self._arrived.popleft()
                if self._silent or not self.alive:
                    self._hear_the_rest()
                    if self._arrived:
                        return self._arrived.popleft()
                    raise ReferenceProblem(self._obituary(doing))
                if time.monotonic() > deadline:
                    raise ReferenceProblem(f"the reference took more than {seconds:g} s {doing}, and was ended")
                if self._interrupt():
                    raise Interrupted
                self._check_memory(doing)
        except EnvelopeError as error:
            self.end()
            raise ReferenceProblem(f"the reference's process sent what is no answer: {error}") from None
        except BaseException:
            self.end()
            raise

    def _exchange(self, unsent: memoryview) -> memoryview:
        """Write what can be written, read what has come, wait at most one tick."""
        if unsent:
            self._selector.register(self._requests, selectors.EVENT_WRITE)
        try:
            ready = {key.fd for key, _ in self._selector.select(TICK_S)}
        finally:
            if unsent:
                self._selector.unregister(self._requests)
        if self._errors in ready:
            self._hear_errors()
        if self._replies in ready:
            self._hear_replies()
        if self._requests in ready:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):  # a death shows elsewhere
                return unsent[os.write(self._requests, unsent[:_READ_BYTES]) :]
        return unsent

    def _hear_errors(self) -> None:
        words = os.read(self._errors, _READ_BYTES)
        if not words:
            self._selector.unregister(self._errors)
        self._last_words += words
        del self._last_words[:-_LAST_WORDS_BYTES]

    def _hear_replies(self) -> None:
        received = os.read(self._replies, _READ_BYTES)
        if not received:
            self._selector.unregister(self._replies)
            self._silent = True
        self._arrived.extend(self._stream.feed(received))

    def _hear_the_rest(self) -> None:
        """What a dead child had said. The pipes may stay open in the hands of what it started, so nothing waits."""
        with contextlib.suppress(OSError):
            while received := os.read(self._replies, _READ_BYTES):
                self._arrived.extend(self._stream.feed(received))
        with contextlib.suppress(OSError):
            self._last_words += os.read(self._errors, _READ_BYTES)
            del self._last_words[:-_LAST_WORDS_BYTES]

    def _obituary(self, doing: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.poll()
        if status is None:
            how = "closed its pipe"
        elif status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        else:
            how = f"ended with exit status {status}"
        words = bytes(self._last_words).decode("utf-8", "replace").strip().splitlines()
        return f"the reference's process {how} {doing}" + (f"; its last words: {words[-1][:300]}" if words else "")

    def _check_memory(self, doing: str) -> None:
        self._ticks += 1
        every = self._ticks % _SCAN_TICKS == 0
        held = sum(map(_resident_bytes, self._members() if every else [self.pid]))
        if held > self._resident_limit:
            raise ReferenceProblem(
                f"the reference held {held >> 20} MiB of memory {doing} and may hold {self._resident_limit >> 20} MiB; "
                "it was ended"
            )

    def _members(self) -> list[int]:
        """The child and whatever it started: processes of its session, or with its home in their environment."""
        mark = f"HOME={self._home.name}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, IndexError, ValueError):
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session == self.pid or mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    # -- ending --

    def end(self) -> None:
        """Kill it and everything it started, and give back its pipes. May be called again."""
        if self._replies < 0:
            return
        for _ in range(3):  # what is being killed may fork once more
            members = self._members()
            for pid in members:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_WAIT_S)
            if not members:
                break
        self._selector.close()
        os.close(self._replies)
        self._replies = -1
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._home.cleanup()


def _remove_abandoned_homes() -> None:
    """Remove the homes whose owner was killed before it could."""
    for home in Path(tempfile.gettempdir()).glob(f"{_HOME_PREFIX}*"):
        owner = home.name.removeprefix(_HOME_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):  # not ours, or gone meanwhile
            old = time.time() - home.stat().st_mtime > _ABANDONED_S
            if old and owner.isdigit() and not Path("/proc", owner).exists():
                shutil.rmtree(home, ignore_errors=True)


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0  # gone
