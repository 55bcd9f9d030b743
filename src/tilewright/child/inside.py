"""The child's side of a supervised process: requests, answers, and an end together with the parent.

A program that `process` starts calls `open_channel` first. From then on it ends with its parent, in the middle of
whatever it does, and takes all that it started with it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Sequence

from tilewright.child.envelope import Envelope, EnvelopeError, EnvelopeStream, message
from tilewright.child.environment import remove_own_home
from tilewright.child.family import kill_below

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_READ_BYTES = 1 << 20


class Channel:
    """What the parent asks, and the way to answer it."""

    def __init__(self, replies: int) -> None:
        self._replies = replies
        self._own = os.getpid()
        self._asked: queue.SimpleQueue[Envelope] = queue.SimpleQueue()
        self._stream = EnvelopeStream()
        self._source = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # no other code reads the requests
        os.close(nothing)

    def listen(self) -> None:
        """From now on, hear the parent while other code runs, and end with it."""
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def first(self) -> Envelope:
        """What is asked before `listen`: this process has one thread still."""
        while self._asked.empty():
            self._hear()
        return self._asked.get()

    def next(self) -> Envelope:
        return self._asked.get()

    def say(self, record: object, carried: object = None) -> None:
        if os.getpid() != self._own:  # foreign code forked, and the copy returned here
            os._exit(0)
        view = memoryview(message(record, carried))
        try:
            while view:
                view = view[os.write(self._replies, view) :]
        except BrokenPipeError:
            os._exit(0)

    def _listen(self) -> None:
        while True:
            self._hear()

    def _hear(self) -> None:
        try:
            received = os.read(self._source, _READ_BYTES)
            for envelope in self._stream.feed(received):
                self._asked.put(envelope)
        except EnvelopeError as error:
            sys.stderr.write(f"the parent sent something that is no message: {error}\n")
            os._exit(4)
        if not received:
            self._end_with_parent()

    def _end_with_parent(self) -> None:
        remove_own_home()
        with contextlib.suppress(OSError):  # inside a boundary, which leaves nobody else to kill
            kill_below(self._own)
            if os.getpgrp() == self._own:
                os.killpg(0, signal.SIGKILL)
        os._exit(0)


def open_channel(arguments: Sequence[str], *, listens: bool = True) -> tuple[Channel, list[str]]:
    """Become a supervised child; returns the way to the parent, and the arguments that are the program's own.

    A program that puts a boundary around itself first (`boundary.enclose`) calls `listen` afterwards.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--replies", type=int, required=True, help="descriptor to answer on")
    parser.add_argument("--parent", type=int, help="process to die with")
    options, rest = parser.parse_known_args(arguments)
    os.set_inheritable(options.replies, False)
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl: the closed pipe serves alone
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a detached descendant stays below it, and is found
        if options.parent is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if options.parent is not None and os.getppid() != options.parent:
        os._exit(0)  # it went before the kernel was asked
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core of a CUDA process is tens of gigabytes
    channel = Channel(options.replies)
    if listens:
        channel.listen()
    return channel, rest


def leave(status: int) -> None:
    """End without clean-up, since foreign code ran and the CUDA context may be lost."""
    sys.stderr.flush()
    os._exit(status)
