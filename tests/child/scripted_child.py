"""A supervised child that does what it is told: the message is the name of a function here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tilewright.child.envelope import message_in
from tilewright.child.inside import open_channel

ESCAPE = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
hold = bytearray(b"x" * (int(sys.argv[2]) << 20))
time.sleep(600)
"""


def escape(path: str, mebibytes: str = "1") -> None:
    """Start a process that cuts every tie: its parents are gone, its session is its own, its environment empty."""
    subprocess.run([sys.executable, "-c", ESCAPE, path, mebibytes], env={}, check=True)


def eat(mebibytes: str) -> None:
    hold = [bytearray(b"x" * (32 << 20)) for _ in range(int(mebibytes) // 32)]
    time.sleep(600)
    del hold


def die(number: str) -> None:
    os.kill(os.getpid(), int(number))


def leave_behind(path: str) -> None:
    """Die, and leave a process of another session."""
    if os.fork() == 0:
        os.setsid()
        with open(path, "w") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
    while not os.path.exists(path):
        time.sleep(0.01)
    os._exit(7)


def answer_and_die() -> None:
    if os.fork() == 0:  # keeps the pipe open
        os.setsid()
        time.sleep(600)
    channel.say("the last answer")
    sys.stderr.write("the last words\n")
    sys.stderr.flush()
    os._exit(0)


def echo(text: str) -> None:
    return None


def look() -> None:
    channel.say(dict(os.environ) | {"folder": os.getcwd()})


def babble() -> None:
    os.write(int(sys.argv[sys.argv.index("--replies") + 1]), b"Segmentation fault (not really)\n" * 10)


def hang() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    time.sleep(600)


def fork_and_return() -> None:
    os.fork()


if __name__ == "__main__":
    channel, _ = open_channel(sys.argv[1:])
    while True:
        word, *arguments = message_in(channel.next(), tuple[str, ...])
        globals()[word](*arguments)
        channel.say(f"done {word}")
