"""One runner child: starting it, giving it a job, watching its time and memory, ending it.

The child is any program that speaks `messages` on the descriptor it is given and reads jobs from its standard input.
This module turns everything it may do - answer, hang, die, babble - into a value; what that means for a job is
`cuda_device`'s business.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import site
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tilewright.devices.envelope import EnvelopeError, Stream, seal_job
from tilewright.devices.messages import Finished, Progress, Ready, Unready, open_message
from tilewright.devices.protocol import DeviceError
from tilewright.records import Job

TICK_S = 0.1  # how often limits are looked at while nothing arrives
DYING_WAIT_S = 10.0  # a process that dies by itself has its context torn down too
END_WAIT_S = 20.0  # a process whose kernel hangs can outlive SIGKILL until the driver has torn its context down
HOME_PREFIX = "tilewright-runner-"
_READ_BYTES = 1 << 20
_LAST_WORDS_BYTES = 4096

# What a child needs to find its interpreter, its libraries and its GPU. Everything else, keys and tokens above all,
# stays with the parent.
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LANG", "TZ")
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_", "PYTORCH_", "TILEWRIGHT_", "LC_", "OMP_")
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")


class Interrupted(Exception):
    """The caller asked for an end while a job was in hand; the child is gone, the job has no outcome."""


class EndedBy(Enum):
    TIME = "time"  # ours: past the job's seconds
    MEMORY = "memory"  # ours: past the host's bytes
    DEATH = "death"  # its own, or somebody's signal
    BABBLE = "babble"  # it sent what no runner sends


@dataclass(frozen=True)
class Ended:
    """A child that is no more, and what it was doing."""

    by: EndedBy
    progress: Progress | None
    status: int | None  # as `Popen.returncode`; None while it cannot be reaped
    detail: str  # the limit and the value, or what was wrong
    last_words: str  # the end of its standard error

    @property
    def signal_name(self) -> str | None:
        if self.status is None or self.status >= 0:
            return None
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


def child_environment(home: str) -> dict[str, str]:
    """The environment of a child: enough to run, nothing to steal; its home is an empty folder of its own."""
    package_root = str(Path(__file__).resolve().parents[2])
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)) and not any(w in name for w in _SECRET_WORDS)
    }
    search = [package_root, *kept.get("PYTHONPATH", "").split(os.pathsep)]
    kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in search if entry)
    # Packages a user installed for himself are found by way of his home, which the child does not get to see.
    return kept | {"HOME": home, "TMPDIR": home, "PYTHONUSERBASE": site.getuserbase(), "PYTHONUNBUFFERED": "1"}


def _remove_abandoned_homes() -> None:
    """Remove the empty homes whose owner was killed before it could."""
    for home in Path(tempfile.gettempdir()).glob(f"{HOME_PREFIX}*"):
        owner = home.name.removeprefix(HOME_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):  # not empty, not ours, or gone meanwhile
                home.rmdir()


class RunnerChild:
    """A started child. Not safe for several threads at once; its owner holds a lock."""

    def __init__(self, command: Sequence[str], host_bytes: int) -> None:
        self._host_bytes = host_bytes
        _remove_abandoned_homes()
        self._home = tempfile.TemporaryDirectory(prefix=f"{HOME_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
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
                cwd=self._home.name,
                env=child_environment(self._home.name),
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._replies)
            self._home.cleanup()
            raise DeviceError(f"the runner {arguments[0]!r} cannot be started: {error.strerror or error}") from error
        finally:
            os.close(replies_end)
        self._stream = Stream()
        self._messages: deque[Ready | Unready | Finished] = deque()
        self._progress: Progress | None = None  # the last thing it said it would do for the present job
        self._last_words = bytearray()
        self._silent = False  # its reply pipe is closed
        self._over = False
        self._open_pipes()

    def _open_pipes(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._jobs = self._process.stdin.fileno()
        self._errors = self._process.stderr.fileno()
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._replies, self._errors):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        os.set_blocking(self._jobs, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    # -- conversation --

    def wait_ready(self, seconds: float, interrupt: Callable[[], bool]) -> Ready | Unready | Ended:
        """The child's first message, or its end."""
        outcome = self._converse(b"", seconds, interrupt)
        if isinstance(outcome, Finished):
            return self._ended(EndedBy.BABBLE, "it finished a job nobody gave it")
        return outcome

    def run(self, job: Job, interrupt: Callable[[], bool]) -> Finished | Ended:
        """Give it a job and wait for its end, within the job's seconds. Raises `Interrupted` when asked to."""
        outcome = self._converse(seal_job(job), job.limits.seconds, interrupt)
        if isinstance(outcome, (Finished, Ended)):
            return outcome
        return self._ended(EndedBy.BABBLE, f"it answered a job with {type(outcome).__name__}")

    def _converse(
        self, payload: bytes, seconds: float, interrupt: Callable[[], bool]
    ) -> Ready | Unready | Finished | Ended:
        deadline = time.monotonic() + seconds
        unsent = memoryview(payload)
        self._progress = None
        try:
            while True:
                unsent = self._exchange(unsent)
                if self._messages:
                    return self._messages.popleft()
                ended = self._past_limits(deadline, seconds)
                if ended is not None:
                    return ended
                if interrupt():
                    raise Interrupted
        except EnvelopeError as error:
            return self._ended(EndedBy.BABBLE, f"what it sent is no message: {error}")
        except BaseException:
            self.end()
            raise

    def _exchange(self, unsent: memoryview) -> memoryview:
        """Write what can be written, read what has come, wait at most one tick."""
        writing = bool(unsent) and not self._silent
        if writing:
            self._selector.register(self._jobs, selectors.EVENT_WRITE)
        try:
            ready = {key.fd for key, _ in self._selector.select(TICK_S)}
        finally:
            if writing:
                self._selector.unregister(self._jobs)
        if self._errors in ready:
            self._hear_errors()
        if self._replies in ready:
            self._hear_replies()
        if self._jobs in ready:
            try:
                return unsent[os.write(self._jobs, unsent[:_READ_BYTES]) :]
            except (BrokenPipeError, BlockingIOError):
                return unsent  # a death shows on the reply pipe
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
        for envelope in self._stream.feed(received):
            message = open_message(envelope)
            if isinstance(message, Progress):
                self._progress = message
            else:
                self._messages.append(message)

    def _past_limits(self, deadline: float, seconds: float) -> Ended | None:
        if self._silent:
            return self._ended(EndedBy.DEATH, "")
        if time.monotonic() > deadline:
            return self._ended(EndedBy.TIME, f"nothing came within {seconds:g} s")
        resident = self._resident_bytes()
        if resident > self._host_bytes:
            return self._ended(
                EndedBy.MEMORY,
                f"its process held {resident >> 20} MiB of host memory and may hold {self._host_bytes >> 20} MiB",
            )
        return None

    def _resident_bytes(self) -> int:
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0  # gone; the reply pipe says so next
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    # -- ending --

    def _ended(self, by: EndedBy, detail: str) -> Ended:
        if by is EndedBy.DEATH:
            # Its pipe is closed; give it the moment dying takes, so that its own status is seen and not our signal.
            self._await_end(DYING_WAIT_S)
            if self.alive:
                by, detail = EndedBy.BABBLE, "it closed its pipe and stayed"
        self.end()
        status = self._process.returncode
        lingering = "" if status is not None else f"; process {self.pid} has not ended {END_WAIT_S:g} s after SIGKILL"
        if by is EndedBy.DEATH and not detail:
            detail = f"it ended with exit status {status}" if status is not None and status >= 0 else "it died"
        words = bytes(self._last_words).decode("utf-8", "replace").strip()
        return Ended(by, self._progress, status, detail + lingering, words)

    def _await_end(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def end(self) -> None:
        """Kill it and everything it started, and give back its pipes. Returns within `END_WAIT_S`."""
        if self._over:
            return
        self._over = True
        if self.alive:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()
        self._await_end(END_WAIT_S)
        self._collect_last_words()
        self._selector.close()
        os.close(self._replies)
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._home.cleanup()

    def _collect_last_words(self) -> None:
        try:
            self._last_words += os.read(self._errors, _READ_BYTES)
        except OSError:
            return  # nothing more to hear
        del self._last_words[:-_LAST_WORDS_BYTES]
