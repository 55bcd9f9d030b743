"""How a compiler's message is written."""

from __future__ import annotations

import pytest

from tilewright.records import Diagnostic, Severity


@pytest.mark.parametrize(
    ("line", "column", "text"),
    [
        (3, 7, "k.cu:3:7: error: no"),
        (3, 0, "k.cu:3: error: no"),
        (0, 0, "k.cu: error: no"),
    ],
)
def test_a_place_is_as_exact_as_it_is_known(line: int, column: int, text: str) -> None:
    assert str(Diagnostic(Severity.ERROR, "k.cu", line, column, "no", "")) == text
