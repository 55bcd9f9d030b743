"""PTX that nobody meant to write: mutations of real programs and texts made to harm. Everything runs in a child.

The child must end by itself, and every text must be refused with `PtxError`, end with findings, or run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.cases import EXAMPLES
from tests.ptx.harness import A100

from tilewright.kernel_file import evaluate, parse
from tilewright.records import Build, TensorSpec
from tilewright.toolchain import build

SEEDED = Path(__file__).parent / "seeded"
ROOT = Path(__file__).parents[2]
QUICK_COUNT, SLOW_COUNT = 400, 10_000
SECONDS_PER_TEXT = 0.5  # far more than one takes; a loaded machine must not fail the test

# Programs worth mutating: barriers, copies, fragments, atomics, shuffles, votes, local memory, tables, assertions.
CORPUS: dict[Path, dict[str, object]] = {
    SEEDED / "async_barrier_missing.cu": {"x": "256:f32"},
    SEEDED / "uninitialised_fragment.cu": {"x": "12x16:f16"},
    SEEDED / "fragment_store_overrun.cu": {"x": "13x16:f16"},
    SEEDED / "last_block_unfenced.cu": {"x": "320:f32"},
    SEEDED / "grid_barrier_unfenced.cu": {"x": "128:f32"},
    SEEDED / "uninitialised_local.cu": {"x": "20x9:f32", "at": "20:i32"},
    SEEDED / "vote_mask.cu": {"x": "20:f32"},
    SEEDED / "failed_assertion.cu": {"x": "40:f32"},
    SEEDED / "barrier_order.cu": {"x": "64:f32"},
    EXAMPLES / "layernorm.cu": {"x": "4x100:bf16", "weight": "100:bf16", "bias": "100:bf16", "eps": 1e-5},
    EXAMPLES / "argmax.cu": {"x": "5x100:f32"},
    EXAMPLES / "histogram.cu": {"x": "1000:u8"},
}

CALLS = """
.func (.param .b32 out) twice(.param .b32 in)
{ .reg .b32 %v; ld.param.b32 %v, [in]; add.s32 %v, %v, %v; st.param.b32 [out], %v; ret; }
.func deep() { call deep, (); ret; }
.func (.param .b32 out) deeper(.param .b32 in)
{ .reg .b32 %v; ld.param.b32 %v, [in]; { .param .b32 a; .param .b32 r; st.param.b32 [a], %v;
  call (r), deeper, (a); ld.param.b32 %v, [r]; } st.param.b32 [out], %v; ret; }
"""


def _entry(body: str, declarations: str = "", outside: str = "", parameters: str = "") -> str:
    parameters = parameters or ".param .u64 x, .param .u64 y, .param .u32 n"
    registers = ".reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<40>; .reg .b64 %d<16>; .reg .f32 %f<40>;"
    return f"""
.version 8.0
.target sm_80
.address_size 64
{outside}
.visible .entry k({parameters})
{{
  {registers}
  {declarations}
  {body}
  ret;
}}
"""


NAMES = {
    "empty": "",
    "zeros": "\0" * 1000,
    "not_ptx": "int main() { return 0; }",
    "only_header": ".version 8.0\n.target sm_80\n.address_size 64\n",
    "unknown_version": ".version 99.9\n.target sm_80\n.address_size 64\n",
    "unclosed": ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {",
    "unclosed_comment": _entry("/* " + "x" * 10_000),
    "braces": _entry("{" * 20_000 + "}" * 20_000),
    "brackets": _entry("ld.global.u32 %r1, " + "[" * 50_000),
    "long_line": _entry("mov.u32 %r1, " + "9" * 1_000_000 + ";"),
    "long_name": _entry("mov.u32 %" + "r" * 1_000_000 + ", 1;"),
    "long_program": _entry("add.s32 %r1, %r1, 1;\n" * 100_000),
    "many_labels": _entry("\n".join(f"L{i}:" for i in range(50_000))),
    "many_branches": _entry("\n".join(f"L{i}: @%p1 bra L{(i * 7919) % 3000};" for i in range(3000))),
    "many_registers": _entry("mov.u32 %q1, 0;", ".reg .b32 %q<4000000000>;"),
    "many_wide_registers": _entry("mov.u64 %q900000, 0;", ".reg .b64 %q<1000000>;"),
    "shared_gigabytes": _entry("st.shared.u32 [s], 0;", ".shared .align 4 .b8 s[4294967296];"),
    "shared_too_large": _entry("st.shared.u32 [s], 0;", ".shared .align 4 .b8 s[300000];"),
    "shared_negative": _entry("st.shared.u32 [s], 0;", ".shared .align 4 .b8 s[-4];"),
    "shared_alignment": _entry("st.shared.u32 [s], 0;", ".shared .align 1073741824 .b8 s[4];"),
    "odd_alignment": _entry("st.shared.u32 [s], 0;", ".shared .align 3 .b8 s[4];"),
    "local_gigabytes": _entry("st.local.u32 [s], 0;", ".local .align 4 .b8 s[2147483648];"),
    "local_megabytes": _entry("st.local.u32 [s + 33554428], 0;", ".local .align 4 .b8 s[33554432];"),
    "constant_gigabytes": _entry("ld.const.u32 %r1, [c];", outside=".const .align 4 .b8 c[8589934592];"),
    "global_gigabytes": _entry("ld.global.u32 %r1, [c];", outside=".global .align 4 .b8 c[1099511627776];"),
    "huge_dimensions": _entry("ld.global.u32 %r1, [c];", outside=".global .u32 c[65536][65536][65536];"),
    "parameter_gigabytes": _entry("ret;", parameters=".param .align 8 .b8 p[2147483648]"),
    "parameter_overrun": _entry("ld.param.u64 %d1, [n + 4096]; st.global.u32 [%d1], 1;"),
    "parameter_negative": _entry("ld.param.u64 %d1, [x + -64];"),
    "wild_store": _entry("mov.u64 %d1, 0x123456789abc; st.global.u32 [%d1], 1;"),
    "null_store": _entry("mov.u64 %d1, 0; st.global.u32 [%d1], 1;"),
    "top_store": _entry("mov.u64 %d1, -4; st.global.v4.u32 [%d1], {%r1, %r1, %r1, %r1};"),
    "wrapping_offset": _entry("ld.param.u64 %d1, [y]; st.global.u32 [%d1 + 0x7fffffffffffffff], 1;"),
    "generic_store": _entry("mov.u64 %d1, 0x0100000000000010; st.u32 [%d1], 1;"),
    "wild_shared": _entry("mov.u32 %r1, 0xfffffff0; st.shared.v4.u32 [%r1], {%r1, %r1, %r1, %r1};"),
    "wild_local": _entry("mov.u32 %r1, 0x80000000; st.local.u32 [%r1], %r1;", ".local .align 4 .b8 s[16];"),
    "wild_atomic": _entry("mov.u64 %d1, 1; atom.global.cas.b64 %d2, [%d1], %d1, %d1;"),
    "wild_copy": _entry(
        "mov.u32 %r1, -16; mov.u64 %d1, -16; cp.async.cg.shared.global [%r1], [%d1], 16; cp.async.wait_all;"
    ),
    "wild_matrix": _entry(
        "mov.u32 %r1, 0x7ffffff0; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [%r1];"
    ),
    "wild_prefetch": _entry("mov.u64 %d1, -1; prefetch.global.L2 [%d1];"),
    "endless": _entry("L: bra L;"),
    "endless_divergent": _entry("mov.u32 %r1, %laneid; setp.eq.u32 %p1, %r1, 0; L: @%p1 bra L;"),
    "endless_barrier": _entry("L: bar.sync 0; bra L;"),
    "endless_yield": _entry("L: nanosleep.u32 100000; bra L;"),
    "long_sleep": _entry("nanosleep.u32 4294967295;"),
    "missing_label": _entry("bra nowhere;"),
    "label_of_another": _entry("bra inside;", outside=".func f() { inside: ret; }"),
    "no_end": _entry("add.s32 %r1, %r1, 1;").replace("ret;\n}", "}"),
    "recursion": _entry("call deep, ();", outside=CALLS),
    "recursion_with_values": _entry(
        "{ .param .b32 a; .param .b32 r; st.param.b32 [a], 1; call (r), deeper, (a); }", outside=CALLS
    ),
    "wild_call": _entry("mov.u64 %d1, 0x1234; call %d1, (), proto;", "proto: .callprototype _ ();", outside=CALLS),
    "call_of_nothing": _entry("call nothing, ();"),
    "call_of_data": _entry("call c, ();", outside=".global .u32 c;"),
    "call_with_too_few": _entry("{ .param .b32 r; call (r), twice, (); }", outside=CALLS),
    "wild_table": _entry("mov.u32 %r1, 77; brx.idx %r1, t; A: B: ", "t: .branchtargets A, B;"),
    "negative_table": _entry("mov.u32 %r1, -1; brx.idx %r1, t; A: B: ", "t: .branchtargets A, B;"),
    "wild_barrier": _entry("mov.u32 %r1, 4000; bar.sync %r1;"),
    "barrier_of_millions": _entry("bar.sync 0, 1048576;"),
    "barrier_of_none": _entry("bar.sync 0, 0;"),
    "wild_mask": _entry("mov.u32 %r1, 0; shfl.sync.idx.b32 %r2, %r1, 99, -1, %r1;"),
    "wild_wait": _entry("cp.async.wait_group 4294967295;"),
    "odd_copy": _entry("cp.async.ca.shared.global [%r1], [%d1], 5;"),
    "divide_by_zero": _entry("mov.u32 %r1, 0; div.s32 %r2, %r1, %r1; rem.u32 %r3, %r1, %r1;"),
    "divide_the_least": _entry(
        "mov.s32 %r1, 0x80000000; mov.s32 %r2, -1; div.s32 %r3, %r1, %r2; rem.s32 %r3, %r1, %r2;"
    ),
    "divide_the_least_64": _entry("mov.s64 %d1, 0x8000000000000000; mov.s64 %d2, -1; div.s64 %d3, %d1, %d2;"),
    "wide_shift": _entry("mov.u32 %r1, -1; shl.b32 %r2, %r1, %r1; shr.s32 %r3, %r1, %r1; shl.b64 %d1, %d1, %r1;"),
    "wide_field": _entry("mov.u32 %r1, -1; bfe.s32 %r2, %r1, %r1, %r1; bfi.b32 %r3, %r1, %r1, 255, 255;"),
    "number_to_integer": _entry("mov.f32 %f1, 0f7f800000; cvt.rni.s32.f32 %r1, %f1; cvt.rzi.u64.f32 %d1, %f1;"),
    "wrong_class": _entry("add.f32 %p1, %p2, %p3;"),
    "wrong_width": _entry("add.s64 %r1, %h1, %d1;"),
    "wrong_fragment": _entry(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2}, {%r1}, {%r2, %r3, %r4}, {%f1};"
    ),
    "unknown_shape": _entry("mma.sync.aligned.m99n99k99.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1};"),
    "unknown_opcode": _entry("frobnicate.u32 %r1, %r2;"),
    "unknown_modifier": _entry("add.sideways.u32 %r1, %r2, %r3;"),
    "later_hardware": _entry("tcgen05.wait::st.sync.aligned;"),
    "no_operands": _entry("add.s32;"),
    "many_operands": _entry("add.s32 " + ", ".join(["%r1"] * 10_000) + ";"),
    "wide_vector": _entry("ld.global.v4.u32 {" + ", ".join(["%r1"] * 100) + "}, [%d1];"),
    "predicate_of_nothing": _entry("@%p99 add.s32 %r1, %r1, 1;"),
    "register_of_nothing": _entry("add.s32 %zz1, %r1, 1;"),
    "twice_declared": _entry("mov.u32 %r1, 1;", ".reg .b32 %r1; .reg .b64 %r1;"),
    "two_entries": _entry("ret;") + _entry("ret;").partition(".address_size 64")[2],
    "print_wildly": _entry(
        "{ .param .b64 f; .param .b64 v; .param .b32 r; mov.u64 %d1, text; st.param.b64 [f], %d1; st.param.b64 [v], 7; "
        "call.uni (r), vprintf, (f, v); }",
        outside=".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 v);\n"
        ".global .align 1 .b8 text[16] = {37, 115, 37, 110, 37, 57, 57, 57, 57, 57, 57, 57, 57, 57, 100, 37};",
    ),
    "initialiser_overflows": _entry("ret;", outside=".global .u32 c[2] = {1, 2, 3, 4, 5};"),
    "initialiser_of_nothing": _entry("ret;", outside=".global .u64 c = nothing;"),
    "zero_sized": _entry("ld.global.u32 %r1, [c];", outside=".global .u32 c[0];"),
    "alloca": _entry("alloca.u32 %r1, 4294967295;"),
    "max_threads": _entry("ret;").replace("{\n", ".maxntid 4294967295, 4294967295, 4294967295\n{\n", 1),
}
# What must not run: a text that loads and does nothing wrong would be a guess at its meaning.
_REFUSED = """
not_ptx unclosed long_line many_registers shared_gigabytes shared_too_large shared_negative local_gigabytes
missing_label call_of_nothing call_with_too_few wrong_class wrong_fragment unknown_shape unknown_opcode
unknown_modifier later_hardware no_operands many_operands wide_vector predicate_of_nothing register_of_nothing
odd_copy initialiser_of_nothing parameter_gigabytes label_of_another call_of_data
"""
_FOUND = """
wild_store null_store top_store wrapping_offset wild_shared wild_local wild_atomic wild_copy wild_matrix endless
endless_divergent endless_barrier endless_yield recursion recursion_with_values wild_call
"""
REFUSED, FOUND = frozenset(_REFUSED.split()), frozenset(_FOUND.split())


def _child(*arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.ptx.fuzz_child", *arguments]
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What came of every hostile text."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, text in NAMES.items():
        (folder / f"{name}.ptx").write_text(text)
    done = _child("texts", str(folder), seconds=300)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    began = [answer["began"] for answer in answers if "began" in answer]
    assert done.returncode == 0, f"the child died at {began[-1] if began else 'its start'}: {done.stderr[-3000:]}"
    return {answer["ended"]: answer["word"] for answer in answers if "ended" in answer}


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_text_is_survived(words: dict[str, str], name: str) -> None:
    word = words[name]
    assert not word.startswith("unexpected"), word
    if name in REFUSED:
        assert word in ("refused", "refused at launch"), word
    if name in FOUND:
        assert word == "found", word


def _corpus(folder: Path) -> None:
    for path, arguments in CORPUS.items():
        file = parse(path.read_text(), path.name)
        given = {k: TensorSpec.parse(v) if isinstance(v, str) else v for k, v in arguments.items()}
        made = build(evaluate(file, given, A100).build_request(), isolated=False)
        assert isinstance(made, Build), str(made)
        (folder / f"{path.stem}.ptx").write_text(made.ptx)


def _fuzz(folder: Path, first: int, count: int) -> None:
    _corpus(folder)
    last = folder / "last.txt"
    done = _child("fuzz", str(folder), str(first), str(count), str(last), seconds=60 + SECONDS_PER_TEXT * count)
    assert done.returncode == 0, f"the child died; its last text is {last}\n{done.stderr[-3000:]}"
    answer = json.loads(done.stdout)
    assert answer["unexpected"] == []
    assert sum(answer["words"].values()) == count
    # Enough of the texts must have got through for the interpreter to have been tried at all.
    assert answer["words"].get("ran", 0) + answer["words"].get("found", 0) > count // 10, answer["words"]


@pytest.mark.slow
def test_mutated_programs_are_survived(tmp_path: Path) -> None:
    _fuzz(tmp_path, 0, QUICK_COUNT)


@pytest.mark.slow
def test_many_mutated_programs_are_survived(tmp_path: Path) -> None:
    _fuzz(tmp_path, 1_000_000, SLOW_COUNT)
