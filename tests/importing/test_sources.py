"""Items of CUDA sources, and what is kept of them."""

from __future__ import annotations

import pytest
from tests.importing.examples import MACRO, ROWS, SCALE

from tilewright.importing.device_text import device_text
from tilewright.importing.host_program import rewrite_launches
from tilewright.importing.importer import launchers
from tilewright.importing.sources import ImportProblem, Kind, read_source


def test_items_are_told_apart() -> None:
    source = read_source("scale.cu", SCALE, None)
    kinds = {item.name: item.kind for item in source.items if item.name}
    assert kinds["twice"] is Kind.DEVICE
    assert kinds["scale_kernel"] is Kind.KERNEL
    assert kinds["blocks_for"] is Kind.HOST
    assert kinds["DEBUG_PRINT"] is Kind.MACRO


@pytest.mark.parametrize(("text", "names"), [(SCALE, ["scale"]), (ROWS, ["rows"]), (MACRO, ["relu_f32"])])
def test_launchers_are_found(text: str, names: list[str]) -> None:
    assert launchers(read_source("k.cu", text, None)) == names


def test_only_what_the_kernel_reaches_is_kept() -> None:
    source = read_source("scale.cu", SCALE, None)
    made = device_text(source, {"scale_kernel"})
    assert "// Twice a number." in made.text
    assert "torch" not in made.text
    assert "printf" not in made.text
    assert made.edits == ("std::max -> max",)
    line = next(number for number, text in enumerate(made.text.splitlines(), 1) if "__global__" in text)
    assert "__global__" in SCALE.splitlines()[made.line(line) - 1]


@pytest.mark.parametrize(
    ("launch", "made"),
    [
        ("k<<<g, 256>>>(x);", "::tw::configure(__LINE__, g, 256), k(x);"),
        (
            "a::k<T, 1 << 3><<<dim3(f(1), 2), b, s, st>>>(x)",
            "::tw::configure(__LINE__, dim3(f(1), 2), b, s, st), a::k<T, 1 << 3>(x)",
        ),
        ("if (v) k##_v<<<g, b>>>(x);", "if (v) ::tw::configure(__LINE__, g, b), k##_v(x);"),
    ],
)
def test_launches_become_calls(launch: str, made: str) -> None:
    assert rewrite_launches(launch) == made


def test_text_that_is_no_source_is_one_sentence() -> None:
    with pytest.raises(ImportProblem, match=r"k\.cu:1: "):
        read_source("k.cu", 'char* s = "open', None)
