"""The resident compile child: reads requests from standard input, answers on standard output, under limits.

Started by `pool` as `python -m tilewright.toolchain.child PARENT`. It imports neither torch nor numpy, writes no file,
and ends when its parent does, even while a compilation is under way.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from typing import BinaryIO

from tilewright.records import BuildFailure, BuildRequest, FailureReason, from_json
from tilewright.toolchain.compile import compile_request
from tilewright.toolchain.errors import ToolchainError
from tilewright.toolchain.nvrtc import load_nvrtc
from tilewright.toolchain.stored_form import Stored, to_stored
from tilewright.toolchain.toolkit import find_toolkit
from tilewright.toolchain.wire import ANSWER_HEADER, FAULT, REQUEST_HEADER, RESULT

_LARGEST_FILE_BYTES = 1 << 20  # standard error, which is a file in memory
_OPEN_FILES = 64


def main(parent: int) -> None:
    """Serve requests until the parent closes the pipe or dies."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the compiler prints must not mix with the answers
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE_BYTES, _LARGEST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    requests = sys.stdin.buffer
    while header := requests.read(REQUEST_HEADER.size):
        (size,) = REQUEST_HEADER.unpack(header)
        _serve(json.loads(requests.read(size)), answers)
        _trim_heap()


def _serve(message: dict[str, object], answers: BinaryIO) -> None:
    started = time.perf_counter()
    request: BuildRequest = from_json(BuildRequest, message["request"])
    key = str(message["key"])
    try:
        toolkit = find_toolkit()
        load_nvrtc(toolkit.library, toolkit.builtins)  # not part of what the memory limit is for
        _limit(int(str(message["memory_bytes"])), float(str(message["seconds"])))
        stored = to_stored(compile_request(request, toolkit, key))
    except MemoryError:
        seconds = time.perf_counter() - started
        stored = to_stored(BuildFailure(key, request.arch, FailureReason.MEMORY, (), "", seconds))
    except ToolchainError as error:
        _answer(answers, FAULT, Stored(str(error).encode(), b"", b""))
        return
    _answer(answers, RESULT, stored)


def _answer(answers: BinaryIO, kind: bytes, stored: Stored) -> None:
    answers.write(ANSWER_HEADER.pack(kind, *map(len, stored)))
    for part in stored:
        answers.write(part)
    answers.flush()


def _limit(memory_bytes: int, seconds: float) -> None:
    """Limits for one compilation, counted from what the process has and has used already."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        address_space = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space + memory_bytes, hard))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # A second line behind the parent's clock.
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 2, hard))


def _trim_heap() -> None:
    """Give freed memory back, so that a large compilation does not count against the next."""
    with contextlib.suppress(AttributeError):  # a C library without it: the pool replaces children that grow
        ctypes.CDLL(None).malloc_trim(0)


def _watch(parent: int) -> None:
    """End this process when the parent hung up or died. Runs while NVRTC does: ctypes lets go of the interpreter."""
    poll = select.poll()
    poll.register(0, 0)  # hang-up only
    while os.getppid() == parent:
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(1000)):
            break
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
