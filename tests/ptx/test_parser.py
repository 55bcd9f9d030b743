"""PTX text into records: every form by hand, what NVRTC writes for real kernels, and errors that name their line."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from pathlib import Path

import pytest

from tilewright.ptx.literals import expression_value, integer_value, literal
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    ParameterDeclaration,
    PtxError,
    Register,
    Relocation,
    Sink,
    Space,
    Special,
    SymbolOperand,
    Tuple_,
    UnsupportedPtx,
    Variable,
    Vector,
)
from tilewright.records import SourcePlace

SAMPLES = Path(__file__).parent / "samples"
HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n"


@lru_cache(maxsize=8)
def sample(name: str) -> Module:
    return parse_ptx((SAMPLES / name).read_text())


@pytest.fixture
def forms() -> Function:
    return sample("forms.ptx").functions["forms"]


def starting(function: Function, text: str) -> Instruction:
    found = [instruction for instruction in function.body if instruction.text.startswith(text)]
    assert found, text
    return found[0]


def kernel(body: str, head: str = "", registers: str = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;") -> str:
    return f"{HEAD}{head}\n.entry k(.param .u64 x) {{\n{registers}\n{body}\n}}\n"


def only(body: str) -> Instruction:
    (instruction,) = parse_ptx(kernel(body)).functions["k"].body
    return instruction


# -- the module --


def test_module_head_and_functions() -> None:
    module = sample("forms.ptx")
    assert (module.version, module.target) == ((9, 0), "sm_90a")
    assert set(module.functions) == {"helper", "forms", "helper2", "other"}
    assert module.functions["other"] is module.functions["helper2"]
    assert module.externals == ("vprintf", "__assertfail")
    assert [function.is_entry for function in module.functions.values()] == [False, True, False, False]


VARIABLES = {
    "plain": ("u32", 4, 4, struct.pack("<I", 7)),
    "negative": ("s32", 4, 4, struct.pack("<i", -2)),
    "halves": ("f64", 24, 8, struct.pack("<3d", 0.5, 2.0, -1.5)),
    "floats": ("f32", 8, 4, struct.pack("<2f", 1.0, 2.0)),
    "bytes": ("b8", 8, 2, bytes([1, 2, 3, 8, 0, 0, 0, 0])),
    "grid": ("s16", 12, 2, struct.pack("<6h", 1, 2, 0, -1, 0, 0)),
    "pointers": ("u64", 24, 8, bytes(24)),
    "masked": ("b8", 9, 1, bytes([0, 0, 0, 0, 0, 0, 0, 0, 5])),
    "counted": ("u32", 12, 4, struct.pack("<3I", 1, 2, 3)),
    "computed": ("u32", 4, 4, struct.pack("<I", 0x13)),
    "vector": ("f32", 16, 16, None),
    "managed": ("u32", 4, 4, None),
    "dynamic": ("b8", 0, 16, None),
    "tile": ("b8", 128, 8, None),
    "first": ("u32", 4, 4, None),
    "second": ("u32", 4, 4, struct.pack("<I", 2)),
}


def test_variables_of_every_form() -> None:
    variables = {variable.name: variable for variable in sample("forms.ptx").variables}
    assert {
        name: (variable.type, variable.size_bytes, variable.align, variable.initial)
        for name, variable in variables.items()
    } == VARIABLES
    assert [name for name, variable in variables.items() if variable.external] == ["dynamic"]
    assert {variables[name].space for name in ("tile", "dynamic")} == {Space.SHARED}
    assert variables["vector"].space is Space.CONST


def test_addresses_in_initialisers() -> None:
    variables = {variable.name: variable for variable in sample("forms.ptx").variables}
    assert variables["pointers"].relocations == (
        Relocation(0, 8, "plain", 0, generic=False),
        Relocation(8, 8, "halves", 8, generic=True),
        Relocation(16, 8, "bytes", 0, generic=True),
    )
    assert variables["masked"].relocations == (Relocation(0, 8, "plain", 0, generic=False),)


def test_function_head(forms: Function) -> None:
    assert forms.parameters == (
        ParameterDeclaration("forms_param_0", "u64", 8, 8),
        ParameterDeclaration("forms_param_1", "b8", 24, 8),
        ParameterDeclaration("forms_param_2", "u32", 4, 4),
    )
    assert forms.results == ()
    assert forms.max_threads == (128, 2)
    assert forms.cluster == (2, 1, 1)
    helper = sample("forms.ptx").functions["helper"]
    assert helper.results == (ParameterDeclaration("pair", "b8", 16, 8),)
    assert helper.parameters == (ParameterDeclaration("n", "b32", 4, 4),)


# -- operands --

R, S = Register, SymbolOperand
OPERANDS: list[tuple[str, tuple[Operand, ...]]] = [
    ("ld.param.u64", (R("%rd1"), Address(S("forms_param_0")))),
    ("mov.u32 %r1, %tid", (R("%r1"), Special("%tid.x"))),
    ("mov.u32 %r2", (R("%r2"), Special("%envreg3"))),
    ("mov.u32 %r3, WARP", (R("%r3"), Immediate(32))),
    ("mov.b32 %r4", (R("%r4"), Immediate(0xFFFFFFFF))),
    ("ld.global.nc", (Vector((R("%f1"), None, R("%f3"), R("%f4"))), Address(R("%rd1"), -16))),
    ("ld.shared::cta", (R("%r5"), Address(S("tile"), 4))),
    ("st.shared.b32 [64]", (Address(Immediate(64)), Immediate(-5))),
    ("add.f32", (R("%f5"), R("%f1"), Immediate(0x3F800000, 32))),
    ("mul.f32", (R("%f6"), R("quad.y"), Immediate(0x3FF8000000000000, 64))),
    ("st.global.v4", (Address(R("%rd1")), Vector(tuple(R(f"quad.{c}") for c in "xyzw")))),
    ("shfl", (Pair(R("%r6"), R("%p1")), R("%r5"), Immediate(1), Immediate(31), Immediate(-1))),
    ("setp", (Pair(R("%p1"), R("%p2")), R("%r1"), R("%r2"), Negated(R("%p3")))),
    ("vote", (Sink(), R("%p1"), Immediate(0xFFFFFFFF))),
    ("mov.u64", (R("%rd2"), S("plain", 4))),
    ("mov.b64", (Vector((R("%r7"), R("%r8"))), R("%rd2"))),
    ("@%p1 bra $done", (Label("$done"),)),
    ("@!%p2 add", (R("%r1"), R("%r1"), Immediate(8))),
    (
        "call.uni (result)",
        (Tuple_((S("result"),)), S("helper"), Tuple_((S("argument"),))),
    ),
    (
        "call (argument), %rd3",
        (Tuple_((S("argument#2"),)), R("%rd3"), Tuple_((R("%rd1"), R("%r1"))), S("kind")),
    ),
    ("call helper2, ()", (S("helper2"), Tuple_(()))),
    ("brx.idx", (R("%r1"), S("targets"))),
    (
        "cp.async.bulk",
        (Address(R("%r1")), Address(R("%rd1"), 0, (Vector((R("%r2"), Immediate(0))),)), Address(R("%r3"))),
    ),
    ("ret", ()),
]


@pytest.mark.parametrize(("text", "operands"), OPERANDS, ids=[text for text, _ in OPERANDS])
def test_operands_of_every_form(forms: Function, text: str, operands: tuple[Operand, ...]) -> None:
    assert starting(forms, text).operands == operands


def test_opcodes_guards_and_text(forms: Function) -> None:
    load = starting(forms, "ld.global.nc")
    assert (load.opcode, load.modifiers) == ("ld", ("global", "nc", "L1::no_allocate", "L2::128B", "v4", "f32"))
    assert ".".join(load.modifiers) == "global.nc.L1::no_allocate.L2::128B.v4.f32"
    assert load.text == "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, _, %f3, %f4}, [%rd1+-16]"
    assert (load.guard, load.guard_negated) == (None, False)
    branch = starting(forms, "@%p1 bra $done")
    assert (branch.guard, branch.guard_negated, branch.opcode) == (R("%p1"), False, "bra")
    add = starting(forms, "@!%p2 add")
    assert (add.guard, add.guard_negated, add.opcode) == (R("%p2"), True, "add")


def test_lines_of_the_text(forms: Function) -> None:
    written = (SAMPLES / "forms.ptx").read_text().splitlines()
    assert len(forms.body) == 34
    for instruction in forms.body:
        assert instruction.text in " ".join(written[instruction.ptx_line - 1].split())


def test_blocks_have_their_own_names(forms: Function) -> None:
    assert starting(forms, "mov.u32 t, %r1").operands == (R("t"), R("%r1#2"))
    assert starting(forms, "mov.u32 %r3, t").operands == (R("%r3#2"), R("t"))
    again = [instruction for instruction in forms.body if instruction.text.startswith("mov.u32 t")]
    assert again[1].operands == (R("t#2"), R("%r1"))
    names = [variable.name for variable in forms.variables]
    assert names == ["stack", "own", "argument", "result", "argument#2"]
    assert forms.registers["t"] == forms.registers["t#2"] == forms.registers["%r3#2"] == "b32"
    branches = [i for i in forms.body if i.text.endswith("bra again")]
    assert [branch.operands for branch in branches] == [(Label("again"),), (Label("again#2"),)]
    assert forms.body[forms.labels["again"]].text == "mov.u32 t, %r1"
    assert forms.body[forms.labels["again#2"]] is branches[1]


def test_only_registers_in_use_exist(forms: Function) -> None:
    assert {name for name in forms.registers if name.startswith("%rd")} == {"%rd1", "%rd2", "%rd3"}
    assert {name: forms.registers[name] for name in ("%p1", "%f6", "quad.y")} == {
        "%p1": "pred",
        "%f6": "f32",
        "quad.y": "f32",
    }


def test_tables_prototypes_and_labels(forms: Function) -> None:
    assert forms.branch_targets == {"targets": ("$one", "$done", "$one")}
    assert forms.prototypes == {"kind": (8, 12)}
    assert forms.labels["$end"] == len(forms.body)
    assert forms.body[forms.labels["$done"]].opcode == "ret"


def test_places_and_inlining(forms: Function) -> None:
    outer = (SourcePlace("/src/kernel.cu", 10),)
    inner = (SourcePlace("/src/kernel.cu", 11), *outer)
    assert starting(forms, "mov.u32 %r1").places == outer
    assert starting(forms, "ld.global.nc").places == inner
    assert starting(forms, "ld.shared::cta").places == (SourcePlace("/include/header.cuh", 7), *inner)
    assert starting(forms, "ret").places == (SourcePlace("/src/kernel.cu", 12),)
    assert sample("forms.ptx").functions["helper"].body[0].places == ()


def test_line_zero_is_where_it_was_inlined() -> None:
    text = kernel(
        ".loc 1 4 1\nbar.sync 0;\n.loc 1 0 0, function_name f, inlined_at 1 4 1\nbar.sync 1;\n.loc 1 0 0\nret;"
    )
    places = [i.places for i in parse_ptx(text + '.file 1 "a.cu"').functions["k"].body]
    assert places == [(SourcePlace("a.cu", 4),), (SourcePlace("a.cu", 4),), ()]


def test_a_register_of_a_block_hides_one_of_a_range() -> None:
    body = "mov.b32 %r5, 1; { .reg .b32 %r5; mov.b32 %r5, 2; { .reg .b32 %r<8>; mov.b32 %r5, %r0; } } mov.b32 %r5, 3;"
    function = parse_ptx(kernel(body)).functions["k"]
    assert [i.operands[0] for i in function.body] == [R("%r5"), R("%r5#2"), R("%r5#3"), R("%r5")]


def test_ranges_whose_names_end_in_digits() -> None:
    function = parse_ptx(kernel("mov.b32 %a12, %a1;", registers=".reg .b32 %a1<5>; .reg .b64 %a<2>;")).functions["k"]
    assert function.registers == {"%a12": "b32", "%a1": "b64"}


@pytest.mark.parametrize(
    "name",
    [
        "%tid",
        "%ntid.y",
        "%nctaid.z",
        "%laneid",
        "%lanemask_lt",
        "%clock64",
        "%globaltimer",
        "%dynamic_smem_size",
        "%envreg31",
        "%cluster_ctaid.x",
        "%cluster_ctarank",
        "%smid",
        "%gridid",
        "%warpid",
        "%pm7_64",
    ],
)
def test_special_registers(name: str) -> None:
    assert only(f"mov.u32 %r1, {name};").operands == (R("%r1"), Special(name))


# -- numbers --

NUMBERS = [
    ("0", Immediate(0)),
    ("-1", Immediate(-1)),
    ("18446744073709551615", Immediate(2**64 - 1)),
    ("-9223372036854775808", Immediate(-(2**63))),
    ("0x7fU", Immediate(127)),
    ("0b101", Immediate(5)),
    ("017", Immediate(15)),
    ("0fBF800000", Immediate(0xBF800000, 32)),
    ("-0f3F800000", Immediate(0xBF800000, 32)),
    ("0D3ff0000000000000", Immediate(0x3FF0000000000000, 64)),
    ("1.0", Immediate(0x3FF0000000000000, 64)),
    ("25e-2", Immediate(0x3FD0000000000000, 64)),
    ("(1 << 4) - 1", Immediate(15)),
    ("-7 / 2", Immediate(-3)),
    ("-7 % 3", Immediate(-1)),
    ("1 + 2 * 3 == 7 ? ~0 : 4", Immediate(-1)),
    ("2 < 1 || 5 & 4", Immediate(1)),
    ("(.u64) 12 >> 2", Immediate(3)),
    ("!0 + WARP_SZ", Immediate(33)),
    ("1 / 0", None),
    ("1 << 64", None),
    ("08", None),
    ("18446744073709551616", None),
    ("1 2", None),
    ("(" * 40 + "1" + ")" * 40, None),
    ("0f3F80", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "expected"), NUMBERS, ids=[text[:24] for text, _ in NUMBERS])
def test_constants(text: str, expected: Immediate | None) -> None:
    assert literal(text) == expected


def test_an_expression_of_one_number_is_that_number() -> None:
    assert [expression_value(text) for text in ("12", " 0x10 ", "-3")] == [12, 16, -3]
    assert integer_value("12 + 1") is None


# -- what cannot be read --

BAD: list[tuple[str, int, str]] = [
    ("", 0, "no .version"),
    (HEAD + "rubbish", 4, "expected a directive: rubbish"),
    (HEAD + ".nonsense;", 4, "unknown directive `.nonsense`"),
    (".version 9.0\n.target sm_80\n.address_size 32", 3, "64-bit"),
    (".version nine", 1, "version such as 9.0"),
    (HEAD + ".target compute_80", 4, "target such as sm_80"),
    (HEAD + ".global .u33 x;", 4, "`.u33` is no type"),
    (HEAD + ".global .align 3 .u32 x;", 4, "3 is no alignment"),
    (HEAD + ".global .u32 x[2] = {1, 2, 3};", 4, "more initial values"),
    (HEAD + ".global .u32 x = sin;", 4, "`sin` is not declared"),
    (HEAD + ".global .u8 x[1] = {y};", 4, "4 or 8 bytes"),
    (HEAD + ".global .u8 x[2] = {0xFF(y), 0xFF00(y)};", 4, "whole 8-byte address"),
    (HEAD + ".global .u32 x[];", 4, "needs initial values"),
    (HEAD + ".global .u32 x;\n.global .u32 x;", 5, "declared twice"),
    (HEAD + ".global .b8 x[99999999999] = {1};", 4, "256 MiB"),
    (HEAD + ".global .b8 x[99999999999999999];", 4, "terabyte"),
    (HEAD + ".entry k() { ret;", 4, "no closing brace"),
    (HEAD + ".entry k() { ret; }\n.entry k() { ret; }", 5, "defined twice"),
    (HEAD + ".entry k(.param .u32 a, .param .u32 a) { ret; }", 4, "`a` is declared twice"),
    (HEAD + ".func (.reg .u32 r) f (.reg .u32 n) { ret; }", 4, "parameters in registers"),
    (HEAD + ".section .debug_str { .b8 1", 4, "no closing `}`"),
    (kernel("mov.u32 %r1 %r2;"), 7, "`%r1 %r2` is no operand"),
    (kernel("mov.u32 %r1, %r9;"), 7, "`%r9` is not declared"),
    (kernel("mov.u32 %r1, %lane;"), 7, "`%lane` is not declared"),
    (kernel("mov.u32 %r1, nothing;"), 7, "`nothing` is not declared"),
    (kernel("ld.global.u32 %r1, [nothing+4];"), 7, "`nothing` is not declared"),
    (kernel("ld.global.u32 %r1, [%rd1+%r2];"), 7, "offset `%r2` is no constant"),
    (kernel("ld.global.u32 %r1, [%rd1;"), 7, "no closing `]`"),
    (kernel("mov.b64 {%r1, {%r2}}, %rd1;"), 7, "a vector inside a vector"),
    (kernel("@%r bra L;"), 7, "the guard `%r` is no declared register"),
    (kernel("bra L;"), 7, "`L` is not declared"),
    (kernel("L: L: ret;"), 7, "`L` stands twice"),
    (kernel("vadd.s32.u32 %r1, %r2.b0, %r3.h1, %r4;"), 7, "parts of a register"),
    (kernel("t: .branchtargets L;"), 7, "`L` is no label"),
    (kernel(".branchtargets L;"), 7, "without a label"),
    (kernel("t: .calltargets f;"), 7, "`f` is not declared"),
    (kernel("ADD %r1, %r2;"), 7, "no instruction"),
    (kernel("add.s32 %r1, %r2, 99999999999999999999;"), 7, "no operand"),
    (kernel(".reg .b32 a; .reg .b32 a;"), 7, "declared twice"),
    (kernel(".reg .b33 a;"), 7, "unknown type `.b33`"),
    (kernel(".loc here;"), 7, "a file, a line and a column"),
    (kernel("\n.loc 3 1 1\nret;"), 8, "file 3, and no .file does"),
    (kernel("{" * 300), 7, "nested deeper"),
    (kernel(".extern .reg .b32 a;"), 7, "`.reg` is no space for a variable"),
]


@pytest.mark.parametrize(("text", "line", "message"), BAD, ids=[message for _, _, message in BAD])
def test_errors_name_the_line_and_what_stands_there(text: str, line: int, message: str) -> None:
    with pytest.raises(PtxError, match=re.escape(message)) as caught:
        parse_ptx(text)
    assert caught.value.ptx_line == line


def test_what_is_valid_and_not_known_says_so() -> None:
    with pytest.raises(UnsupportedPtx):
        parse_ptx(HEAD + ".func (.reg .u32 r) f (.reg .u32 n) { ret; }")
    with pytest.raises(UnsupportedPtx):
        parse_ptx(kernel("vadd.s32.u32 %r1, %r2.b0, %r3.h1, %r4;"))


# -- odds and ends --


def test_no_space_where_none_is_needed() -> None:
    text = HEAD.replace("\n", " ") + ".entry k(){.reg .b32 %r<3>;mov.u32 %r1,%tid.x;L:bra L;}"
    function = parse_ptx(text).functions["k"]
    assert [i.text for i in function.body] == ["mov.u32 %r1,%tid.x", "bra L"]


def test_variables_of_a_block_are_the_functions() -> None:
    function = parse_ptx(kernel("{ .shared .u32 a; st.shared.u32 [a], 1; } { .shared .u32 a; st.shared.u32 [a], 1; }"))
    variables = function.functions["k"].variables
    assert variables == (
        Variable(Space.SHARED, "a", "u32", 4, 4, None, (), False),
        Variable(Space.SHARED, "a#2", "u32", 4, 4, None, (), False),
    )
