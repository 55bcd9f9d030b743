"""The child that holds a reference: answers, faults, and everything hostile code may do."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.reference.handlers import EvaluationAnswer, EvaluationRequest

from tilewright.records import DType, ReturnedTensor, ScalarType, Task, TensorSpec
from tilewright.records.task import Dimension, NumberInput, TaskOutput, TensorInput
from tilewright.reference import Reference, ReferenceLimits, ReferenceProblem

# One function whose number says what it does, so that most tests share one child.
SOURCE = """
import os, sys, time
import torch

def act(x, what: int):
    if what == 0:
        print("noise on stdout")
        os.write(1, b"raw noise")
        return x * 2
    if what == 1:
        raise ValueError("a bad shape")
    if what == 2:
        sys.exit(3)
    if what == 3:
        while True:
            pass
    if what == 4:
        hold = torch.zeros(1 << 40)
    if what == 6:
        return torch.tensor([len([n for n in os.environ if "KEY" in n or "TOKEN" in n or "SECRET" in n])]).float()
    if what == 7:
        os.fork()
        return x + 1
    if what == 8:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        os.write(2, b"dying\\n")
        os._exit(7)
    if what == 9:
        os.kill(os.getpid(), 9)
    if what == 10:
        input()
    if what == 11:
        return x, x
    if what == 12:
        hold = []
        while True:
            hold.append(torch.ones(1 << 24))
    return x
"""


def task(what: int) -> Task:
    return Task(
        "act",
        SOURCE,
        "act",
        (TensorInput("x", DType.F32, ("n",)), NumberInput("what", ScalarType.INT, what, False)),
        (TaskOutput("y", DType.F32, ("n",)),),
        (Dimension("n", 3),),
    )


def ask(reference: Reference, what: int, seconds: float = 300.0) -> tuple[float, ...]:
    spec = TensorSpec.contiguous(DType.F32, (3,))
    given = ReturnedTensor("x", spec, struct.pack("<3f", 1.0, 2.0, 3.0))
    request = EvaluationRequest(task(what), (given,))
    (answer,) = reference.call("handlers:evaluate", request, EvaluationAnswer, seconds).tensors
    return struct.unpack(f"<{answer.spec.numel}f", answer.content)


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    os.environ["SOME_API_KEY"] = os.environ["CUDA_TOKEN"] = "secret"
    limits = ReferenceLimits(resident_bytes=3 << 30, address_bytes=2 << 30, load_seconds=300)
    with Reference(SOURCE, "act", limits=limits, folder=Path(__file__).parent, programs=True) as made:
        del os.environ["SOME_API_KEY"], os.environ["CUDA_TOKEN"]
        yield made


def test_answers_come_back_and_prints_do_not(reference: Reference) -> None:
    assert ask(reference, 0) == (2.0, 4.0, 6.0)


def test_no_secret_reaches_the_child(reference: Reference) -> None:
    assert ask(reference, 6) == (0.0,)


def test_what_the_function_raises_has_type_message_and_place(reference: Reference) -> None:
    pid = reference.pid
    with pytest.raises(ReferenceProblem, match=r"ValueError: a bad shape \(line 11: raise ValueError"):
        ask(reference, 1)
    with pytest.raises(ReferenceProblem, match=r"sys\.exit \(line 13"):
        ask(reference, 2)
    with pytest.raises(ReferenceProblem, match="EOFError"):
        ask(reference, 10)
    with pytest.raises(ReferenceProblem, match="returned 2 tensors where the task has 1"):
        ask(reference, 11)
    with pytest.raises(ReferenceProblem, match="2048 MiB it may have"):
        ask(reference, 4)
    with pytest.raises(ReferenceProblem, match="2048 MiB it may have"):
        ask(reference, 12)
    assert ask(reference, 0) == (2.0, 4.0, 6.0)
    assert reference.pid == pid, "none of these costs the child its life"


def test_a_fault_of_the_handler_is_not_the_reference_s(reference: Reference) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)handlers:broken failed .*KeyError: 'ours'") as found:
        reference.call("handlers:broken", 3, int)
    assert not isinstance(found.value, ReferenceProblem)


def test_a_copy_made_by_fork_does_not_answer(reference: Reference) -> None:
    assert ask(reference, 7) == (2.0, 3.0, 4.0)
    assert ask(reference, 0) == (2.0, 4.0, 6.0)


def test_hangs_and_deaths_are_reported_and_survived(reference: Reference) -> None:
    started = time.monotonic()
    with pytest.raises(ReferenceProblem, match=r"more than 0\.5 s answering"):
        ask(reference, 3, seconds=0.5)
    assert time.monotonic() - started < 120
    with pytest.raises(ReferenceProblem, match="killed by SIGKILL answering"):
        ask(reference, 9)
    assert ask(reference, 0) == (2.0, 4.0, 6.0)


def test_what_it_left_behind_in_another_session_is_ended(reference: Reference) -> None:
    assert ask(reference, 0) == (2.0, 4.0, 6.0)
    home = next(
        word for word in Path(f"/proc/{reference.pid}/environ").read_bytes().split(b"\0") if word.startswith(b"HOME=")
    )
    with pytest.raises(ReferenceProblem, match=r"exit status 7 answering; its last words: .*dying"):
        ask(reference, 8)
    assert not [pid for pid in running() if home in environment(pid)]
    assert not Path(home.decode().removeprefix("HOME=")).exists()


def running() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_a_source_that_hangs_at_import() -> None:
    limits = ReferenceLimits(load_seconds=0.5)
    message = r"more than 0\.5 s while it was imported"
    with Reference("while True: pass\n", "f", limits=limits) as made, pytest.raises(ReferenceProblem, match=message):
        made.check()


def test_a_killed_parent_leaves_no_child() -> None:
    program = (
        "import sys, time\nfrom tilewright.reference import Reference\n"
        "made = Reference('def f(x): return x', 'f'); made.check(); print(made.pid, flush=True); time.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 300
    while Path(f"/proc/{child}/environ").exists() and environment(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not environment(child)


EATER = """
import os, time

def act(x, what: int):
    if what == 1 and os.fork():
        time.sleep(600)  # what the child started counts as its own
    hold = [bytearray(b"x" * (32 << 20)) for _ in range(64)]
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "what", [pytest.param(0, id="itself", marks=pytest.mark.slow), pytest.param(1, id="a process it started")]
)
def test_the_memory_it_holds_is_bounded(what: int) -> None:
    """Where no address space is: with a GPU nothing else stands between a reference and the machine's memory."""
    limits = ReferenceLimits(resident_bytes=1 << 30, gpu=True)
    message = r"took too much answering, and was ended: it held \d+ MiB of host memory and may hold 1024 MiB"
    with Reference(EATER, "act", limits=limits, folder=Path(__file__).parent) as made:
        with pytest.raises(ReferenceProblem, match=message):
            ask(made, what, seconds=20.0)
        assert made.pid is None
