"""References asked through a spool: real workers, whose runner is scripted, and real children."""

from __future__ import annotations

import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.devices.scripted_jobs import PROFILE, RUNNER, answer_of, scripted_job
from tests.devices.spool_processes import Workers, children_of
from tests.waiting import wait_until

from tilewright.child.envelope import EnvelopeKind, message, record_in, seal, unseal
from tilewright.devices.child_device import CudaDevice
from tilewright.devices.spool import SpoolDevice, SpoolQueue
from tilewright.devices.spool_files import Replied, SpoolCall, SpoolFiles
from tilewright.records import (
    Case,
    Completed,
    DType,
    Execution,
    Faulted,
    FaultKind,
    ReturnedTensor,
    ScalarType,
    Task,
    TensorSpec,
)
from tilewright.records.task import Dimension, NumberInput, TaskOutput, TensorInput
from tilewright.reference import AnyReference, Reference, ReferenceProblem
from tilewright.reference.loading import HandlerRequest, answer_in
from tilewright.reference.spooled import KEPT, SpoolReference
from tilewright.verify.distributions import draw_inputs
from tilewright.verify.judging_records import Judgement, JudgeRequest

JUDGE = "tilewright.verify.judging:judge"
SOURCE = """
import os, pathlib, time

def act(x, what: int):
    mark = pathlib.Path("MARK")
    if what == 1:
        raise ValueError("a bad shape")
    if what == 2:
        os.kill(os.getpid(), 9)
    if what == 3:
        time.sleep(600)
    if what == 4 and not mark.exists():
        mark.touch()
        time.sleep(600)
    return x * 2
"""


def request(what: int = 0, factor: float = 2.0, source: str = SOURCE) -> JudgeRequest:
    """A kernel's results, `factor` times its inputs, to be judged by a reference that does `what`."""
    task = Task(
        "act",
        source,
        "act",
        (TensorInput("x", DType.F32, ("n",)), NumberInput("what", ScalarType.INT, what, False)),
        (TaskOutput("y", DType.F32, ("n",)),),
        (Dimension("n", 3),),
    )
    case = Case(task.sizes, 1)
    x = struct.unpack("<3f", draw_inputs(task, case)["x"])
    y = ReturnedTensor("y", TensorSpec.contiguous(DType.F32, (3,)), struct.pack("<3f", *(factor * one for one in x)))
    return JudgeRequest(task, case, (y,))


def ask(reference: AnyReference, what: int = 0, factor: float = 2.0, seconds: float = 300.0) -> bool:
    """Whether the results are judged right."""
    answer: Judgement = reference.call(JUDGE, request(what, factor), Judgement, seconds)
    return not answer.wrong


def spooled(spool: Path, source: str = SOURCE) -> SpoolReference:
    return SpoolReference(spool, source, "act", gpu=PROFILE, timeout=300.0)


def files_left(spool: Path) -> list[Path]:
    return [one for name in ("jobs", "claimed", "results") for one in (spool / name).rglob("*") if one.is_file()]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A spool with a worker that most tests share."""
    spool = tmp_path_factory.mktemp("served")
    workers = Workers(spool)
    yield spool, workers("--verbose")
    workers.end()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def start(spool: Path) -> Iterator[Workers]:
    workers = Workers(spool)
    yield workers
    workers.end()


# -- a worker that lives --


def test_a_worker_answers_as_a_child_here_does(served: tuple[Path, subprocess.Popen[str]]) -> None:
    spool, _ = served
    far = spooled(spool)
    assert far.sees_gpu
    assert [ask(far), ask(far, factor=2.1)] == [True, False]
    with Reference(SOURCE, "act") as here:
        assert (
            here.call(JUDGE, request(factor=2.1), Judgement).wrong
            == far.call(JUDGE, request(factor=2.1), Judgement).wrong
        )
    assert files_left(spool) == []


def judged_run(reference: AnyReference, *actions: str, what: int = 0) -> tuple[Execution, Judgement | None]:
    """A scripted job, whose kernel adds 1, judged by a reference that doubles."""
    inputs = draw_inputs(request(what).task, Case({"n": 3}, 1))
    job = scripted_job("run", *actions, numbers=struct.unpack("<3f", inputs["x"]))
    asked = replace(request(what), outputs=())
    with CudaDevice(command=RUNNER) as device:
        return reference.call_on_run(device, job, JUDGE, asked, Judgement)


@pytest.mark.slow
def test_a_job_is_judged_where_it_ran(served: tuple[Path, subprocess.Popen[str]]) -> None:
    """What it made does not come back: only what became of it, and what it is worth."""
    spool, worker = served
    with Reference(SOURCE, "act") as here:
        for reference in (spooled(spool), here):
            execution, judgement = judged_run(reference)
            assert isinstance(execution, Completed)
            assert judgement is not None
            assert judgement.wrong[0].elements == 3
            execution, judgement = judged_run(reference, "exit")
            assert isinstance(execution, Faulted)
            assert judgement is None
            with pytest.raises(ReferenceProblem, match="a bad shape"):
                judged_run(reference, what=1)
    execution, _ = judged_run(spooled(spool))
    assert isinstance(execution, Completed)
    assert execution.outputs == ()
    assert worker.poll() is None
    assert files_left(spool) == []


@pytest.mark.slow
def test_what_a_reference_does_wrong_is_told_and_survived(served: tuple[Path, subprocess.Popen[str]]) -> None:
    spool, worker = served
    far = spooled(spool)
    with pytest.raises(ReferenceProblem, match=r"ValueError: a bad shape \(line 7: raise"):
        ask(far, 1)
    with pytest.raises(ReferenceProblem, match="killed by SIGKILL answering"):
        ask(far, 2)
    with pytest.raises(ReferenceProblem, match=r"more than 0\.5 s answering"):
        ask(far, 3, seconds=0.5)
    with pytest.raises(ReferenceProblem, match="defines no function 'act'"):
        ask(spooled(spool, "x = 1\n"))
    assert ask(far)
    assert worker.poll() is None
    assert files_left(spool) == []


def test_a_handler_that_fails_is_not_the_reference_s_fault(served: tuple[Path, subprocess.Popen[str]]) -> None:
    spool, _ = served
    with pytest.raises(RuntimeError, match=r"(?s)no_such_handler failed in the reference's process: .*AttributeError"):
        spooled(spool).call("tilewright.verify.judging:no_such_handler", request(), Judgement)


def call_of(payload: bytes, handler: str = JUDGE) -> SpoolCall:
    return SpoolCall("call-1", PROFILE.arch, SOURCE, "act", handler, 30.0, payload)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (call_of(b"no request"), "the worker cannot read what it was asked: it starts with"),
        (
            call_of(message(HandlerRequest(JUDGE), request())[:-5]),
            "the worker cannot read what it was asked: .*should hold",
        ),
        (call_of(message(HandlerRequest("os:getcwd"), 1), "os:getcwd"), "handlers of tilewright only, not 'os:getcwd'"),
        (call_of(message(HandlerRequest("os:getcwd"), 1)), "handlers of tilewright only"),
        (call_of(message(HandlerRequest(JUDGE), 1)), "judge failed in the reference's process"),
    ],
    ids=["no message", "cut short", "foreign handler", "two handlers", "another record"],
)
def test_a_call_that_cannot_be_answered_gets_its_reason(
    served: tuple[Path, subprocess.Popen[str]], call: SpoolCall, problem: str
) -> None:
    spool, worker = served
    queue = SpoolQueue(spool, 60.0)
    outcome = queue.run(call.id, seal(EnvelopeKind.CALL, call))
    assert isinstance(outcome, Replied)
    assert outcome.device == PROFILE.name
    with pytest.raises((ReferenceProblem, RuntimeError), match=problem):
        answer_in(unseal(outcome.content), call.handler, Judgement)
    assert worker.poll() is None


def test_a_damaged_call_file_is_refused(served: tuple[Path, subprocess.Popen[str]]) -> None:
    spool, worker = served
    call = call_of(message(HandlerRequest(JUDGE), request()))
    content = seal(EnvelopeKind.CALL, call)
    assert record_in(unseal(content), EnvelopeKind.CALL, SpoolCall) == call
    outcome = SpoolQueue(spool, 60.0).run(call.id, content[:-1] + b"#")
    assert isinstance(outcome, Faulted)
    assert (outcome.kind, "checksum" in outcome.message) == (FaultKind.BROKEN_JOB, True)
    assert worker.poll() is None


@pytest.mark.slow
def test_kernels_and_references_take_turns(served: tuple[Path, subprocess.Popen[str]]) -> None:
    spool, worker = served
    far = spooled(spool)
    found: list[bool] = []
    asking = threading.Thread(target=lambda: found.extend(ask(far) for _ in range(3)))
    asking.start()
    device = SpoolDevice(spool, timeout=300.0)
    assert [answer_of(device.execute(scripted_job("k", "sleep 0.05", numbers=(1.0,)))) for _ in range(5)] == [[2.0]] * 5
    asking.join()
    assert found == [True, True, True]
    assert worker.poll() is None


@pytest.mark.slow
def test_the_worker_keeps_few_references(served: tuple[Path, subprocess.Popen[str]]) -> None:
    spool, worker = served
    for number in range(KEPT + 1):
        assert ask(spooled(spool, f"{SOURCE}\nNUMBER = {number}\n"))
    kept = children_of(worker.pid)
    assert len(kept) == 1 + KEPT, "its runner, and the references used last"
    assert ask(spooled(spool, f"{SOURCE}\nNUMBER = {KEPT}\n"))
    assert children_of(worker.pid) == kept


# -- workers that die --


class Asking(threading.Thread):
    """One call, and how it ended."""

    def __init__(self, spool: Path, source: str) -> None:
        super().__init__(daemon=True)
        self._reference = spooled(spool, source)
        self.right: bool | None = None
        self.problem = ""

    def run(self) -> None:
        try:
            answer: Judgement = self._reference.call(JUDGE, request(4), Judgement, 300.0)
            self.right = not answer.wrong
        except ReferenceProblem as problem:
            self.problem = str(problem)


@pytest.fixture
def asking(spool: Path, tmp_path: Path) -> Asking:
    """A call during which the reference sleeps, unless the file `mark` is there: then it answers."""
    SpoolFiles(spool).create()
    one = Asking(spool, SOURCE.replace("MARK", str(tmp_path / "mark")))
    one.start()
    return one


def kill_asleep(worker: subprocess.Popen[str], mark: Path) -> list[int]:
    """Kill a worker in whose hand a reference sleeps; returns its children."""
    wait_until(mark.exists)
    children = children_of(worker.pid)
    worker.kill()
    worker.wait()
    return children


@pytest.mark.slow
def test_a_call_of_a_killed_worker_is_answered_by_the_next(
    spool: Path, start: Workers, asking: Asking, tmp_path: Path
) -> None:
    children = kill_asleep(start(), tmp_path / "mark")
    start()
    asking.join(300.0)
    assert asking.right is True
    assert len(children) == 2
    wait_until(lambda: not any(map(alive, children)))
    assert files_left(spool) == []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_a_call_that_cost_two_workers_their_lives_is_not_tried_again(
    spool: Path, start: Workers, asking: Asking, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    for _ in range(2):
        kill_asleep(start(), mark)
        mark.unlink()
    start()
    asking.join(300.0)
    assert asking.problem.startswith("it was not answered on the spool: 2 worker processes died while running this job")
    assert not mark.exists()
    assert files_left(spool) == []


@pytest.mark.slow
def test_a_call_in_hand_goes_back_at_ctrl_c(spool: Path, start: Workers, asking: Asking, tmp_path: Path) -> None:
    worker = start("--grace", "0.2")
    wait_until((tmp_path / "mark").exists)
    children = children_of(worker.pid)
    worker.send_signal(signal.SIGINT)
    _, words = worker.communicate(timeout=300)
    assert worker.returncode == 130
    assert words.splitlines()[-1].endswith("was returned to the spool")
    assert not any(map(alive, children))
    (waiting,) = SpoolFiles(spool).waiting()
    assert waiting.attempt == 1, "as it came: it cost nobody's life"
    start()
    asking.join(300.0)
    assert asking.right is True
