"""Counts made readable: totals of a launch, the annotated source, the lines that cost too much."""

from __future__ import annotations

import json

import pytest

from tilewright.devices.emulation.listing import (
    LevelBytes,
    Listing,
    Operations,
    Traffic,
    listing_text,
    make_listing,
    render_lines,
    render_summary,
    summarise,
)
from tilewright.ptx.classes import FlopKind, InstructionClass
from tilewright.records import (
    KERNEL_FILE_NAME,
    CountsRecord,
    InstructionRecord,
    SourcePlace,
    from_json,
    to_json,
)

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
LOAD = SourcePlace(KERNEL_FILE_NAME, 4)


def counted(
    text: str,
    *places: SourcePlace,
    executions: int = 2,
    lanes: int = 64,
    memory: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0),
) -> InstructionRecord:
    return InstructionRecord(1, text, places, executions, lanes, *memory)


COUNTS = CountsRecord(
    kernel="copy",
    launch_line=3,
    blocks=1,
    grid_blocks=4,
    warp_instructions=16,
    thread_instructions=464,
    instructions=(
        counted("mov.u32 %r1, %tid.x", SourcePlace(KERNEL_FILE_NAME, 3)),
        counted("ld.global.f32 %f1, [%rd1]", LOAD, memory=(2, 16, 8, 0, 0, 256)),
        counted("fma.rn.f32 %f2, %f1, %f1, %f1", SourcePlace("/include/header.cuh", 9), LOAD),
        counted("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {}", LOAD),
        counted("@%p1 st.shared.f32 [%r1], %f2", LOAD, lanes=16, memory=(2, 0, 0, 8, 2, 64)),
        counted("st.global.f32 [%rd2], %f2", SourcePlace(KERNEL_FILE_NAME, 8), memory=(2, 8, 8, 0, 0, 256)),
        counted("add.f32 %f1, %f1, %f1", SourcePlace("/include/other.cuh", 7)),
        counted("ret"),
        counted("trap", SourcePlace(KERNEL_FILE_NAME, 9), executions=0, lanes=0),
    ),
)


@pytest.fixture
def listing() -> Listing:
    return make_listing(COUNTS, "kernel.cu", SOURCE)


def test_totals() -> None:
    summary = summarise(COUNTS)
    assert (summary.kernel, summary.blocks, summary.grid_blocks) == ("copy", 1, 4)
    assert summary.active_lanes == 29.0
    shares = {each.kind: (each.warp_instructions, each.thread_instructions) for each in summary.mix}
    assert shares == {
        InstructionClass.MOVE: (2, 64),
        InstructionClass.GLOBAL_LOAD: (2, 64),
        InstructionClass.FP32: (4, 128),
        InstructionClass.TENSOR: (2, 64),
        InstructionClass.SHARED_STORE: (2, 16),
        InstructionClass.GLOBAL_STORE: (2, 64),
        InstructionClass.CONTROL: (2, 64),
    }
    assert summary.mix[0].kind is InstructionClass.FP32
    assert sum(each.share for each in summary.mix) == pytest.approx(1.0)
    assert summary.flops == (Operations(FlopKind.FP32, 64 * 2 + 64),)
    assert summary.tensor_operations == (Operations(FlopKind.TENSOR_FP16, 2 * 2 * 16 * 8 * 8),)


def test_traffic() -> None:
    summary = summarise(COUNTS)
    assert summary.traffic == (
        Traffic(InstructionClass.GLOBAL_LOAD, 2, 256, 16, 8, 0, 0),
        Traffic(InstructionClass.GLOBAL_STORE, 2, 256, 8, 8, 0, 0),
        Traffic(InstructionClass.SHARED_STORE, 2, 64, 0, 0, 8, 2),
    )
    assert summary.traffic[0].sectors == 16
    assert summary.bytes == LevelBytes(512, 768, 64, 0, 0)


def test_generic_accesses_count_where_they_led() -> None:
    generic = [
        counted("ld.f32 %f1, [%rd1]", memory=(1, 4, 4, 0, 0, 128)),
        counted("ld.f32 %f1, [%rd1]", memory=(1, 0, 0, 1, 1, 100)),
        counted("ld.local.f32 %f1, [%rd1]", memory=(1, 0, 0, 0, 0, 50)),
        counted("ld.param.f32 %f1, [p]", memory=(1, 0, 0, 0, 0, 4)),
    ]
    summary = summarise(CountsRecord("k", 1, 1, 1, 8, 256, tuple(generic)))
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
    assert {line.file for line in listing.lines} == {"kernel.cu"}


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


def test_text_leaves_out_what_did_not_run(listing: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.devices.emulation.listing._CONTEXT_LINES", 0)
    lines = render_lines(listing).splitlines()
    shown = [line.split("|")[0].split()[-1] for line in lines if "|" in line]
    assert shown == ["3", "4", "8"]
    assert sum(line.strip() == "..." for line in lines) == 2


def test_text_of_totals(listing: Listing) -> None:
    text = render_summary(listing.summary)
    assert text.startswith("copy: 1 of 4 blocks, 16 warp instructions, 464 thread instructions, 91% of lanes active")
    assert "fp32 27.6%" in text
    assert "operations: fp32 192, tensor fp16 4,096" in text
    assert "bytes: global 512 (768 in sectors), shared 64" in text
    assert "global load: 2 requests; 256 bytes; 16 sectors, ideal 8" in text
    assert listing_text(listing) == text + "\n" + render_lines(listing)


def test_a_launch_that_did_nothing() -> None:
    empty = make_listing(CountsRecord("k", 1, 0, 0, 0, 0, ()), "kernel.cu", SOURCE)
    assert (empty.lines, empty.elsewhere, empty.summary.mix) == ((), None, ())
    assert "0 blocks" in listing_text(empty)


def test_counts_are_records_with_a_json_form() -> None:
    assert from_json(CountsRecord, json.loads(json.dumps(to_json(COUNTS)))) == COUNTS
