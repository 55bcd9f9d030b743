"""Asking again: which failures pass, how long to wait, when to give up.

The SDKs' own retries are switched off. They end once the first byte of a stream has arrived, and a stream that is cut
midway must be asked again as a whole; two layers of retries would multiply.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

from tilewright.models.protocol import ModelError, ModelUnavailable

T = TypeVar("T")
PASSING_STATUSES = frozenset({408, 409, 425, 429})  # and every 5xx, Anthropic's 529 among them


@dataclass(frozen=True)
class RetryPolicy:
    """Waits double from `first_wait_s` to `longest_wait_s`, each drawn anew within a quarter either way."""

    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    longest_asked_s: float = 120.0  # a server that asks for more patience than this is given up
    give_up_at: float = math.inf  # in `time.monotonic`: nothing is asked again that would have to wait past it

    def wait_s(self, retry: int) -> float:
        """The wait before retry number `retry`, from 0."""
        return min(self.longest_wait_s, self.first_wait_s * 2.0**retry) * random.uniform(0.75, 1.25)


@dataclass(frozen=True)
class Passing:
    """A failure that may pass: what it was, and how long the server asked to be left alone."""

    reason: str
    asked_s: float | None = None


def is_passing(status: int) -> bool:
    return status in PASSING_STATUSES or status >= 500


def asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """What `Retry-After` asks for: seconds, milliseconds in the form both SDKs know, or a date."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000.0
    text = headers.get("retry-after")
    if text is None:
        return None
    if (seconds := _number(text)) is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if 0.0 <= value < float("inf") else None


def ask_until_answered(
    once: Callable[[], T],
    failure_of: Callable[[Exception], Passing | ModelError | None],
    policy: RetryPolicy,
    who: str,
    say: Callable[[str], None],
) -> tuple[T, int]:
    """What `once` returns, and how many retries that took.

    `failure_of` reads an exception: one that may pass, one that is final, or None for one that is not the service's.
    The exceptions of the SDKs hold the request with its key, so they are never chained to the one raised here.
    """
    for attempt in range(policy.attempts):
        try:
            return once(), attempt
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
        if isinstance(failure, ModelError):
            raise failure
        if failure.asked_s is not None and failure.asked_s > policy.longest_asked_s:
            raise ModelUnavailable(
                f"{who} asks to wait {failure.asked_s:.0f} s ({failure.reason}); resume the run later"
            )
        if attempt + 1 == policy.attempts:
            raise ModelUnavailable(
                f"{who} did not answer in {policy.attempts} attempts; the last failed because {failure.reason}"
            )
        wait_s = max(policy.wait_s(attempt), failure.asked_s or 0.0)
        if time.monotonic() + wait_s > policy.give_up_at:
            raise ModelUnavailable(
                f"{who} did not answer, and there is no time left to ask again; the last attempt failed because "
                f"{failure.reason}"
            )
        say(f"{who}: {failure.reason}; asking again in {wait_s:.1f} s")
        time.sleep(wait_s)
    raise ValueError("a retry policy has at least one attempt")
