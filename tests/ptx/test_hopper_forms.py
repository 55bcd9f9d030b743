"""Forms of instructions that kernels for Hopper use: each is known, and what is not there is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.ptx.program import load_program
from tilewright.ptx.syntax import UnsupportedPtx

LINES = (Path(__file__).parent / "samples" / "hopper_forms.ptx").read_text().splitlines()
FORMS = [line for line in LINES if not line.startswith("//")]
MODULE = """
.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a) {
  .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .b128 %q<4>;
  .reg .f32 %f<40>; .reg .f64 %d<20>;
  .shared .align 128 .b8 s[4096];
  .shared .align 8 .b64 bar[4];
  LINE
  ret;
}
"""
# Sparse products, sums over several GPUs, 128-bit exchanges; and one that belongs to Blackwell.
REFUSED = {
    "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1, %f2}, %rd1, %rd2, %r1, 0, 1, 1, 1, 0, 0;": "sparse",
    "multimem.ld_reduce.relaxed.sys.global.add.f32 %f1, [%rd1];": "multimem",
    "atom.global.exch.b128 %q1, [%rd1], %q2;": "b128",
    "atom.global.add.v4.f64 {%d1, %d2, %d3, %d4}, [%rd1], {%d5, %d6, %d7, %d8};": "v4.f64",
    "fma.rn.oob.f16 %h1, %h2, %h3, %h4;": "oob",
    "max.relu.u32 %r1, %r2, %r3;": "relu",
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;": "clusterlaunchcontrol",
}


def lower(line: str) -> None:
    load_program(MODULE.replace("LINE", line)).prepare("k")


def test_every_form_is_known() -> None:
    assert len(FORMS) > 200
    for line in FORMS:
        lower(line)


@pytest.mark.parametrize(("line", "word"), REFUSED.items())
def test_what_is_not_there_is_refused_by_name(line: str, word: str) -> None:
    with pytest.raises(UnsupportedPtx, match=word):
        lower(line)
