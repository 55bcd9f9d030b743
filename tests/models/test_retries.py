from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from tilewright.models import ModelError, ModelRejected, ModelUnavailable, RetryPolicy
from tilewright.models.service import Passing, ask_until_answered, asked_wait_s, is_passing

HASTY = RetryPolicy(attempts=4, first_wait_s=0.001, longest_wait_s=0.002)


class Scripted:
    """Raises one exception after the other, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def failure_of(error: Exception) -> Passing | ModelError | None:
    match error:
        case ConnectionError():
            return Passing("the line is dead", float(str(error)) if str(error) else None)
        case PermissionError():
            return ModelRejected("no")
    return None


def ask(once: Scripted, policy: RetryPolicy = HASTY) -> tuple[str, int]:
    return ask_until_answered(once, failure_of, policy, "somebody", lambda text: None)


def test_retries_are_counted() -> None:
    assert ask(Scripted()) == ("answer", 0)
    assert ask(Scripted(ConnectionError(), ConnectionError())) == ("answer", 2)


def test_the_last_attempt_is_the_last() -> None:
    once = Scripted(*[ConnectionError() for _ in range(9)])
    with pytest.raises(ModelUnavailable, match=r"somebody did not answer in 4 attempts.*the line is dead"):
        ask(once)
    assert once.calls == 4


def test_final_and_foreign_failures_are_not_retried() -> None:
    for error, expected in ((PermissionError(), ModelRejected), (ZeroDivisionError(), ZeroDivisionError)):
        once = Scripted(error)
        with pytest.raises(expected):
            ask(once)
        assert once.calls == 1


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that are asked for, none of which takes any time."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


def test_an_asked_wait_is_kept(slept: list[float]) -> None:
    ask(Scripted(ConnectionError("0.3")))
    assert slept == [0.3]
    with pytest.raises(ModelUnavailable, match="asks to wait 500 s"):
        ask(Scripted(ConnectionError("500")))


def test_nothing_waits_past_the_time_to_give_up(slept: list[float]) -> None:
    once = Scripted(ConnectionError("30"))
    with pytest.raises(ModelUnavailable, match=r"no time left to ask again.*the line is dead"):
        ask(once, RetryPolicy(give_up_at=time.monotonic() + 20.0))
    assert (once.calls, slept) == (1, [])


def test_waits_double_up_to_a_limit_and_differ() -> None:
    policy = RetryPolicy(first_wait_s=1.0, longest_wait_s=8.0)
    for retry, middle in enumerate((1.0, 2.0, 4.0, 8.0, 8.0, 8.0)):
        waits = [policy.wait_s(retry) for _ in range(50)]
        assert all(0.75 * middle <= wait <= 1.25 * middle for wait in waits)
        assert len(set(waits)) > 10


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_statuses_that_pass(status: int) -> None:
    assert is_passing(status)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_statuses_that_do_not(status: int) -> None:
    assert not is_passing(status)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_what_retry_after_asks_for(headers: dict[str, str], expected: float | None) -> None:
    assert asked_wait_s(headers) == expected


def test_retry_after_as_a_date() -> None:
    asked = asked_wait_s({"retry-after": formatdate(time.time() + 30, usegmt=True)})
    assert asked is not None
    assert 27 < asked <= 30
