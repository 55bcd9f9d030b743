"""Numbers of calls back into expressions."""

from __future__ import annotations

import random

import pytest

from tilewright.importing.fitting import Fitter, Term

CHANCE = random.Random(3)
ROWS = tuple(CHANCE.choice((CHANCE.randint(1, 90), CHANCE.randint(1, 30_000))) for _ in range(60))
COLUMNS = tuple(CHANCE.choice((1023, 1024, 1025, 4096, 4100, CHANCE.randint(1, 9000))) for _ in range(60))
FITTER = Fitter([Term("rows", ROWS), Term("columns", COLUMNS)], literals=(256, 1024), edges=(1024, 4096))


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("256", lambda r, c: 256),
        ("rows", lambda r, c: r),
        ("rows * columns", lambda r, c: r * c),
        ("columns * 4", lambda r, c: 4 * c),
        ("ceil_div(rows * columns, 256)", lambda r, c: -(-r * c // 256)),
        ("rows / 4", lambda r, c: r // 4),
        ("ceil_div(rows, columns)", lambda r, c: -(-r // c)),
        ("columns * 4 + 128", lambda r, c: 4 * c + 128),
        ("min(ceil_div(rows * columns, 256), 65535)", lambda r, c: min(-(-r * c // 256), 65535)),
        ("ceil_div(rows, 128) * ceil_div(columns, 64)", lambda r, c: -(-r // 128) * -(-c // 64)),
        ("ceil_div(columns, 32) * rows", lambda r, c: -(-c // 32) * r),
        ("round_up(columns, 32)", lambda r, c: -(-c // 32) * 32),
        ("min(max(next_pow2(rows), 32), 1024)", lambda r, c: min(max(1 << (r - 1).bit_length(), 32), 1024)),
        ("columns if columns <= 1024 else 256", lambda r, c: c if c <= 1024 else 256),
        (
            "rows if columns <= 1024 else ceil_div(rows * columns, 256)",
            lambda r, c: r if c <= 1024 else -(-r * c // 256),
        ),
    ],
)
def test_what_a_launcher_computes_is_found(text: str, function: object) -> None:
    target = tuple(function(r, c) for r, c in zip(ROWS, COLUMNS, strict=True))  # type: ignore[operator]
    found = FITTER.fit(target)
    assert found is not None
    assert found.text == text


def test_what_no_expression_gives_is_not_made_up() -> None:
    assert FITTER.fit(tuple(hash((r, c)) % 1000 for r, c in zip(ROWS, COLUMNS, strict=True))) is None
