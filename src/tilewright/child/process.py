"""`SupervisedChild`: one child from the parent's side: starting it, talking to it within limits, ending it.

The child is any program that opens its side with `inside`. Everything it may do - answer, hang, die, babble, take too
much - becomes a value here; what that means is its owner's business.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from tilewright.child import family
from tilewright.child.envelope import LARGEST_BODY, Envelope, EnvelopeError, EnvelopeStream, EnvelopeTooLarge
from tilewright.child.environment import MOST_FILES, child_environment, files_below, make_home, remove_home

T = TypeVar("T")

TICK_S = 0.1  # how often limits are looked at while nothing arrives
OWN_MEMORY_S = 0.1  # between two looks at the child's memory, however many messages pass
WHOLE_MEMORY_S = 0.5  # between two looks at that of all that it started too
MOST_PROCESSES = 512  # that it may have started and that still run
DYING_WAIT_S = 10.0  # a process that dies by itself has its CUDA context torn down too
END_WAIT_S = 20.0  # a process whose kernel hangs can outlive SIGKILL until the driver has torn its context down
_READ_BYTES = 1 << 20
_LAST_WORDS_BYTES = 4096


def uninterrupted() -> bool:
    """For who never has to stop."""
    return False


class Interrupted(Exception):
    """The caller asked for an end while something was in hand; the child is gone, there is no outcome."""


_stop: ContextVar[Callable[[], bool]] = ContextVar("stop", default=uninterrupted)


@contextlib.contextmanager
def stopped_when(asked: Callable[[], bool]) -> Iterator[None]:
    """Within it, whatever waits for any child ends with `Interrupted` once `asked` says yes. A thread that is started
    within it has to be given the context."""
    token = _stop.set(asked)
    try:
        yield
    finally:
        _stop.reset(token)


def check_stop() -> None:
    """For who waits for something else than a child: raises `Interrupted` where `stopped_when` has it so."""
    if _stop.get()():
        raise Interrupted


class EndedBy(Enum):
    TIME = "time"  # ours: past the seconds it was given
    MEMORY = "memory"  # ours: past the bytes it may hold, or answer with
    DEATH = "death"  # its own, or somebody's signal
    BABBLE = "babble"  # it sent what is no answer


@dataclass(frozen=True)
class Ended:
    """A child that is no more."""

    by: EndedBy
    status: int | None  # as `Popen.returncode`; None while it cannot be reaped
    detail: str  # the limit and the value, or what was wrong
    last_words: str  # the end of its standard error
    peak_bytes: int  # the most memory it held itself; 0 where that is not known

    @property
    def signal_name(self) -> str | None:
        if self.status is None or self.status >= 0:
            return None
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


class SupervisedChild:
    """A started child. Not safe for several threads at once but for `alive` and `kill`; its owner holds a lock.

    `resident_bytes` bounds what it and all that it started hold in memory; None: nothing does. `answer_bytes` bounds
    one message. `interrupt` is asked ten times a second; when it says yes, what is in hand is abandoned with
    `Interrupted`. Raises `OSError` where the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        resident_bytes: int | None,
        answer_bytes: int = LARGEST_BODY,
        environment: Mapping[str, str] | None = None,
        interrupt: Callable[[], bool] = uninterrupted,
    ) -> None:
        self._resident_limit = resident_bytes
        self.interrupt = interrupt  # whoever takes a child over may have another
        self._home = make_home()
        self._remove_home = weakref.finalize(self, remove_home, self._home, os.getpid())
        self._replies, replies_end = os.pipe()
        arguments = [*command, "--replies", str(replies_end)]
        # The kernel sends the parent-death signal when the *thread* that started the child ends, so only the main
        # thread, which ends with the process, may ask for it; the closed pipe serves in every case.
        if threading.current_thread() is threading.main_thread():
            arguments += ["--parent", str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(replies_end,),
                cwd=self._home,
                env=child_environment(self._home) | dict(environment or {}),
                start_new_session=True,
            )
        except OSError:
            os.close(self._replies)
            self._remove_home()
            raise
        finally:
            os.close(replies_end)
        self._stream = EnvelopeStream(answer_bytes)
        self._arrived: deque[Envelope] = deque()
        self._last_words = bytearray()
        self._nonsense: EnvelopeError | None = None
        self._silent = False  # its reply pipe is closed
        self._over = False
        self._peak_bytes = 0
        self._reaping = threading.Lock()
        self._next_look = self._next_whole_look = 0.0
        self._open_pipes()
        _children.add(self)

    def _open_pipes(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._requests = self._process.stdin.fileno()
        self._errors = self._process.stderr.fileno()
        self._selector = selectors.PollSelector()  # has no descriptor of its own that a forked copy would share
        for descriptor in (self._replies, self._errors):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        os.set_blocking(self._requests, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs still. The first to find that it does not takes note of how it ended."""
        with self._reaping:
            if self._process.returncode is None:
                try:
                    pid, status, usage = os.wait4(self.pid, os.WNOHANG)
                except ChildProcessError:  # somebody else has waited for it
                    self._process.returncode = 0
                else:
                    if pid:
                        self._process.returncode = os.waitstatus_to_exitcode(status)
                        self._peak_bytes = usage.ru_maxrss * 1024
            return self._process.returncode is None

    @property
    def held_bytes(self) -> int:
        """What it holds in memory itself."""
        return family.resident_bytes((self.pid,))

    # -- conversation --

    def converse(self, payload: bytes, seconds: float, heard: Callable[[Envelope], T | None]) -> T | Ended:
        """Send something, and give `heard` what arrives until it makes something of a message, within `seconds`.

        `heard` may raise `EnvelopeError`. Raises `Interrupted` when asked to stop. After either, and after any other
        error, the child is gone, as it is where `Ended` comes back.
        """
        deadline = time.monotonic() + seconds
        unsent = memoryview(payload)
        try:
            while True:
                check_stop()
                if not (self._arrived or self._nonsense):
                    unsent = self._exchange(unsent)
                while self._arrived:
                    made = heard(self._arrived.popleft())
                    if made is not None:
                        return made
                if self._nonsense is not None:
                    raise self._nonsense
                ended = self._past_limits(deadline, seconds)
                if ended is not None:
                    return ended
                if self.interrupt():
                    raise Interrupted
        except EnvelopeTooLarge as error:
            return self._ended(EndedBy.MEMORY, f"what it sent is too much: {error}")
        except EnvelopeError as error:
            return self._ended(EndedBy.BABBLE, f"what it sent is no message: {error}")
        except BaseException:
            self.end()
            raise

    def _exchange(self, unsent: memoryview) -> memoryview:
        """Write what can be written, read what has come, wait at most one tick."""
        writing = bool(unsent) and not self._silent
        if writing:
            self._selector.register(self._requests, selectors.EVENT_WRITE)
        try:
            ready = {key.fd for key, _ in self._selector.select(TICK_S)}
        finally:
            if writing:
                self._selector.unregister(self._requests)
        if self._errors in ready and not self._hear_errors():
            self._selector.unregister(self._errors)
        if self._replies in ready and not self._hear_replies():
            self._selector.unregister(self._replies)
            self._silent = True
        if self._requests in ready:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):  # a death shows elsewhere
                return unsent[os.write(self._requests, unsent[:_READ_BYTES]) :]
        return unsent

    def _hear_errors(self) -> bool:
        words = os.read(self._errors, _READ_BYTES)
        self._last_words += words
        del self._last_words[:-_LAST_WORDS_BYTES]
        return bool(words)

    def _hear_replies(self) -> bool:
        received = os.read(self._replies, _READ_BYTES)
        try:
            self._arrived.extend(self._stream.feed(received))
        except EnvelopeError as error:
            self._nonsense = error  # what came before it is heard first
        return bool(received)

    def _past_limits(self, deadline: float, seconds: float) -> Ended | None:
        now = time.monotonic()
        if self._silent or not self.alive:
            # What it had said. The pipes may stay open in the hands of what it started, so nothing waits.
            with contextlib.suppress(BlockingIOError):
                while self._hear_replies():
                    pass
            return None if self._arrived or self._nonsense else self._ended(EndedBy.DEATH, "")
        if now > deadline:
            return self._ended(EndedBy.TIME, f"nothing came within {seconds:g} s")
        if self._resident_limit is None or now < self._next_look:
            return None
        self._next_look = now + OWN_MEMORY_S
        held = self.held_bytes
        if now >= self._next_whole_look:
            self._next_whole_look = now + WHOLE_MEMORY_S
            below = family.descendants(self.pid)
            if len(below) > MOST_PROCESSES:
                return self._ended(EndedBy.MEMORY, f"it has {len(below)} processes and may have {MOST_PROCESSES}")
            held += family.resident_bytes(below)
            files, on_disk = files_below(self._home)
            if files > MOST_FILES or on_disk > self._resident_limit:
                detail = f"its folder has {files} files of {on_disk >> 20} MiB together; {MOST_FILES} files and "
                return self._ended(EndedBy.MEMORY, f"{detail}{self._resident_limit >> 20} MiB are allowed")
        if held <= self._resident_limit:
            return None
        limits = f"it held {held >> 20} MiB of host memory and may hold {self._resident_limit >> 20} MiB"
        return self._ended(EndedBy.MEMORY, limits)

    # -- ending --

    def _ended(self, by: EndedBy, detail: str) -> Ended:
        # One that dies gets the moment dying takes, so that its own status is seen and not our signal.
        if by is EndedBy.DEATH and not self._await_end(DYING_WAIT_S):
            by, detail = EndedBy.BABBLE, "it closed its pipe and stayed"
        self.end()
        status = self._process.returncode
        if status is None:
            detail += f"; process {self.pid} has not ended {END_WAIT_S:g} s after SIGKILL"
        elif by is EndedBy.DEATH:
            detail = f"it ended with exit status {status}" if status >= 0 else "it died"
        words = bytes(self._last_words).decode("utf-8", "replace").strip()
        return Ended(by, status, detail, words, self._peak_bytes)

    def _await_end(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def kill(self) -> None:
        """Have it die; whoever talks to it sees its death. Safe from any thread."""
        if self.alive:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it and everything it started, give back its pipes, remove its home. Returns within `END_WAIT_S`."""
        if self._over:
            return
        self._over = True
        lived = self.alive
        if lived:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGSTOP)  # it starts nothing more
                family.kill_below(self.pid)
                os.killpg(self.pid, signal.SIGKILL)
            self._await_end(END_WAIT_S)
        if not lived or self._process.returncode not in (None, -signal.SIGKILL):  # it died before we came
            family.kill_strays(self.pid, self._home)
        with contextlib.suppress(OSError):
            self._hear_errors()
        self._close()
        self._remove_home()

    def _close(self) -> None:
        _children.discard(self)
        self._selector.close()
        os.close(self._replies)
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _leave_to_parent(self) -> None:
        """In a forked copy of the process that started it: neither the child nor its home is ours."""
        self._over = True
        self._reaping = threading.Lock()
        self._process.returncode = 0
        self._close()


_children: weakref.WeakSet[SupervisedChild] = weakref.WeakSet()


def _leave_all() -> None:
    for child in list(_children):
        child._leave_to_parent()


# A copy that kept the pipes open would keep the children alive after their parent's death.
os.register_at_fork(after_in_child=_leave_all)
