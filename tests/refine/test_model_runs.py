"""The loop with every kind of model: the same request, troubles on the way, the same kernel at the end.

Served models are asked by the official SDKs over HTTP, streamed, from local servers that speak the real protocols.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.servers import AnthropicServer, Cut, Status
from tests.refine.runs import ENVIRONMENT
from tests.refine.scripted_replies import (
    CUT_OFF,
    FAST_KERNEL,
    FASTER,
    KEY,
    MALFORMED,
    PRICES,
    REFUSAL,
    RIGHT,
    SERVICES,
    TASK,
    TROUBLES,
    WRONG,
    Correspondent,
    Script,
    Service,
    make_random_model,
)
from tests.refine.silent import Silent
from tests.tasks.in_process import HereReference

from tilewright.authors.model_author import ModelAuthor
from tilewright.devices.child_device import EmulatedDevice
from tilewright.measure import Stopwatch
from tilewright.models import Model, ModelRejected, ModelUnavailable, RetryPolicy, open_model
from tilewright.records import Attempt, BadReply, Budget, Ending, Rejected, Run, Settings, Stage, StopReason, Usage
from tilewright.refine import RunContext, refine
from tilewright.store import RunFolder, Store
from tilewright.verify import Referee

Bench = tuple[Referee, Stopwatch]

QUICK = RetryPolicy(attempts=4, first_wait_s=0.02, longest_wait_s=0.05)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with (
        HereReference(TASK.reference, TASK.function) as reference,
        EmulatedDevice(TASK.profile) as emulator,
        Referee(TASK, reference, emulator=emulator) as referee,
        Stopwatch(TASK, reference, emulator=emulator) as stopwatch,
    ):
        yield referee, stopwatch


@pytest.fixture
def prices_file(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return path


def begun(home: Path, author: str, **settings: object) -> RunFolder:
    budget = Budget(attempts=5, seconds=600.0, tokens=1_000_000)
    return Store(home).create_run(TASK, replace(Settings(author, budget, good_enough=2.0), **settings), ENVIRONMENT)


def carried(folder: RunFolder, bench: Bench, model: Model) -> Run:
    with folder.lock():
        return refine(folder, RunContext(ModelAuthor(model.name), model.complete, *bench, Silent()))


def outcome(run: Run) -> list[tuple[object, ...]]:
    return [(one.number, one.stage, one.kernel, one.passed, one.time_us, one.replies) for one in run.attempts]


def reasons(run: Run) -> list[str]:
    return [one.verdict.reason if isinstance(one.verdict, Rejected) else "passed" for one in run.attempts]


def problem(attempt: Attempt) -> str:
    assert isinstance(attempt.verdict, Rejected)
    assert isinstance(attempt.verdict.evidence, BadReply)
    return attempt.verdict.evidence.message


def stored(home: Path) -> str:
    return "\n".join(path.read_text() for path in home.rglob("*") if path.is_file())


def troubled_run(service: Service, home: Path, bench: Bench, prices: Path) -> tuple[RunFolder, Run, list[str]]:
    """The request through a served model that fails in every way, stopped by a rejected key and then resumed."""
    environ = {service.key_variable: KEY, "TILEWRIGHT_PRICES": str(prices)}
    folder, said = begun(home, service.name), list[str]()
    with service.serve(service.answers(), TROUBLES, piece=16) as server:

        def opened() -> Model:
            return open_model(service.name, base_url=server.base_url, environ=environ, retries=QUICK, say=said.append)

        with closing(opened()) as model, pytest.raises(ModelRejected) as rejected:
            carried(folder, bench, model)
        said.append(str(rejected.value))
        assert len(server.requests) == len(TROUBLES)
        assert folder.load().ending is None
        with closing(opened()) as model:
            run = carried(folder, bench, model)
        # Only the question that the key stopped is asked again.
        assert len(server.requests) == len(TROUBLES) + 1
        assert server.requests[-1].body["messages"] == server.requests[-2].body["messages"]
        waited_s = server.requests[1].at_s - server.requests[0].at_s
        assert waited_s >= 0.2  # as the server asked
    return folder, run, said


@pytest.mark.parametrize(
    "service",
    # The one with the strictest protocol is quick; in all of them the loop is the same.
    [one if one.name.startswith("anthropic") else pytest.param(one, marks=pytest.mark.slow) for one in SERVICES],
    ids=lambda service: service.name.partition(":")[0],
)
def test_every_trouble_of_a_service_is_survived_and_on_record(
    service: Service, tmp_path: Path, bench: Bench, prices_file: Path
) -> None:
    folder, run, said = troubled_run(service, tmp_path / "home", bench, prices_file)

    assert reasons(run) == ["wrong values", "passed", "no usable reply", "passed", "seen before"]
    stages = [Stage.DRAFT, Stage.REPAIR_WRONG, Stage.STRUCTURE, Stage.STRUCTURE, Stage.STRUCTURE]
    assert [one.stage for one in run.attempts] == stages
    assert run.ending is Ending.ATTEMPTS
    assert run.best is not None
    assert run.best.number == 4
    assert folder.attempt(4).text("kernel.cu") == FAST_KERNEL
    assert problem(run.attempts[2]) == f"the model refused: {REFUSAL}"
    assert run.attempts[2].summary == f"the model refused: {REFUSAL}"

    # Every reply is on record as it came, with what it took and cost.
    replies = [reply for n in range(1, 6) for reply in folder.attempt(n).replies()]
    texts = [MALFORMED, WRONG, CUT_OFF, RIGHT, REFUSAL, FASTER, RIGHT]
    assert [reply.text for reply in replies] == texts
    ends = [StopReason.END] * 2 + [StopReason.LENGTH, StopReason.END, StopReason.REFUSED] + [StopReason.END] * 2
    assert [reply.stop for reply in replies] == ends
    assert [reply.retries for reply in replies] == [2, 0, 2, 1, 0, 1, 0]
    assert [one.replies for one in run.attempts] == [2, 2, 1, 1, 1]
    cut = sum((reply.cut.usage for reply in replies), Usage())
    assert [reply.cut.tokens > 0 for reply in replies] == [False, False, True, True, False, True, False]
    assert run.cut == cut
    assert run.usage == Usage(7 * 1000, 7 * 200, 7 * 3000) + cut
    per_reply = service.dollars_per_reply
    cut_dollars = [reply.cut.dollars or 0.0 for reply in replies]
    assert run.dollars == (None if per_reply is None else pytest.approx(7 * per_reply + sum(cut_dollars)))
    assert (sum(cut_dollars) > 0) == (per_reply is not None)

    # What could not be used was asked for once more, in the same conversation.
    malformed, cut_off = (folder.attempt(n).text("question-2.md") for n in (1, 2))
    assert MALFORMED.strip() in malformed
    assert "neither a ```cuda block nor SEARCH/REPLACE edits" in malformed
    assert "reached the limit on output" in cut_off

    expected = [
        "the service answered 429: slow down; asking again in ",
        "the service answered 529: Overloaded; asking again in ",
        "the service answered 503: upstream connect error; asking again in ",
        "the stream broke (",
        "the stream ended before the reply did; asking again in ",
        "the stream broke (",
        f"the service did not accept the key; check {service.key_variable} (401): the key [key removed] is not valid",
    ]
    assert len(said) == len(expected)
    for sentence, beginning in zip(said, expected, strict=True):
        assert sentence.startswith(f"{service.name}: {beginning}")
    assert KEY not in stored(tmp_path) + "\n".join(said)
    assert not list(tmp_path.rglob("*.partial.md"))
    assert Store(tmp_path / "home").runs().runs == (run,)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory, bench: Bench) -> tuple[RunFolder, Run]:
    """A run through a server that behaves: four attempts, and the replies above without the troubles."""
    folder = begun(tmp_path_factory.mktemp("recorded"), "anthropic:clever-1", budget=Budget(attempts=4))
    with (
        AnthropicServer(Script(MALFORMED, WRONG, RIGHT, MALFORMED, FASTER, CUT_OFF, MALFORMED), piece=64) as server,
        closing(open_model("anthropic:clever-1", base_url=server.base_url, environ={}, retries=QUICK)) as model,
    ):
        run = carried(folder, bench, model)
    assert reasons(run) == ["wrong values", "passed", "passed", "no usable reply"]
    assert folder.attempt(3).text("kernel.cu") == FAST_KERNEL
    return folder, run


def test_a_replay_of_a_run_comes_to_the_same_end(
    tmp_path: Path, bench: Bench, recording: tuple[RunFolder, Run]
) -> None:
    recorded, first = recording
    name = f"replay:{recorded.path}"
    folder = begun(tmp_path, name, budget=Budget(attempts=4))
    with closing(open_model(name, environ={})) as model:
        run = carried(folder, bench, model)
    assert outcome(run) == outcome(first)
    assert (run.ending, run.usage, run.dollars) == (first.ending, first.usage, first.dollars)
    assert folder.attempt(3).text("kernel.cu") == FAST_KERNEL


def test_a_relay_is_answered_by_files(tmp_path: Path, bench: Bench, recording: tuple[RunFolder, Run]) -> None:
    recorded, first = recording
    numbers = [(one.number, k) for one in first.attempts for k in range(1, one.replies + 1)]
    replies = {f"{n:04d}-{k}": recorded.attempt(n).text(f"reply-{k}.md") for n, k in numbers}
    name = f"relay:{tmp_path / 'box'}"
    folder, said = begun(tmp_path / "home", name, budget=Budget(attempts=4)), list[str]()
    with (
        closing(open_model(name, environ={}, say=said.append)) as model,
        Correspondent(tmp_path / "box", replies) as somebody,
    ):
        began = time.monotonic()
        run = carried(folder, bench, model)
        took_s = time.monotonic() - began
    assert run.seconds < took_s - 0.2 * len(replies), "waiting for somebody is no work"  # a reply is looked at twice
    assert outcome(run) == outcome(first)
    assert somebody.answered == list(replies)
    assert (run.dollars, run.usage.output_tokens > 300) == (0.0, True)
    prompts = [(tmp_path / "box" / f"{name}.prompt.md").read_text() for name in replies]
    assert "neither a ```cuda block" in prompts[1]
    assert all(prompt.startswith("# Question 000") for prompt in prompts)
    assert said[0].startswith(f"waiting for {tmp_path / 'box' / '0001-1.reply.md'}")


def test_a_model_that_makes_no_sense_ends_the_run_with_all_it_said_on_record(tmp_path: Path, bench: Bench) -> None:
    name = f"transformers:{make_random_model(tmp_path / 'model')}"
    folder = begun(tmp_path / "home", name)
    with closing(open_model(name, environ={}, say=lambda _: None)) as model:
        run = carried(folder, bench, model)
    assert run.ending is Ending.UNREADABLE
    assert run.best is None
    assert [one.replies for one in run.attempts] == [2, 2, 2]
    assert all(
        problem(one).startswith("asked twice, and the reply has neither a ```cuda block") for one in run.attempts
    )
    replies = [reply for n in (1, 2, 3) for reply in folder.attempt(n).replies()]
    assert len(replies) == 6
    assert len({reply.text for reply in replies}) > 1
    assert run.usage == sum((reply.usage for reply in replies), Usage())
    assert run.usage.input_tokens > 6 * 1000
    assert run.dollars == 0.0
    assert Store(tmp_path / "home").runs().runs == (run,)


class Onlooker(Silent):
    """Looks at the part of the reply that is on disk whenever a piece has come in."""

    def __init__(self, folder: RunFolder) -> None:
        self.partial = folder.attempt(1).path / "reply-1.partial.md"
        self.seen: list[str] = []

    def text(self, text: str) -> None:
        self.seen.append(self.partial.read_text())


@pytest.mark.parametrize("service", SERVICES[:2], ids=lambda service: service.name.partition(":")[0])
def test_a_reply_is_on_disk_as_it_comes_in_and_without_the_key(service: Service, tmp_path: Path, bench: Bench) -> None:
    folder, environ = begun(tmp_path, service.name, budget=Budget(attempts=1)), {service.key_variable: KEY}
    telling = WRONG.replace("Summary:", f"Summary: {KEY}")
    troubles: list[Cut | None] = [Cut(30)] * QUICK.attempts
    watch = Onlooker(folder)
    with service.serve(lambda body: telling, troubles, piece=7) as server:
        model = open_model(service.name, base_url=server.base_url, environ=environ, retries=QUICK, say=lambda _: None)
        context = RunContext(ModelAuthor(service.name), model.complete, *bench, watch)
        with pytest.raises(ModelUnavailable, match="did not answer in 4 attempts; the last failed because the stream"):
            refine(folder, context)
        # What was heard until then stays: four beginnings, told apart.
        left = watch.partial.read_text()
        assert left.count("Summary: [key removed] a run of elements") == QUICK.attempts
        assert left.count("asked again") == QUICK.attempts - 1
        assert folder.load().attempts == ()
        watch.seen.clear()
        run = refine(folder, context)
        model.close()
        assert len(server.requests) == QUICK.attempts + 1
    assert watch.seen[-1] == telling.replace(KEY, "[key removed]")
    assert all(later.startswith(earlier) for earlier, later in zip(watch.seen, watch.seen[1:], strict=False))
    assert not watch.partial.exists()
    assert run.ending is Ending.ATTEMPTS
    # The four that were given up are paid for too, and count with the reply that came in the end.
    assert run.usage.output_tokens == 20 + run.cut.output_tokens
    assert run.cut.output_tokens >= QUICK.attempts * 7 * 20 // 4
    assert not list(folder.path.rglob("unanswered-*"))
    assert folder.attempt(1).text("reply-1.md") == telling.replace(KEY, "[key removed]")
    assert KEY not in stored(tmp_path)
    for length in range(8, len(KEY)):  # nor the beginning of it, where a piece ended within
        assert not any(text.endswith(KEY[:length]) for text in watch.seen)


@pytest.mark.parametrize("service", SERVICES[:2], ids=lambda service: service.name.partition(":")[0])
def test_a_run_stopped_between_a_reply_and_its_correction_asks_for_the_correction_alone(
    service: Service, tmp_path: Path, bench: Bench
) -> None:
    folder = begun(tmp_path, service.name, budget=Budget(attempts=1))
    with (
        service.serve(Script(MALFORMED, WRONG), [None, Status(401)], piece=64) as server,
        closing(open_model(service.name, base_url=server.base_url, environ={}, retries=QUICK)) as model,
    ):
        with pytest.raises(ModelRejected):
            carried(folder, bench, model)
        assert [reply.text for reply in folder.attempt(1).replies()] == [MALFORMED]
        run = carried(folder, bench, model)
        asked = [[message["content"] for message in request.body["messages"]] for request in server.requests]
    assert len(asked) == 3
    assert asked[1] == asked[2]
    assert asked[1][-2] == MALFORMED.strip()
    assert reasons(run) == ["wrong values"]
    assert (run.attempts[0].replies, run.usage) == (2, Usage(200, 40))
