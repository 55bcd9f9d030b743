"""The contract and the specification are true: what they show runs, and what the parser knows is in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tilewright.kernel_file import words
from tilewright.kernel_file.evaluate import evaluate
from tilewright.kernel_file.parser import parse
from tilewright.kernel_file.problems import Code, KernelFileError
from tilewright.kernel_file.source_scan import ALLOWED_FOLDERS, ALLOWED_HEADERS
from tilewright.kernel_file.words import contract
from tilewright.records import PROFILES, DType, Launch, TensorSpec

SPECIFICATION = (Path(__file__).parents[2] / "docs" / "kernel-file.md").read_text()

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


def fenced(kind: str, text: str | None = None) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", contract() if text is None else text, re.MULTILINE | re.DOTALL)


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
    assert len(file.plan.directives) == 12
    # `library` has a line of its own, and `lead` is the task's affair.
    assert {line[4:12].strip() for line in listing.splitlines()} | {"library", "lead"} == set(words.DIRECTIVES)


def test_the_library_line_parses() -> None:
    (line,) = re.findall(r"`(//! library [^`]*)`", contract())
    plan = f"//! op f(a, b) -> y\n//! out y: f32[1]\n//! scratch t: f32[1]\n{line}\n//! launch f<<<1, 32>>>(t, y)\n"
    parse(plan + "__global__ void f() {}\n")


# -- docs/kernel-file.md --


def test_the_specification_has_every_code_once() -> None:
    table = [line.split("|")[1] for line in SPECIFICATION.splitlines() if line.startswith("| `")]
    assert sorted(code for cell in table for code in re.findall(r"`([a-z-]+)`", cell)) == sorted(
        code.value for code in Code
    )


@pytest.mark.parametrize("word", [*KNOWN, *words.LIBRARY_FUNCTIONS, *sorted(words.TAKEN)])
def test_the_specification_has_every_word(word: str) -> None:
    bare = word.removeprefix("device").lstrip(".") if word.startswith(("device.", ".")) else word
    assert re.search(rf"(?<!\w){re.escape(bare)}(?!\w)", SPECIFICATION)


def launches(example: str, shapes: dict[str, TensorSpec]) -> list[Launch]:
    steps = evaluate(parse(example, "example.cu"), shapes, PROFILES["H200"]).steps
    return [step for step in steps if isinstance(step, Launch)]


def test_the_examples_of_the_specification_run() -> None:
    silu, split, hopper = fenced("cuda", SPECIFICATION)
    (launch,) = launches(silu, {"x": TensorSpec.contiguous(DType.F32, (1000,))})
    assert (launch.grid, launch.block) == ((4, 1, 1), (256, 1, 1))
    square = TensorSpec.contiguous(DType.F32, (1024, 1024))
    first, second = launches(split, {"a": square, "b": square})
    assert (first.kernel, first.grid, second.grid) == ("part<16>", (64, 64, 4), (1024, 1, 1))
    half = TensorSpec.contiguous(DType.BF16, (4096, 4096))
    (launch,) = launches(hopper, {"a": half, "b": half})
    assert (launch.grid, launch.cluster, launch.dynamic_smem_bytes) == ((132, 1, 1), (2, 1, 1), 197_696)


def test_the_errors_of_the_specification_are_those_shown() -> None:
    (plan,) = fenced("plan-with-errors", SPECIFICATION)
    (shown,) = fenced("errors", SPECIFICATION)
    with pytest.raises(KernelFileError) as caught:
        parse(plan + "__global__ void scale() {}\n")
    assert "".join(f"{problem}\n" for problem in caught.value.problems) == shown


def test_the_python_of_the_specification_runs() -> None:
    (program,) = fenced("python", SPECIFICATION)
    scope: dict[str, Any] = {"text": fenced("cuda", SPECIFICATION)[0]}
    exec(compile(program, "docs/kernel-file.md", "exec"), scope)
    assert scope["problems"] == ()
    assert scope["file"].plan.op.name == "silu"
    assert scope["fixed"].text == scope["text"]
