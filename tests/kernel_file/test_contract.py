"""The contract is true: what it shows parses, and everything the parser knows is in it."""

from __future__ import annotations

import re

import pytest

from tilewright.kernel_file import words
from tilewright.kernel_file.contract import contract
from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.source_scan import ALLOWED_FOLDERS, ALLOWED_HEADERS

KNOWN = [
    *words.DIRECTIVES,
    *words.FUNCTIONS,
    *words.DTYPES,
    *words.LAUNCH_ATTRIBUTES,
    *words.MAP_OPTIONS,
    *words.ACCEPT_FLAGS,
    *(f".{name}" for name in words.TENSOR_ATTRIBUTES),
    *(f"device.{name}" for name in words.DEVICE_ATTRIBUTES),
    *words.OPERATOR_WORDS,
    "zeroed",
    "counter",
    "dim3",
    *ALLOWED_HEADERS,
    *ALLOWED_FOLDERS,
]


def fenced(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", contract(), re.MULTILINE | re.DOTALL)


def mentions(word: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", contract()) is not None or (
        word.startswith(".") and f" {word}" in contract()
    )


@pytest.mark.parametrize("word", KNOWN)
def test_every_word_is_mentioned(word: str) -> None:
    assert mentions(word)


def test_the_worked_example_parses() -> None:
    (example,) = fenced("cuda")
    file = parse(example, "contract.cu")
    assert file.plan.op.name == "scale_rows"


def test_the_list_of_directives_is_a_plan() -> None:
    (listing,) = fenced("plan")
    # Each line is a directive, then blanks, then what it means: a directive never has four blanks inside it.
    lines = [re.sub(r"(?<=\S)\s{3,}(?![\s(]).*", "", line[12:]) for line in listing.splitlines()]
    plan = "".join(line[:12] + rest + "\n" for line, rest in zip(listing.splitlines(), lines, strict=True))
    file = parse(plan + "__global__ void f(int a = COLS + HAS_MASK) {}\n", "directives.cu")
    assert len(file.plan.directives) == 13
    assert {line[4:12].strip() for line in listing.splitlines()} | {"library"} == set(words.DIRECTIVES)


def test_the_library_line_parses() -> None:
    (line,) = re.findall(r"`(//! library [^`]*)`", contract())
    plan = f"//! op f(a, b) -> y\n//! out y: f32[1]\n//! scratch t: f32[1]\n{line}\n//! launch f<<<1, 32>>>(t, y)\n"
    parse(plan + "__global__ void f() {}\n")
