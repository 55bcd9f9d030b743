"""Constants of a kernel's code, as inputs and as numbers of blocks."""

from __future__ import annotations

import numpy as np
from tests.verify import tasks

from tilewright.records import Case
from tilewright.verify.code_constants import blocks_named, constants_case, constants_of
from tilewright.verify.distributions import draw_inputs, seeded

PTX = """
	.loc	1 4000 12
	mov.u32 	%r1, %ctaid.x;
	mad.lo.s32 	%r2, %r1, 256, %r3;
	xor.b32  	%r4, %r1, 1777;
	setp.eq.f32 	%p1, %f1, 0fBF490FDB;
	add.s64 	%rd3, %rd1, -4294967311;
	ld.global.f32 	%f1, [%rd1+8192];
"""


def test_what_is_compared_comes_first_and_places_are_none() -> None:
    assert constants_of(PTX) == (1777, 0xBF490FDB, -4294967311, 4294967311, 256)


def test_inputs_hold_what_is_an_ordinary_value() -> None:
    case = constants_case(tasks.DOUBLE, PTX, [Case({"n": 1}, 1), Case({"n": 700}, 2)], (), seeded)
    assert case is not None
    assert case.sizes == {"n": 700}
    values = np.frombuffer(draw_inputs(tasks.DOUBLE, case)["v"], np.float32)
    assert np.sum(values == np.float32(-0.785398185)) > 20
    assert np.isfinite(values).all()
    assert constants_case(tasks.DOUBLE, "", [Case({"n": 700}, 2)], (), seeded) is None


def test_blocks_that_a_constant_numbers() -> None:
    assert blocks_named(PTX, 2000, 256) == (1777, 256)
    assert blocks_named("xor.b32 %r1, %r2, 11111111;", 65536, 256) == (11111111 // 256,)
