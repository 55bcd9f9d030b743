"""PTX split into statements, whatever inline assembly does to the lines."""

from __future__ import annotations

from tilewright.toolchain.ptx_text import line_of_ptx_line, parse_ptx

TEXT = """
.version 9.0
.target sm_90a
.address_size 64

.extern .func (.param .b32 r) vprintf
(
	.param .b64 a,
	.param .b64 b
)
;
.func (.param .b32 r) later (.param .b64 a);
.visible .global .align 4 .u32 first;
.global .align 4 .b8 table[8] = {1, 2, 3}; // } not a brace
.global .align 8 .u64 pointer = generic(table);
.const .align 4 .b8 constant[4] = {1};
.func (.param .b32 r) later (.param .b64 a) { ret; }

.visible .entry k(
	.param .u64 k_param_0
)
.maxntid 256, 1, 1
{
	.reg .b32 %r<9>;
	.loc	1 7 3
	ld.global.v2.u32 {%r1, %r2}, [first]; /* st.global.u32 [hidden], 1; */
	.loc	2 99 5, function_name $L__info_string0, inlined_at 1 8 2
$L__BB0_1:
	{ .reg .u32 t; mov.u32 t, 1; .global .u32 inner; st.global.u32 [inner], t; } @%p1 bra $L__BB0_1;
	ret;
}
	.file	1 "/tilewright/kernel.cu"
	.file	2 "/usr/include/some.h"
	.section .debug_str { $L__info_string0: .b8 95, 0 }
"""


def test_functions_variables_and_externals() -> None:
    module = parse_ptx(TEXT)
    assert set(module.functions) == {"later", "k"}
    assert module.external == {"vprintf"}
    assert set(module.variables) == {"first", "table", "pointer", "constant", "inner"}
    assert "table" in module.variables["pointer"]
    assert module.functions["k"].is_entry
    assert not module.functions["later"].is_entry
    assert ".maxntid 256, 1, 1" in module.functions["k"].declaration


def test_statements_and_their_lines() -> None:
    module = parse_ptx(TEXT)
    texts = {s.text: s for s in module.functions["k"].statements}
    load = texts["ld.global.v2.u32 {%r1, %r2}, [first]"]
    store = texts["st.global.u32 [inner], t"]
    assert "hidden" not in " ".join(texts)
    assert "@%p1 bra $L__BB0_1" in texts
    assert module.line_in("/tilewright/kernel.cu", load.at) == 7
    assert module.line_in("/tilewright/kernel.cu", store.at) == 8
    assert module.calls_behind(store.at) == [("/usr/include/some.h", 99), ("/tilewright/kernel.cu", 8)]
    assert module.line_in("/tilewright/kernel.cu", -1) is None


def test_assembly_that_closes_its_function_hides_nothing() -> None:
    module = parse_ptx(".entry k() { ret; } .global .u32 g; .func f() { st.global.u32 [g], 1; ret; }")
    assert set(module.functions) == {"k", "f"}
    assert set(module.variables) == {"g"}


def test_line_of_a_ptx_line() -> None:
    number = next(i for i, line in enumerate(TEXT.split("\n"), start=1) if "st.global.u32 [inner]" in line)
    assert line_of_ptx_line(TEXT, number, "/tilewright/kernel.cu") == 8
    assert line_of_ptx_line(TEXT, 3, "/tilewright/kernel.cu") is None


def test_nonsense_does_not_fail() -> None:
    for text in ("", "}}}}", "{{{{", ".entry", ".global", ".loc 1 2 3", ";;;", ".entry k( {", "\n.global .b8 = {"):
        parse_ptx(text)


def test_one_declaration_may_name_several_variables() -> None:
    module = parse_ptx(
        ".global .align 4 .u32 a, b[2] = {1, 2}, c;\n.const .v4 .f32 d;\n.global .u64 e[1] = {generic(a)};\n"
    )
    assert list(module.variables) == ["a", "b", "c", "d", "e"]
    assert "generic(a)" in module.variables["e"]
    assert module.variables["a"] == ""


def test_strings_hide_nothing() -> None:
    body = '.pragma "/*"; st.global.u32 [a], 1; .pragma "*/"; .pragma "}}"; st.global.u32 [b], 1; .pragma "x\n//"; ret;'
    module = parse_ptx(f'.visible .entry k()\n{{\n{body}\n}}\n/* .file 3 "forged.h"\n*/\n.file 4 "a//b.h"\n')
    texts = [statement.text for statement in module.functions["k"].statements]
    assert [text for text in texts if text.startswith("st")] == ["st.global.u32 [a], 1", "st.global.u32 [b], 1"]
    assert texts[-1] == "ret"
    assert module.files == {4: "a//b.h"}
