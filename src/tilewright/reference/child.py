"""The child that holds a reference: `python -m tilewright.reference.child --replies FD`, started by `child_process`.

It reads requests from what was its standard input, runs the handlers they name with the loaded function, and answers on
the descriptor it was given. Whatever the reference prints goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import os
import queue
import resource
import shutil
import signal
import sys
import threading
import traceback
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.devices.envelope import Envelope, Stream
from tilewright.reference.loading import describe, line_of_reference, load_function, out_of_memory
from tilewright.reference.problems import ReferenceProblem
from tilewright.reference.wire import (
    Answered,
    Fault,
    Loaded,
    Problem,
    Reply,
    Request,
    Setup,
    Started,
    carried_record,
    open_message,
    seal_message,
)

_READ_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replies", type=int, required=True)
    parser.add_argument("--parent", type=int)
    options = parser.parse_args(arguments)
    os.set_inheritable(options.replies, False)
    if options.parent is not None:
        _tie_to(options.parent)
    requests = _listen()
    os.dup2(2, 1)  # what the reference prints is not an answer
    own = os.getpid()

    def say(reply: Reply, carried: object = None) -> None:
        if os.getpid() != own:  # the reference forked, and its copy came back here
            os._exit(0)
        view = memoryview(seal_message(reply, carried))
        while view:
            view = view[os.write(options.replies, view) :]

    import torch  # before anything is asked, while the parent does something else

    setup = open_message(requests.get())
    assert isinstance(setup, Setup)
    torch.set_num_threads(setup.threads)
    function = _load(setup, say)
    while function is not None:
        reply, carried = _answer(function, requests.get(), setup)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # a lost context
                torch.cuda.empty_cache()  # the kernels that are judged need the memory too
        say(reply, carried)
    return 0


def _load(setup: Setup, say: Callable[..., None]) -> Callable[..., Any] | None:
    try:
        _limit(setup)
        say(Started())
        function = load_function(setup.source, setup.function, setup.folder, Path(os.environ["HOME"]))
    except Exception as error:
        say(_reply_to(error, setup))
        return None
    say(Loaded())
    return function


def _answer(function: Callable[..., Any], envelope: Envelope, setup: Setup) -> tuple[Reply, object]:
    """The reply to a request, and the record it carries."""
    try:
        request = open_message(envelope)
        assert isinstance(request, Request)
        handler = _handler(request.handler)
        hints = typing.get_type_hints(handler)
        given = next(hint for name, hint in list(hints.items())[1:] if name != "return")
        return Answered(), handler(function, carried_record(envelope, given))
    except BaseException as error:  # sys.exit of the reference too
        return _reply_to(error, setup), None


def _handler(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _reply_to(error: BaseException, setup: Setup) -> Reply:
    if isinstance(error, ReferenceProblem):
        return Problem(str(error))
    if out_of_memory(error) and setup.address_bytes is not None:
        line = line_of_reference(error)
        place = f" (line {line})" if line is not None else ""
        return Problem(f"the reference needs more than the {setup.address_bytes >> 20} MiB it may have{place}")
    if line_of_reference(error) is not None or isinstance(error, (SystemExit, KeyboardInterrupt)):
        return Problem(f"the reference failed: {describe(error)}")
    return Fault("".join(traceback.format_exception(error)))


def _limit(setup: Setup) -> None:
    """Limits counted from what the process has already, torch included."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (setup.file_bytes, setup.file_bytes))
    if setup.address_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        bound = pages * resource.getpagesize() + setup.address_bytes
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def _tie_to(parent: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl: the closed pipe serves alone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it went before the kernel was asked


def _listen() -> queue.SimpleQueue[Envelope]:
    """Requests as they come. The thread ends the process and its offspring when the pipe closes, even during a call."""
    requests: queue.SimpleQueue[Envelope] = queue.SimpleQueue()
    source = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def listen() -> None:
        stream = Stream()
        while received := os.read(source, _READ_BYTES):
            for envelope in stream.feed(received):
                requests.put(envelope)
        shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # a killed parent cannot
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=listen, name="requests", daemon=True).start()
    return requests


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)
