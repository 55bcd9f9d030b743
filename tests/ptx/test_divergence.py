"""Where parted lanes meet again must not depend on the order the compiler laid its blocks out in."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest
from tilewright.ptx.program import load_program

HEAD = """.version 8.7
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) {
.reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %rd<8>;
ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
and.b32 %r2, %r1, 3; mov.u32 %r3, 0; mov.u32 %r4, 0;
bra A;
"""

# Each block ends with a jump, so that any order of them is the same program.
BLOCKS = {
    "A": "setp.eq.u32 %p1, %r2, 0; @%p1 bra B; bra C;",
    "B": "add.u32 %r3, %r3, 10; bra M;",
    "C": "setp.eq.u32 %p2, %r2, 1; @%p2 bra D; bra L;",
    "D": "add.u32 %r3, %r3, 20; bra M;",
    "L": "add.u32 %r3, %r3, 1; add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, %r1; @%p3 bra L; bra M;",
    "M": "activemask.b32 %r5; setp.eq.u32 %p4, %r5, -1; selp.u32 %r6, 1000, 0, %p4; add.u32 %r3, %r3, %r6;"
    "st.global.u32 [%rd3], %r3; ret;",
}


def result(order: tuple[str, ...], seed: int | None) -> list[int]:
    text = HEAD + "\n".join(f"{name}: {BLOCKS[name]}" for name in order) + "\n}"
    memory = GlobalMemory()
    address = memory.add("y", 128, element_bytes=4)
    options = LaunchOptions(workers=1, seed=seed, instruction_budget=1_000_000)
    request = LaunchRequest("k", (1, 1, 1), (32, 1, 1), 0, struct.pack("<Q", address), options=options)
    found = load_program(text).launch(memory, request)
    assert not found.findings
    return [int(value) for value in memory.bytes("y").view(np.uint32)]


EXPECTED = [1000 + (10 if t % 4 == 0 else 20 if t % 4 == 1 else t) for t in range(32)]


@pytest.mark.parametrize("order", list(itertools.permutations("ABCDLM"))[::37], ids="".join)
def test_any_layout_meets_at_the_same_place(order: tuple[str, ...]) -> None:
    for seed in (None, 1, 2):
        assert result(order, seed) == EXPECTED


def test_a_long_loop_of_a_few_lanes_does_not_keep_the_others_from_their_turn() -> None:
    """Lanes that wait at the meeting point go ahead when the others only spin, here for them."""
    text = (
        HEAD.replace("bra A;", "setp.eq.u32 %p1, %r1, 31; @%p1 bra S; bra W;")
        + """W: ld.volatile.global.u32 %r5, [%rd1+128]; setp.eq.u32 %p2, %r5, 0; @%p2 bra W; bra M;
S: bra M;
M: setp.ne.u32 %p3, %r1, 31; @%p3 bra E; mov.u32 %r7, 1; st.volatile.global.u32 [%rd1+128], %r7;
E: st.global.u32 [%rd3], %r1; ret;
}"""
    )
    memory = GlobalMemory()
    address = memory.add("y", 132, element_bytes=4)
    options = LaunchOptions(workers=1, instruction_budget=5_000_000)
    request = LaunchRequest("k", (1, 1, 1), (32, 1, 1), 0, struct.pack("<Q", address), options=options)
    assert not load_program(text).launch(memory, request).findings
    assert list(memory.bytes("y").view(np.uint32)) == [*range(32), 1]
