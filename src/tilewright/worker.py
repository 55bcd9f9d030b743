"""`python -m tilewright.worker DIR`: run the jobs of a spool directory on a GPU of this machine.

Kernels run in one child process and references in others, one at a time. It needs only the standard library, numpy,
torch and cuda-bindings. This module handles arguments, signals, exit status and output; the work is done by
`tilewright.devices.spool_worker`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType

from tilewright.child.process import Interrupted
from tilewright.devices.child_device import RUNNER, CudaDevice
from tilewright.devices.protocol import DeviceError
from tilewright.devices.spool_files import SpoolFiles
from tilewright.devices.spool_worker import Worker, WorkerTiming
from tilewright.reference.spooled import References

INTERRUPTED_STATUS = 130  # the usual exit status after Ctrl-C
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Stop requests. After the first, the current job may finish within a grace period; the second ends it at once."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._deadline = 0.0
        self.by: signal.Signals | None = None
        self.busy: Callable[[], bool] = lambda: False  # until there is a worker to ask

    def install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._deadline = time.monotonic() + (self._grace_s if self.by is None else 0.0)
        self.by = signal.Signals(number)

    def requested(self) -> bool:
        return self.by is not None

    def overdue(self) -> bool:
        """Whether the current job must be abandoned now."""
        return self.by is not None and (not self.busy() or time.monotonic() >= self._deadline)


def main(arguments: Sequence[str] | None = None, command: Sequence[str] = RUNNER) -> int:
    """Serve a spool and return the exit status. `command` is the runner program."""
    options = _options(arguments)
    stop = Stop(options.grace)
    stop.install()
    try:
        files = SpoolFiles(options.directory)
        files.create()
        _tell(f"starting a runner on cuda:{options.device}")
        with ExitStack() as stack:
            device = stack.enter_context(CudaDevice(options.device, command=command, interrupt=stop.overdue))
            references = References(options.device, stop.overdue)
            stack.callback(references.close)
            return _serve(options, files, device, references, stop)
    except Interrupted:
        return _farewell(stop, "no job had been begun")
    except DeviceError as error:
        _tell(str(error))
        return 1
    except OSError as error:
        _tell(f"the spool {options.directory} cannot be used: {error}; the job in hand, if any, stays there")
        return 1


def _serve(
    options: argparse.Namespace, files: SpoolFiles, device: CudaDevice, references: References, stop: Stop
) -> int:
    pace = WorkerTiming(options.poll, options.stale, options.keep_days * 86400.0)
    say = _progress if sys.stderr.isatty() or options.verbose else lambda _: None
    worker = Worker(files, device, references, pace, stop.requested, say)
    stop.busy = lambda: worker.current_job is not None
    _tell(f"{worker.id} serves {files.root} with {worker.announcement.profile.name}; Ctrl-C stops it")
    try:
        done = worker.serve(once=options.once, drain=options.drain)
    except Interrupted:
        returned = (
            f"job {worker.current_job.id} was returned to the spool" if worker.current_job else "no job was running"
        )
        return _farewell(stop, returned)
    if stop.requested():
        return _farewell(stop, f"{done} job(s) run, none left in hand")
    _tell(f"{done} job(s) run")
    return 0


def _farewell(stop: Stop, state: str) -> int:
    assert stop.by is not None
    _tell(f"stopped by {stop.by.name}: {state}")
    return INTERRUPTED_STATUS if stop.by is signal.SIGINT else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tilewright.worker",
        description="Runs the jobs of a spool directory on a GPU of this machine. Start as many as there are GPUs. "
        "Whoever can write to the directory can run kernels and Python as this user.",
    )
    parser.add_argument("directory", metavar="DIR", help="the spool; made if it is not there")
    parser.add_argument("--device", type=_index, default=0, metavar="N", help="which GPU, as CUDA counts (default 0)")
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--once", action="store_true", help="end after one job")
    until.add_argument("--drain", action="store_true", help="end when no job waits")
    parser.add_argument("--poll", type=_seconds, default=0.2, metavar="S", help="seconds between looks (default 0.2)")
    parser.add_argument(
        "--stale", type=_seconds, default=30.0, metavar="S", help="silence after which a worker is dead (default 30)"
    )
    parser.add_argument(
        "--grace", type=_seconds, default=5.0, metavar="S", help="time for the job in hand at Ctrl-C (default 5)"
    )
    parser.add_argument(
        "--keep-days", type=_seconds, default=14.0, metavar="D", help="days until a result is removed (default 14)"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every job even without a terminal")
    return parser.parse_args(arguments)


def _index(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a device number; write 0, 1, ...")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return value


def _tell(line: str) -> None:
    sys.stderr.write(f"tilewright worker: {line}\n")
    sys.stderr.flush()


def _progress(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
