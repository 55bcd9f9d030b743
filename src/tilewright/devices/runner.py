"""The runner child: `python -m tilewright.devices.runner --device N --replies FD`.

Reads jobs from its standard input, runs each, answers on descriptor FD. It dies with its parent: the kernel is asked to
see to it, and the end of its standard input says so too. What runs a job is an `Engine`; this module knows pipes only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import queue
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from tilewright.devices.envelope import Envelope, EnvelopeError, Stream, open_job
from tilewright.devices.messages import Finished, Message, Progress, Ready, Unready, seal_message
from tilewright.records import Faulted, FaultKind, GpuProfile, Job

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 20


class Engine(Protocol):
    """Something that runs jobs in this process."""

    @property
    def profile(self) -> GpuProfile: ...

    @property
    def versions(self) -> tuple[tuple[str, str], ...]: ...

    def run(self, job: Job, report: Callable[[Progress], None]) -> Finished: ...


class EngineRefused(Exception):
    """The engine cannot have its device; the message says why and what to do."""


def serve(arguments: Sequence[str], open_engine: Callable[[int], Engine]) -> int:
    """Be a runner child until the parent goes or the engine is no longer fit. Returns the exit status."""
    options = _options(arguments)
    _tie_to_parent(options.parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core of a CUDA process is tens of gigabytes
    jobs = _listen()

    def say(message: Message) -> None:
        _write_all(options.replies, seal_message(message))

    try:
        engine = open_engine(options.device)
        say(Ready(engine.profile, engine.versions))
    except EngineRefused as refused:
        say(Unready(str(refused)))
        return 3
    while True:
        finished = _run_one(engine, jobs.get(), say)
        say(finished)
        if not finished.fit:
            return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tilewright.devices.runner", description="Started by CudaDevice.")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--replies", type=int, required=True, help="descriptor to answer on")
    parser.add_argument("--parent", type=int, help="process to die with")
    return parser.parse_args(arguments)


def _run_one(engine: Engine, envelope: Envelope, say: Callable[[Message], None]) -> Finished:
    try:
        job = open_job(envelope)
    except EnvelopeError as error:
        job_id = envelope.record.get("id") if isinstance(envelope.record, dict) else None
        message = f"the runner cannot read the job: {error}"
        return Finished(Faulted(str(job_id), engine.profile.name, FaultKind.BROKEN_JOB, message), True)
    return engine.run(job, say)


def _tie_to_parent(parent: int | None) -> None:
    if parent is None:
        return
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl: the closed pipe serves alone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it went before the kernel was asked


def _listen() -> queue.SimpleQueue[Envelope]:
    """Jobs as they come. The thread ends the process when the pipe closes, even in the middle of a job."""
    jobs: queue.SimpleQueue[Envelope] = queue.SimpleQueue()
    source = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # nobody else reads the jobs
    os.close(nothing)

    def listen() -> None:
        stream = Stream()
        try:
            while received := os.read(source, _READ_BYTES):
                for envelope in stream.feed(received):
                    jobs.put(envelope)
        except EnvelopeError as error:
            sys.stderr.write(f"the parent sent something that is no job: {error}\n")
            os._exit(4)
        home = os.environ.get("HOME", "")
        if os.path.basename(home).startswith("tilewright-runner-"):
            shutil.rmtree(home, ignore_errors=True)  # a killed parent cannot
        os._exit(0)

    threading.Thread(target=listen, name="jobs", daemon=True).start()
    return jobs


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except BrokenPipeError:
        os._exit(0)


def _open_cuda(index: int) -> Engine:
    try:
        from tilewright.devices.cuda_engine import CudaEngine

        return CudaEngine(index)
    except ImportError as error:
        raise EngineRefused(
            f"cuda:{index} cannot be used: {error}; install torch and cuda-bindings for this Python ({sys.executable})"
        ) from error
    except (RuntimeError, AssertionError) as error:  # the driver's refusals, and torch's
        raise EngineRefused(
            f"cuda:{index} cannot be used: {error}; `nvidia-smi` shows which GPUs this machine has"
        ) from error


if __name__ == "__main__":
    status = serve(sys.argv[1:], _open_cuda)
    sys.stderr.flush()
    os._exit(status)  # no tidying up in a context that may be lost
