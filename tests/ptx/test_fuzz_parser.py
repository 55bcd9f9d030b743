"""Mutations of valid PTX: each is read or refused with a `PtxError`, in bounded time and memory, and never crashes."""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.ptx.control_flow import flow
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.syntax import Module, PtxError

SAMPLES = Path(__file__).parent / "samples"
TEXTS = [(SAMPLES / name).read_text() for name in ("forms.ptx", "row_sum_sm80.ptx", "calls_sm100a.ptx")]
TOKENS = sorted({token for text in TEXTS for token in re.findall(r"[%$.\w]+|[^\w\s]", text)})
ODD = ["", "9" * 5000, "<9999999999>", "0x", "/*", "//", "\0", "é", *'-{}()[]";:%_']
SECONDS = 30.0

FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def survives(text: str) -> Module | None:
    """The module, or None where it was refused as it should be."""
    started = time.process_time()
    module: Module | None = None
    refusal: PtxError | None = None
    try:
        module = parse_ptx(text)
        for function in module.functions.values():
            flow(function)
    except PtxError as error:
        module, refusal = None, error
    assert time.process_time() - started < SECONDS
    if refusal is not None:
        assert str(refusal)
        assert 0 <= refusal.ptx_line <= text.count("\n") + 1
    return module


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """A sample with some of its tokens or characters replaced, dropped, doubled or moved."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 6))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.sampled_from([0, 1, 1, 2, 5, 20, 200])))
        kind = draw(st.sampled_from(["drop", "token", "odd", "double", "move", "letter"]))
        if kind == "drop":
            text = text[:begin] + text[end:]
        elif kind == "token":
            text = text[:begin] + draw(st.sampled_from(TOKENS)) + text[end:]
        elif kind == "odd":
            text = text[:begin] + draw(st.sampled_from(ODD)) + text[end:]
        elif kind == "double":
            text = text[:end] + text[begin:]
        elif kind == "move":
            target = draw(st.integers(0, len(text)))
            text = text[:target] + text[begin:end] + text[target:]
        else:
            text = text[:begin] + draw(st.characters()) + text[end:]
    return text


@FUZZ
@given(mutations())
def test_mutations_are_read_or_refused(text: str) -> None:
    survives(text)


@FUZZ
@given(st.lists(st.sampled_from(TOKENS + ODD), max_size=60))
def test_tokens_in_any_order(tokens: list[str]) -> None:
    head = ".version 9.0\n.target sm_80\n.address_size 64\n"
    survives(head + " ".join(tokens))
    survives(head + ".entry k() { .reg .b32 %r<9>; .reg .pred %p<9>; " + " ".join(tokens) + " }")


@FUZZ
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    survives(text)


@pytest.mark.parametrize("text", TEXTS, ids=["forms", "row_sum", "calls"])
def test_every_beginning(text: str) -> None:
    """Cut anywhere, also between functions, where what is left is a module."""
    whole = survives(text)
    assert whole is not None
    for end in range(0, len(text), 37):
        module = survives(text[:end])
        assert module is None or set(module.functions) <= set(whole.functions)


HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n"
HOSTILE = {
    "many registers": HEAD + ".entry k() { .reg .b32 %r<999999999>; mov.b32 %r999999998, 1; ret; }",
    "large arrays": HEAD + "".join(f".global .b8 a{i}[60000000] = {{1}};\n" for i in range(1000)),
    "large rows": HEAD + ".global .b8 a[1000][1000000] = {" + "{}," * 900 + "{}};",
    "deep blocks": HEAD + ".entry k() " + "{" * 100000,
    "deep parentheses": HEAD + ".entry k() { .reg .b32 %r<2>; mov.b32 %r1, " + "(" * 50000 + "; }",
    "deep initialiser": HEAD + ".global .u32 a[1] = " + "{" * 50000,
    "long name": HEAD + ".global .u32 " + "a" * 1000000 + ";",
    "long opcode": HEAD + ".entry k() { add" + ".x" * 200000 + "$ 1; }",
    "long number": HEAD + ".entry k() { .reg .b32 %r<2>; mov.b32 %r1, " + "1" * 500000 + "; }",
    "many dimensions": HEAD + ".global .u32 a" + "[9223372036854775807]" * 5000 + ";",
    "endless chain": HEAD
    + ".entry k() {\n"
    + ".loc 1 1 1, function_name f, inlined_at 1 1 1\nbar.sync 0;\n" * 5000
    + '}\n.file 1 "a"',
    "open comment": HEAD + "/*" * 100000,
    "open string": HEAD + ".pragma " + '"' * 100001,
    "many labels": HEAD + ".entry k() { " + "".join(f"L{i}: bra L{i};" for i in range(5000)) + "}",
    "many traps": HEAD + ".entry k() { .reg .pred %p<2>; " + "@%p1 bra E; trap;" * 3000 + "E: ret; }",
    "wide vector": HEAD + ".entry k() { .reg .b32 %r<2>; mov.b32 {" + "%r1," * 100000 + "%r1}, 1; }",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts(name: str) -> None:
    text = HOSTILE[name]
    tracemalloc.start()
    try:
        survives(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (600 << 20)
