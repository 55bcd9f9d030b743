"""Lowering: what is not known is named with its lines; what is malformed is refused; slots are shared safely."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ptx.cuda_kernels import clean, program_of

from tilewright.ptx.lower import lower_kernel, module_layout
from tilewright.ptx.parser import parse_ptx
from tilewright.ptx.program import load_program
from tilewright.ptx.syntax import PtxError, UnsupportedPtx


def module(body: str, before: str = "") -> str:
    return f""".version 8.7
.target sm_80
.address_size 64
{before}
.visible .entry k(.param .u64 p) {{
.reg .pred %p<4>; .reg .b16 %rs<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<8>; .reg .b128 %q<2>;
{body}
ret;
}}"""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tcgen05.wait::st.sync.aligned;", "the instruction tcgen05"),
        ("mbarrier.frob.shared.b64 [%r1], 1;", "this form of mbarrier"),
        ("cp.async.bulk.global.shared::cta.bulk_group.frob [%rd1], [%r1], 16;", "the modifier .frob"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.frob [%rd1], [%r1], 16;", "reduction of .frob"),
        ("add.f32.frob %f1, %f2, %f3;", "the type .frob"),
        ("add.frob.f32 %f1, %f2, %f3;", "the modifier .frob"),
        ("add.rz.f16 %rs1, %rs2, %rs3;", "this rounding of .f16"),
        ("add.u8 %rs1, %rs2, %rs3;", "the type .u8"),
        ("atom.global.cas.b128 %q0, [%rd1], %q0, %q1;", "atom.cas of .b128"),
        ("mma.sync.aligned.m16n8k99.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1};", "mma.sync.aligned.m16n8k99"),
        ("cvt.rn.f32.frob %f1, %r1;", "the conversion cvt.rn.f32.frob"),
        ("mov.u32 %r1, %pm0;", "the special register %pm0"),
        ("tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %r2}];", "the instruction tex"),
        ("frobnicate.u32 %r1, %r2;", "the instruction frobnicate"),
    ],
)
def test_what_is_not_known_is_named(text: str, named: str) -> None:
    program = load_program(module("mov.u32 %r1, 0;\n" + text))
    with pytest.raises(UnsupportedPtx) as caught:
        program.prepare("k")
    assert named in str(caught.value)
    assert caught.value.ptx_line == 8
    assert text.split(" ")[0].rstrip(";") in caught.value.text


def test_the_source_line_is_named_too() -> None:
    text = module('.file 1 "kernel.cu"\n.loc 1 42 3\ntcgen05.wait::st.sync.aligned;')
    with pytest.raises(UnsupportedPtx, match=r"PTX line 9: .*kernel\.cu:42"):
        load_program(text).prepare("k")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("add.u32 %r1, %rd1, %r2;", "%rd1 has 64 bits where 32 belong"),
        ("add.u32 %r1, %r99, %r2;", "%r99"),
        ("ld.global.u64 %r1, [%rd1];", "do not fit"),
        ("ld.param.u64 %rd1, [p+4];", "outside the parameter"),
        ("setp.eq.u32 %r1, %r2, %r3;", "a predicate register belongs here"),
        ("bra nowhere;", "nowhere"),
        ("call nofunction, ();", "nofunction"),
        ("mov.u64 %rd1, nosymbol;", "nosymbol"),
        ("st.const.u32 [%rd1], %r1;", "cannot be written"),
        ("cp.async.cg.shared.global [%r1], [%rd1], 7;", "cannot copy 7 bytes"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(PtxError) as caught:
        load_program(module(text)).prepare("k")
    assert why in str(caught.value)


def test_only_the_kernel_that_uses_it_is_refused() -> None:
    other = module("tcgen05.wait::st.sync.aligned;").replace("entry k(", "entry bad(")
    text = module("") + other[other.index(".visible") :]
    program = load_program(text)
    assert list(program.module.functions) == ["k", "bad"]
    program.prepare("k")
    with pytest.raises(UnsupportedPtx):
        program.prepare("bad")
    with pytest.raises(PtxError, match=r"no kernel `missing`.*k, bad"):
        program.prepare("missing")


def test_registers_of_one_block_share_slots() -> None:
    body = "".join(f"add.u32 %r{1 + i % 8}, %r{i % 8}, 1;\n" for i in range(8))
    chain = "mov.u32 %r0, 5;\n" + body
    parsed = parse_ptx(module(chain))
    layout, _ = module_layout(parsed, 0x600000000000)
    lowered = lower_kernel(parsed, "k", layout)
    kernel = lowered.functions[lowered.kernel]
    assert kernel is not None
    assert kernel.frame_bytes <= 3 * 128


def test_a_register_first_written_under_a_guard_keeps_its_slot() -> None:
    """Its value may come round a loop, so that no other register may use its place meanwhile."""
    source = """extern "C" __global__ void k(int* y, int n) {
      int t = threadIdx.x, kept;
      asm volatile("{ .reg .pred p; .reg .u32 i, v, a, b; mov.u32 i, 0; mov.u32 v, 7;"
        "L: setp.eq.u32 p, i, %1; @p mov.u32 v, i; mul.lo.u32 a, i, 3; add.u32 b, a, 9; add.u32 i, i, 1;"
        "setp.lt.u32 p, i, %2; @p bra L; mov.u32 %0, v; }" : "=r"(kept) : "r"(t), "r"(n));
      y[t] = kept;
    }"""
    ran = clean(source, {"y": np.zeros(32, np.int32), "n": 20})
    assert list(ran["y"]) == [t if t < 20 else 7 for t in range(32)]


def test_wide_registers_and_packing() -> None:
    source = """extern "C" __global__ void k(const unsigned long long* x, unsigned long long* y) {
      int t = threadIdx.x;
      unsigned long long a, b, c; unsigned short h0, h1, h2, h3; unsigned lo;
      asm volatile("{ .reg .b128 q, r; mov.b128 q, {%3, %4}; mov.b128 r, q; mov.b128 {%0, %1}, r;"
        "mov.b64 {%2, _}, %3; }" : "=l"(a), "=l"(b), "=r"(lo) : "l"(x[2 * t]), "l"(x[2 * t + 1]));
      asm volatile("mov.b64 {%0, %1, %2, %3}, %4;" : "=h"(h0), "=h"(h1), "=h"(h2), "=h"(h3) : "l"(a));
      asm volatile("mov.b64 %0, {%1, %2, %3, %4};" : "=l"(c) : "h"(h3), "h"(h2), "h"(h1), "h"(h0));
      y[4 * t] = b; y[4 * t + 1] = a; y[4 * t + 2] = c; y[4 * t + 3] = lo;
    }"""
    x = np.random.default_rng(0).integers(0, 2**64, 64, dtype=np.uint64)
    ran = clean(program_of(source, "sm_90"), {"x": x, "y": np.zeros(128, np.uint64)})
    pairs = x.reshape(32, 2)
    y = ran["y"].reshape(32, 4)
    assert (y[:, 0] == pairs[:, 1]).all()
    assert (y[:, 1] == pairs[:, 0]).all()
    halves = pairs[:, 0].copy().view(np.uint16).reshape(32, 4)[:, ::-1]
    assert (y[:, 2].copy().view(np.uint16).reshape(32, 4) == halves).all()
    assert (y[:, 3] == (pairs[:, 0] & np.uint64(0xFFFFFFFF))).all()


def test_a_register_carried_around_a_loop_keeps_its_slot_to_itself() -> None:
    """First named behind a register that is done with there, and live over it in the next round."""
    text = module("""ld.param.u64 %rd1, [p];
mov.u32 %r1, 0;
mov.u32 %r2, 0;
AGAIN:
mul.lo.u32 %r3, %r1, 7;
add.u32 %r2, %r2, %r3;
setp.eq.u32 %p1, %r1, 0;
@%p1 bra FIRST;
add.u32 %r2, %r2, %r4;
FIRST:
mul.lo.u32 %r4, %r1, 100;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p2, %r1, 4;
@%p2 bra AGAIN;
st.global.u32 [%rd1], %r2;""")
    ran = clean(load_program(text), {"p": np.zeros(1, np.uint32)}, block=(1,))
    assert ran["p"][0] == 7 * (0 + 1 + 2 + 3) + 100 * (0 + 1 + 2)
