"""Numbers that know where they come from: the same as plain ones to everybody else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tilewright.tasks.child.tracked_numbers import Expression, is_tracked, listening, plain, tracked

FORMULAS: dict[str, Callable[[Any, Any], Any]] = {
    "sums": lambda n, t: 3 + n - 2 * n + n * n - (1 - n),
    "quotients": lambda n, t: n // 3 + 100 // n + n % 7 + 100 % n + divmod(n, 5)[1] + divmod(99, n)[0],
    "bits": lambda n, t: (n & 6) | (n ^ 3) | (n << 1) | (n >> 1) | ~n | n.bit_length(),
    "floats": lambda n, t: n / 4 + t * 2 - t**2 + n**0.5 + 2**t + abs(-t) + (+t),
    "rounded": lambda n, t: round(n / 7) + math.ceil(n / 7) + math.floor(t) + math.trunc(t),
    "of a list": lambda n, t: sum([n, 2, n]) * math.prod((n, 3)),
}


def numbers(n: int, t: float) -> tuple[Any, Any]:
    return tracked(n, Expression.symbol("n")), tracked(t, Expression.symbol("t"))


@pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS)
def test_formulas_give_the_same_number_here_and_elsewhere(formula: Callable[[Any, Any], Any]) -> None:
    made = formula(*numbers(12, 2.5))
    assert is_tracked(made)
    assert plain(made) == formula(12, 2.5)
    assert type(plain(made)) is type(formula(12, 2.5))
    for n, t in ((5, 0.5), (64, 3.25)):
        assert made.expression.at({"n": n, "t": t}) == formula(n, t)


def test_every_question_is_heard_and_may_be_answered_otherwise() -> None:
    n, t = numbers(12, 2.5)
    heard: list[str] = []

    def asked(expression: Expression, answer: bool) -> bool:
        heard.append(expression.text)
        return not answer

    with listening(asked):
        answers = [n > 3, n > 20, n == 12, n != 12, bool(t), not n, (n / 5).is_integer()]
        assert answers == [False, True, False, True, False, True, True]
        assert max(n, 20) is n
        assert n in (5, 6)
    assert heard[:4] == ["(n > 3)", "(n > 20)", "(n == 12)", "(n != 12)"]
    assert len(heard) == 9
    assert n > 3  # nobody listens any more


def test_torch_and_python_take_them() -> None:
    n, t = numbers(4, 0.5)
    x = torch.ones(n, 3)
    assert (x * t).sum() == (t * x).sum() == 6
    assert x.view(n // 2, -1).shape == (2, 6)
    assert torch.clamp(x, max=t).max() == 0.5
    assert [0] * n == [0, 0, 0, 0]
    assert {4: "a"}[n] == "a"
    assert f"{n} {t}" == "4 0.5"
    assert isinstance(n, int)
    assert (x > t).all()
    assert (t < x).all()


def test_what_grows_without_end_is_followed_no_further() -> None:
    n, _ = numbers(2, 0.0)
    total = n
    for _ in range(200):
        total = total + n
    assert plain(total) == 402
    assert not is_tracked(total) or len(total.expression.text) <= 400
