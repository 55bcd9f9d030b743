"""Classes of instructions, and how many floating-point operations each does."""

from __future__ import annotations

import pytest

from tilewright.ptx.classes import FlopKind, InstructionClass, OpcodeWork, opcode_of, work_of
from tilewright.ptx.lower import classify

C = InstructionClass
CLASSES = {
    "add.f32 %f1, %f2, %f3": C.FP32,
    "fma.rn.ftz.f32 %f1, %f2, %f3, %f4": C.FP32,
    "setp.lt.f32 %p1, %f1, %f2": C.FP32,
    "fma.rn.f16x2 %r1, %r2, %r3, %r4": C.FP16,
    "max.bf16 %rs1, %rs2, %rs3": C.FP16,
    "mul.f64 %fd1, %fd2, %fd3": C.FP64,
    "mad.lo.s32 %r1, %r2, %r3, %r4": C.INTEGER,
    "mul.wide.u32 %rd1, %r1, 4": C.INTEGER,
    "and.pred %p1, %p2, %p3": C.INTEGER,
    "div.u32 %r1, %r2, %r3": C.INTEGER,
    "selp.f32 %f1, %f2, %f3, %p1": C.INTEGER,
    "vadd4.u32.u32.u32 %r1, %r2, %r3, %r4": C.INTEGER,
    "div.rn.f32 %f1, %f2, %f3": C.SPECIAL_FUNCTION,
    "ex2.approx.ftz.f32 %f1, %f2": C.SPECIAL_FUNCTION,
    "cvt.rn.f16.f32 %rs1, %f1": C.CONVERSION,
    "mov.u32 %r1, %tid.x": C.MOVE,
    "cvta.to.global.u64 %rd1, %rd2": C.MOVE,
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f2}": C.TENSOR,
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r1}, {%r2}, {%f2}": C.TENSOR,
    "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1}, [%rd1], 16": C.SHARED_LOAD,
    "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], {%f1}, 16": C.GLOBAL_STORE,
    "@%p1 ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1]": C.GLOBAL_LOAD,
    "@!%p1 st.global.u8 [%rd1], %rs1": C.GLOBAL_STORE,
    "ld.shared::cta.b32 %r1, [%r2]": C.SHARED_LOAD,
    "st.shared.v2.b32 [%r1], {%r2, %r3}": C.SHARED_STORE,
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r2]": C.SHARED_LOAD,
    "ld.local.f32 %f1, [%rd1]": C.LOCAL_LOAD,
    "ld.u32 %r1, [%rd1]": C.GENERIC_LOAD,
    "ld.const.f32 %f1, [%rd1]": C.CONSTANT_LOAD,
    "ld.param.u64 %rd1, [k_param_0]": C.PARAMETER,
    "atom.global.add.f32 %f1, [%rd1], %f2": C.GLOBAL_ATOMIC,
    "red.shared.add.u32 [%rd1], 1": C.SHARED_ATOMIC,
    "cp.async.cg.shared.global [%r1], [%rd1], 16": C.ASYNC_COPY,
    "cp.async.wait_group 0": C.SYNC,
    "cp.async.commit_group": C.SYNC,
    "bar.sync 0": C.SYNC,
    "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1": C.WARP,
    "@%p1 bra $L__BB0_1": C.CONTROL,
    "ret": C.CONTROL,
    "prefetch.global.L2 [%rd1]": C.OTHER,
    "nothing.of.this.kind": C.OTHER,
}


@pytest.mark.parametrize(("text", "expected"), CLASSES.items(), ids=list(CLASSES))
def test_classes(text: str, expected: InstructionClass) -> None:
    assert classify(opcode_of(text)) is expected


WORK = {
    "add.f32 %f1, %f2, %f3": OpcodeWork(FlopKind.FP32, 1, 0),
    "fma.rn.f64 %fd1, %fd2, %fd3, %fd4": OpcodeWork(FlopKind.FP64, 2, 0),
    "fma.rn.f16x2 %r1, %r2, %r3, %r4": OpcodeWork(FlopKind.FP16, 4, 0),
    "mul.bf16x2 %r1, %r2, %r3": OpcodeWork(FlopKind.BF16, 2, 0),
    "rsqrt.approx.f32 %f1, %f2": OpcodeWork(FlopKind.SPECIAL_FUNCTION, 1, 0),
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {}": OpcodeWork(FlopKind.TENSOR_BF16, 0, 4096),
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {}": OpcodeWork(FlopKind.TENSOR_FP16, 0, 4096),
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {}": OpcodeWork(FlopKind.TENSOR_TF32, 0, 2048),
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {}": OpcodeWork(FlopKind.TENSOR_INT8, 0, 8192),
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {}": OpcodeWork(FlopKind.TENSOR_FP64, 0, 512),
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {}": OpcodeWork(FlopKind.TENSOR_FP16, 0, 8192),
    "add.s32 %r1, %r2, %r3": None,
    "max.f32 %f1, %f2, %f3": None,
    "ld.global.f32 %f1, [%rd1]": None,
}


@pytest.mark.parametrize(("text", "expected"), WORK.items(), ids=list(WORK))
def test_work(text: str, expected: OpcodeWork | None) -> None:
    parts = opcode_of(text)
    assert work_of(parts, classify(parts)) == expected
