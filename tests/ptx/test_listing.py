"""Counts made readable: classes and operations of instructions, totals, the annotated source."""

from __future__ import annotations

import json

import pytest

from tilewright.ptx.classes import FlopKind, InstructionClass, Work, classify, opcode_of, work_of
from tilewright.ptx.listing import LevelBytes, Listing, Operations, Traffic, annotate, summarise
from tilewright.ptx.listing_text import render, render_lines, render_summary
from tilewright.ptx.results import InstructionCount, LaunchCounts
from tilewright.ptx.syntax import Place
from tilewright.records import from_json, to_json

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
    "div.rn.f32 %f1, %f2, %f3": C.SPECIAL_FUNCTION,
    "ex2.approx.ftz.f32 %f1, %f2": C.SPECIAL_FUNCTION,
    "cvt.rn.f16.f32 %rs1, %f1": C.CONVERSION,
    "mov.u32 %r1, %tid.x": C.MOVE,
    "cvta.to.global.u64 %rd1, %rd2": C.MOVE,
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f2}": C.TENSOR,
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r1}, {%r2}, {%f2}": C.TENSOR,
    "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1}, [%rd1], 16": C.SHARED_LOAD,
    "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], {%f1}, 16": C.GLOBAL_STORE,
    "wgmma.wait_group.sync.aligned 0": C.SYNC,
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
}


@pytest.mark.parametrize(("text", "expected"), CLASSES.items(), ids=list(CLASSES))
def test_classes(text: str, expected: InstructionClass) -> None:
    assert classify(opcode_of(text)) is expected


WORK = {
    "add.f32 %f1, %f2, %f3": Work(FlopKind.FP32, 1, 0),
    "fma.rn.f64 %fd1, %fd2, %fd3, %fd4": Work(FlopKind.FP64, 2, 0),
    "fma.rn.f16x2 %r1, %r2, %r3, %r4": Work(FlopKind.FP16, 4, 0),
    "mul.bf16x2 %r1, %r2, %r3": Work(FlopKind.BF16, 2, 0),
    "rsqrt.approx.f32 %f1, %f2": Work(FlopKind.SPECIAL_FUNCTION, 1, 0),
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {}": Work(FlopKind.TENSOR_BF16, 0, 4096),
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {}": Work(FlopKind.TENSOR_FP16, 0, 4096),
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {}": Work(FlopKind.TENSOR_TF32, 0, 2048),
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {}": Work(FlopKind.TENSOR_INT8, 0, 8192),
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {}": Work(FlopKind.TENSOR_FP64, 0, 512),
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {}": Work(FlopKind.TENSOR_FP16, 0, 8192),
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {}": Work(FlopKind.TENSOR_FP16, 0, 32768),
    "add.s32 %r1, %r2, %r3": None,
    "max.f32 %f1, %f2, %f3": None,
    "ld.global.f32 %f1, [%rd1]": None,
}


@pytest.mark.parametrize(("text", "expected"), WORK.items(), ids=list(WORK))
def test_work(text: str, expected: Work | None) -> None:
    assert work_of(opcode_of(text)) == expected


# -- a launch --

SOURCE = """#include "header.cuh"
__global__ void copy(float* y) {
    int i = threadIdx.x;
    float v = square(x[i * 2]);
    // nothing here
    // nor here
    // nor here
    y[i] = v;
}
"""
FILE = "/source/kernel.cu"
LOAD = Place(FILE, 4)


def counted(
    text: str,
    place: Place | None,
    executions: int = 2,
    lanes: int = 64,
    memory: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
) -> InstructionCount:
    return InstructionCount(1, text, place, executions, lanes, *memory)


COUNTS = LaunchCounts(
    kernel="copy",
    blocks=1,
    grid_blocks=4,
    warp_instructions=16,
    thread_instructions=464,
    instructions=(
        counted("mov.u32 %r1, %tid.x", Place(FILE, 3)),
        counted("ld.global.f32 %f1, [%rd1]", LOAD, memory=(2, 16, 8, 0, 0, 256)),
        counted("fma.rn.f32 %f2, %f1, %f1, %f1", Place("/include/header.cuh", 9, LOAD)),
        counted("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {}", LOAD),
        counted("@%p1 st.shared.f32 [%r1], %f2", Place(FILE, 4), lanes=16, memory=(2, 0, 0, 8, 2, 64)),
        counted("st.global.f32 [%rd2], %f2", Place(FILE, 8), memory=(2, 8, 8, 0, 0, 256)),
        counted("add.f32 %f1, %f1, %f1", Place("/include/other.cuh", 7)),
        counted("ret", None),
        counted("trap", Place(FILE, 9), executions=0, lanes=0),
    ),
)


@pytest.fixture
def listing() -> Listing:
    return annotate(COUNTS, {"kernel.cu": SOURCE})


def test_totals() -> None:
    summary = summarise(COUNTS)
    assert (summary.kernel, summary.blocks, summary.grid_blocks) == ("copy", 1, 4)
    assert summary.active_lanes == 29.0
    shares = {each.kind: (each.warp_instructions, each.thread_instructions) for each in summary.mix}
    assert shares == {
        C.MOVE: (2, 64),
        C.GLOBAL_LOAD: (2, 64),
        C.FP32: (4, 128),
        C.TENSOR: (2, 64),
        C.SHARED_STORE: (2, 16),
        C.GLOBAL_STORE: (2, 64),
        C.CONTROL: (2, 64),
    }
    assert summary.mix[0].kind is C.FP32
    assert sum(each.share for each in summary.mix) == pytest.approx(1.0)
    assert summary.flops == (Operations(FlopKind.FP32, 64 * 2 + 64),)
    assert summary.tensor_operations == (Operations(FlopKind.TENSOR_FP16, 2 * 2 * 16 * 8 * 8),)


def test_traffic() -> None:
    summary = summarise(COUNTS)
    assert summary.traffic == (
        Traffic(C.GLOBAL_LOAD, 2, 256, 16, 8, 0, 0),
        Traffic(C.GLOBAL_STORE, 2, 256, 8, 8, 0, 0),
        Traffic(C.SHARED_STORE, 2, 64, 0, 0, 8, 2),
    )
    assert summary.traffic[0].sector_bytes == 512
    assert summary.bytes == LevelBytes(512, 768, 64, 0, 0)


def test_generic_accesses_count_where_they_led() -> None:
    generic = [
        counted("ld.f32 %f1, [%rd1]", None, memory=(1, 4, 4, 0, 0, 128)),
        counted("ld.f32 %f1, [%rd1]", None, memory=(1, 0, 0, 1, 1, 100)),
        counted("ld.local.f32 %f1, [%rd1]", None, memory=(1, 0, 0, 0, 0, 50)),
        counted("ld.param.f32 %f1, [p]", None, memory=(1, 0, 0, 0, 0, 4)),
    ]
    summary = summarise(LaunchCounts("k", 1, 1, 8, 256, tuple(generic)))
    assert summary.bytes == LevelBytes(128, 128, 100, 50, 4)


def test_lines(listing: Listing) -> None:
    assert [(line.line, line.ptx_instructions, line.warp_instructions) for line in listing.lines] == [
        (3, 1, 2),
        (4, 4, 8),
        (8, 1, 2),
    ]
    line = listing.lines[1]
    assert line.source == "    float v = square(x[i * 2]);"
    assert line.thread_instructions == 208
    assert line.active_lanes == 26.0
    assert line.share == pytest.approx(208 / 464)
    assert (line.global_requests, line.sectors, line.ideal_sectors) == (2, 16, 8)
    assert (line.shared_requests, line.passes, line.ideal_passes) == (2, 8, 2)


def test_what_belongs_to_no_line(listing: Listing) -> None:
    assert listing.elsewhere is not None
    assert listing.elsewhere.ptx_instructions == 2
    total = sum(line.thread_instructions for line in listing.lines) + listing.elsewhere.thread_instructions
    assert total == COUNTS.thread_instructions
    both = annotate(COUNTS, {FILE: SOURCE, "/include/other.cuh": "//\n" * 8})
    assert (both.lines[0].file, both.lines[0].line) == ("/include/other.cuh", 7)
    assert both.elsewhere is not None
    assert both.elsewhere.ptx_instructions == 1


def test_listings_are_records_with_a_json_form(listing: Listing) -> None:
    assert from_json(Listing, json.loads(json.dumps(to_json(listing)))) == listing


def test_text(listing: Listing) -> None:
    assert render_lines(listing).splitlines() == [
        "kernel.cu",
        " share  warp instr  lanes  sectors/request  passes/request   line",
        '                                                                1 | #include "header.cuh"',
        "                                                                2 | __global__ void copy(float* y) {",
        " 13.8%           2   100%                                       3 |     int i = threadIdx.x;",
        " 44.8%           8    81%  8.0 (ideal 4.0) 4.0 (ideal 1.0)!     4 |     float v = square(x[i * 2]);",
        "                                                                5 |     // nothing here",
        "                                                                6 |     // nor here",
        "                                                                7 |     // nor here",
        " 13.8%           2   100%  4.0 (ideal 4.0)                      8 |     y[i] = v;",
        "                                                                9 | }",
        " 27.6%           4   100%                                   on no line of the source",
    ]


def test_text_leaves_out_what_did_not_run(listing: Listing) -> None:
    lines = render_lines(listing, around=0).splitlines()
    shown = [line.split("|")[0].split()[-1] for line in lines if "|" in line]
    assert shown == ["3", "4", "8"]
    assert sum(line.strip() == "..." for line in lines) == 2
    whole = render_lines(listing, around=None)
    assert whole.count(" | ") + whole.count(" |\n") == len(SOURCE.splitlines())


def test_text_of_totals(listing: Listing) -> None:
    text = render_summary(listing.summary)
    assert text.startswith("copy: 1 of 4 blocks, 16 warp instructions, 464 thread instructions, 91% of lanes active")
    assert "fp32 27.6%" in text
    assert "operations: fp32 192, tensor fp16 4,096" in text
    assert "bytes: global 512 (768 in sectors), shared 64" in text
    assert "global load: 2 requests; 256 bytes; 16 sectors, ideal 8" in text
    assert render(listing) == text + "\n" + render_lines(listing)


def test_a_launch_that_did_nothing() -> None:
    empty = annotate(LaunchCounts("k", 0, 0, 0, 0, ()), {"kernel.cu": SOURCE})
    assert (empty.lines, empty.elsewhere, empty.summary.mix) == ((), None, ())
    assert "0 blocks" in render(empty)
