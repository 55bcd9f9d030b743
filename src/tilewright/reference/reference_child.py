"""The child that holds a reference: `python -m tilewright.reference.reference_child`, started by `reference`.

It runs the handlers that requests name with the loaded function. What the reference prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
import threading
import traceback
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.child.boundary import BoundaryError, enclose
from tilewright.child.envelope import Envelope, carried_in, message_in
from tilewright.child.inside import Channel, leave, open_channel
from tilewright.reference import loading
from tilewright.reference.loading import describe, line_of_reference, load_function, out_of_memory, write_source
from tilewright.reference.protocol import ReferenceProblem

_KEPT_BYTES = 512 << 20  # of a GPU's memory


def main(arguments: list[str]) -> int:
    channel, _ = open_channel(arguments, listens=False)
    os.dup2(2, 1)  # what the reference prints is reported if it dies

    import torch  # before the first request, while the parent is busy

    torch.get_num_threads()  # Intel's OpenMP opens a file in /dev/shm when it is first asked, and not later
    setup = message_in(channel.first(), loading.ReferenceSetup)
    function = _load(setup, channel)
    if setup.gpu:
        threading.Thread(target=_open_gpu, daemon=True).start()
    while function is not None:
        reply, carried = _answer(function, channel.next(), setup)
        fit = not torch.cuda.is_initialized() or _left_clean()  # type: ignore[no-untyped-call]
        channel.say(reply, carried)
        if not fit:
            return 0  # a CUDA error is sticky; the next request gets a new process
    return 0


def _open_gpu() -> None:
    import torch

    with contextlib.suppress(RuntimeError, AssertionError):  # no GPU: whatever needs it reports that
        torch.zeros(1, device="cuda")


def _left_clean() -> bool:
    """Release GPU memory beyond a little, for the kernels that are judged. False where the CUDA context is lost. The
    little that stays saves allocations, which synchronise all processes on the GPU."""
    import torch

    try:
        torch.cuda.synchronize()
        if torch.cuda.memory_reserved() > _KEPT_BYTES:
            torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def _load(setup: loading.ReferenceSetup, channel: Channel) -> Callable[..., Any] | None:
    import torch

    try:
        _limit(setup)
        os.environ.update(setup.environment)
        path = write_source(setup.source, Path(os.environ["HOME"]))
        enclose(setup.wall, os.environ["HOME"])
        channel.listen()
        torch.set_num_threads(setup.threads)  # which may start them
        channel.say(loading.TorchImported())
        function = load_function(path, setup.function, setup.folder)
    except Exception as error:
        channel.say(_reply_to(error, setup))
        return None
    channel.say(loading.ReferenceLoaded())
    return function


def _answer(
    function: Callable[..., Any], envelope: Envelope, setup: loading.ReferenceSetup
) -> tuple[loading.ReferenceReply, object]:
    try:
        request = message_in(envelope, loading.HandlerRequest)
        module, _, name = request.handler.partition(":")
        handler = getattr(importlib.import_module(module), name)
        hints = typing.get_type_hints(handler)
        given = next(hint for name, hint in list(hints.items())[1:] if name != "return")
        results = (request.results,) if request.results else ()
        return loading.Answered(), handler(function, carried_in(envelope, given), *results)
    except BaseException as error:  # including sys.exit of the reference
        return _reply_to(error, setup), None


def _reply_to(error: BaseException, setup: loading.ReferenceSetup) -> loading.ReferenceReply:
    if isinstance(error, (ReferenceProblem, BoundaryError)):
        return loading.ReferenceFault(str(error))
    if out_of_memory(error) and setup.address_bytes is not None:
        line = line_of_reference(error)
        place = f" (line {line})" if line is not None else ""
        limit = f"{setup.address_bytes >> 20} MiB"
        return loading.ReferenceFault(f"the reference needs more than the {limit} it may have{place}")
    if line_of_reference(error) is not None or isinstance(error, (SystemExit, KeyboardInterrupt)):
        return loading.ReferenceFault(f"the reference failed: {describe(error)}")
    return loading.HandlerFault("".join(traceback.format_exception(error)))


def _limit(setup: loading.ReferenceSetup) -> None:
    """Apply the limits, counted on top of what the process uses already."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (setup.file_bytes, setup.file_bytes))
    if setup.address_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        bound = pages * resource.getpagesize() + setup.address_bytes
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
