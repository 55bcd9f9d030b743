"""Whether the assembly of a file is all written out and names no places."""

from __future__ import annotations

import pytest

from tilewright.kernel_file.source_scan import assembly_is_plain


@pytest.mark.parametrize(
    "text",
    [
        "int f();",
        'void f() { asm volatile("mov.u32 %0, 1;" "ret;" : "=r"(a) : "n"(B)); }',
        '#define SYNC asm volatile("bar.sync 0;" ::: "memory")\n',
        'const char* t = ".loc 1 2 3"; // asm(LOC)\n',
        "int my_asm(int asm_count);",
    ],
)
def test_plain(text: str) -> None:
    assert assembly_is_plain(text)


@pytest.mark.parametrize(
    "text",
    [
        'void f() { asm(".loc 1 2 3"); }',
        'void f() { asm(".l" "oc 1 2 3"); }',
        'void f() { asm("\\x2eloc 1 2 3"); }',
        'void f() { __asm__ volatile(".file 9 \\"a.h\\""); }',
        "void f() { asm volatile(TEXT); }",
        'void f() { asm("." TEXT : : ); }',
        "#define A asm\n",
        '#define A(x) asm("" #x)\n',
        'void f() { asm("nop;"); } /* never closed',
    ],
)
def test_not_plain(text: str) -> None:
    assert not assembly_is_plain(text)
