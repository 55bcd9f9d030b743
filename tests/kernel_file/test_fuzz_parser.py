"""Whatever the text: a file or a `KernelFileError`, soon, and nothing kept."""

from __future__ import annotations

import contextlib
import gc
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.kernel_file import words
from tilewright.kernel_file.parser import autofix, parse
from tilewright.kernel_file.problems import KernelFileError, Problem

FILES = [path.read_text() for path in sorted((Path(__file__).parent / "plans").glob("*.cu"))]
FRAGMENTS = [
    *words.DIRECTIVES,
    *words.FUNCTIONS,
    *words.DTYPES,
    *words.TAKEN,
    *"()[]<>,.:;=|!?#+-*/%\\\"'{}~@$",
    *("<<<", ">>>", "==", "!=", "||", "&&", "//", "->", "::", "??", "/*", "*/", "\n", "\t", "//!"),
    *("x", "y", "n", "A", "1", "0", "-1", "1.5", "1e999", "99999999999999999999", "0x1f", "1f"),
    *("x.shape", "x.size(0)", "device.sms", "torch.float32"),
    "\n//! ",
    "\r\n",
    "\\\n",
    "\x00",
    "\ud800",
    "\u202e",
    "é",
    'R"(',
    "#include <x>",
    "__device__ int a;",
]
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def problems_of(text: str) -> tuple[Problem, ...]:
    try:
        parse(text)
    except KernelFileError as error:
        return error.problems
    return ()


def survives(text: str) -> None:
    """Reads or is refused, with every problem inside the file and saying something."""
    start = time.process_time()
    problems = problems_of(text)
    lines = text.split("\n")
    for problem in problems:
        assert problem.found
        assert problem.remedy
        assert 0 <= problem.line <= len(lines)
        assert not problem.line or 1 <= problem.column <= len(lines[problem.line - 1]) + 1
    assert list(problems) == sorted(problems, key=lambda problem: (problem.line, problem.column))
    with contextlib.suppress(KernelFileError):
        assert parse(autofix(text).text).plan
    assert time.process_time() - start < 60


@QUICK
@given(st.text(max_size=400))
def test_any_text(text: str) -> None:
    survives(text)


@QUICK
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=80).map(" ".join))
def test_words_of_the_plan_in_any_order(text: str) -> None:
    survives("//! " + text)


@QUICK
@given(
    st.sampled_from(FILES),
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 30), st.sampled_from(["", *FRAGMENTS])), min_size=1, max_size=6
    ),
)
def test_mutated_files(text: str, edits: list[tuple[int, int, str]]) -> None:
    for position, length, replacement in edits:
        place = position % (len(text) + 1)
        text = text[:place] + replacement + text[place + length :]
    survives(text)


def wrapped(expression: str) -> str:
    return f"//! op f(x) -> y\n//! out y: f32[1]\n//! let a = {expression}\n//! launch f<<<1, 32>>>(y)\nvoid f();\n"


DEEP = [
    "(" * 5000 + "1" + ")" * 5000,
    "[" * 5000 + "1" + "]" * 5000,
    "-" * 50_000 + "1",
    "not " * 20_000 + "true",
    "!" * 50_000 + "true",
    "1" + " + 1" * 20_000,
    "x" + ".shape" * 10_000,
    "x" + "[0]" * 20_000,
    "1 if true else " * 10_000 + "1",
    "true" + " and true" * 10_000,
    "max(" * 10_000,
    "9" * 100_000,
    "1e" + "9" * 5000,
    "1." + "0" * 50_000,
    "a" * 200_000,
    '"' * 100_000,
]


@pytest.mark.slow
@pytest.mark.parametrize("expression", DEEP, ids=lambda text: f"{text[:12]}...{len(text)}")
@pytest.mark.parametrize("over_lines", [False, True])
def test_deep_and_long_expressions(expression: str, over_lines: bool) -> None:
    """In one line, and broken over many so that no line is too long."""
    if over_lines:
        expression = "(" + "\n//! ".join(expression[i : i + 900] for i in range(0, len(expression), 900)) + ")"
    survives(wrapped(expression))
    with pytest.raises(KernelFileError):
        parse(wrapped(expression))


def test_the_largest_plan_reads() -> None:
    """At every limit at once, and not beyond."""
    let = "//! let a{0} = " + " + ".join(["n"] * 100) + "\n"
    lets = "".join(let.format(i) for i in range(64))
    deep = "//! let deep = " + "(" * 20 + "n" + ")" * 20 + "\n"
    text = (
        "//! op f(n: int) -> y\n//! out y: f32[1]\n" + lets + deep + "//! launch f<<<1, 32>>>(y)\n" * 32 + "void f();\n"
    )
    start = time.process_time()
    parse(text)
    assert time.process_time() - start < 30


@pytest.mark.slow
def test_reading_keeps_nothing() -> None:
    texts = [*FILES, wrapped("(" * 50), "//! " + "x " * 300]

    def read_all() -> None:
        for text in texts:
            problems_of(text)

    read_all()
    gc.collect()
    tracemalloc.start()
    read_all()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10):
        read_all()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 20_000
