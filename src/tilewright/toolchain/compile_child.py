"""The resident compile child: `python -m tilewright.toolchain.compile_child`, started by `pool`.

It compiles requests under limits. It imports neither torch nor numpy, and writes no file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import time
from collections.abc import Sequence

from tilewright.child.envelope import message_in
from tilewright.child.inside import open_channel
from tilewright.records import BuildFailure, FailureReason
from tilewright.toolchain.compile import compile_request
from tilewright.toolchain.nvrtc import ToolchainError, find_toolkit, load_nvrtc
from tilewright.toolchain.pool import CompileAnswer, CompileRequest, ToolchainFault

_LARGEST_FILE_BYTES = 1 << 20
_OPEN_FILES = 64


def main(arguments: Sequence[str]) -> None:
    """Serve requests until the parent exits."""
    channel, _ = open_channel(arguments)
    os.dup2(2, 1)  # the parent shows stderr when the child dies
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE_BYTES, _LARGEST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    while True:
        asked: CompileRequest = message_in(channel.next(), CompileRequest)
        channel.say(_answer(asked))
        # Return freed memory, so that a large compilation does not count against the next one.
        with contextlib.suppress(AttributeError):  # not every libc has it; the pool replaces children that grow
            ctypes.CDLL(None).malloc_trim(0)


def _answer(asked: CompileRequest) -> CompileAnswer:
    started = time.perf_counter()
    try:
        toolkit = find_toolkit()
        load_nvrtc(toolkit.library, toolkit.builtins)  # not counted against the memory limit
        _limit(asked.memory_bytes, asked.seconds)
        return compile_request(asked.request, toolkit, asked.key)
    except MemoryError:
        seconds = time.perf_counter() - started
        return BuildFailure(asked.key, asked.request.arch, FailureReason.MEMORY, (), "", seconds)
    except ToolchainError as error:
        return ToolchainFault(str(error))


def _limit(memory_bytes: int, seconds: float) -> None:
    """Set limits for one compilation, on top of what the process already uses."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        address_space = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space + memory_bytes, hard))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # A backup of the parent's timeout.
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 2, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
