"""Registers that nothing can have written where they are read."""

from __future__ import annotations

import pytest

from tilewright.ptx.control_flow import flow
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.undefined_registers import undefined_reads

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n"
DECLARED = ".reg .pred %p<3>;\n.reg .b32 %r<6>;\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [p];\n"


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("add.u32 %r1, %r2, 1;", ["add"]),
        ("mov.u32 %r2, 5; add.u32 %r1, %r2, 1;", []),
        ("add.u32 %r1, %r2, 1; mov.u32 %r2, 5;", ["add"]),
        ("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 mov.u32 %r2, 5; add.u32 %r3, %r2, 1;", []),
        ("L: add.u32 %r1, %r2, 1; mov.u32 %r2, 5; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;", []),  # the second time it is
        ("@%p2 bra L; mov.u32 %r1, 1; L:", ["bra"]),
        ("st.global.u32 [%rd1], %r4;", ["st"]),
        ("st.global.u32 [%rd2], 4;", ["st"]),
    ],
)
def test_what_no_way_leads_to(body: str, read: list[str]) -> None:
    function = parse_ptx(f"{HEAD}{DECLARED}{body}\nret;\n}}\n").functions["k"]
    assert [one.opcode for one in undefined_reads(function, flow(function))] == read
