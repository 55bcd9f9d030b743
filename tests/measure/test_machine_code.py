"""A warp's walk through machine code, and how often each instruction of it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.measure import kernels

from tilewright.devices.child_device import EmulatedDevice
from tilewright.kernel_file import KernelFile
from tilewright.measure.emulated_counts import count_plan
from tilewright.measure.machine_code import (
    CodeCost,
    code_cost,
    lane_by_lane,
    single_warp_cycles,
    spread_executions,
    without_copies,
    without_polling,
)
from tilewright.records import KERNEL_FILE_NAME, PROFILES, InstructionRecord, SourcePlace
from tilewright.toolchain import SassInstruction

LOAD = "LDG.E.128 R{}, desc[UR4][R2.64]"


def code(*texts: str) -> tuple[SassInstruction, ...]:
    return tuple(SassInstruction(16 * number, text, None) for number, text in enumerate(texts))


def waits(*texts: str) -> float:
    listing = code(*texts)
    return single_warp_cycles(listing, [1.0] * len(listing))[0]


def test_a_warp_waits_once_for_all_loads_that_are_on_their_way() -> None:
    assert waits(LOAD.format(4), LOAD.format(8), "FADD R0, R9, R1") == pytest.approx(1)
    assert waits(LOAD.format(4), "FADD R0, R7, R1", LOAD.format(8), "FADD R0, R8, R1") == pytest.approx(2)
    assert waits("LDG.E R4, desc[UR4][R2.64]", "LDG.E R6, desc[UR4][R4.64]", "FADD R0, R6, R1") == pytest.approx(2)
    assert waits(LOAD.format(4), LOAD.format(8), "FADD R0, R1, R2") == 0  # nobody needs them


def test_a_fence_waits_until_what_was_written_is_seen() -> None:
    store, fence = "STG.E desc[UR4][R2.64], R0", "MEMBAR.SC.GPU"
    assert waits(store, fence) == pytest.approx(1)
    assert waits(store, "FADD R0, R1, R2") == 0  # without, nobody waits for a store
    assert waits(fence) == 0


def test_a_predicate_beside_a_result_and_the_four_registers_of_a_tensor_product_are_waited_for() -> None:
    assert waits("LDG.E R4, desc[UR4][R2.64]", "IADD3 R6, P1, R4, 0x1, RZ", "@P1 EXIT") == pytest.approx(1)
    alone = [
        single_warp_cycles(listing, [1.0] * 2)[1]
        for listing in (
            code("HMMA.16816.F32 R4, R8, R12, RZ", "FADD R0, R7, R1"),
            code("HMMA.16816.F32 R4, R8, R12, RZ", "FADD R0, R20, R1"),
        )
    ]
    assert alone[0] > alone[1] + 20


def test_copies_ahead_are_there_when_a_loop_comes_back_to_them() -> None:
    """Groups of copies are waited for by those left pending: with one ahead, a long loop waits for none."""
    copy, commit, work = "LDGSTS.E.BYPASS.128 [R5], desc[UR4][R2.64]", "LDGDEPBAR", ["MUFU.EX2 R0, R0"] * 60
    for pending, expected in ((0, 1.0), (1, 0.0)):
        texts = [copy, commit, copy, commit, f"DEPBAR.LE SB0, 0x{pending:x}", *work, "@P0 BRA `(.L_x_0)"]
        listing = list(code(*texts))
        listing[-1] = SassInstruction(listing[-1].address, listing[-1].text, None, target=32)
        ran = [0.0] * 2 + [1.0] * (len(listing) - 2)
        assert single_warp_cycles(listing, ran)[0] == pytest.approx(expected, abs=0.05)


def test_what_the_engine_copies_for_a_warp_is_waited_for_in_order() -> None:
    """With one batch ahead the warp finds it there; with none it waits for the one it has just asked for. Where another
    warp asks, nobody knows."""
    copy, wait, work = (
        "UBLKCP.S.G [UR20], [UR18], UR17",
        "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R1+URZ], R2",
        "LDS R4, [R5]",
    )
    arrive = "SYNCS.ARRIVE.TRANS64 RZ, [R1+URZ], R4"

    def waited(ahead: int, *loop: str) -> float:
        listing = list(code(*[arrive, copy] * ahead, *loop, *["MUFU.EX2 R0, R0"] * 60, "@P0 BRA `(.L_x_0)"))
        listing[-1] = SassInstruction(listing[-1].address, listing[-1].text, None, target=32 * ahead)
        return single_warp_cycles(listing, [0.0] * 2 * ahead + [1.0] * (len(listing) - 2 * ahead))[0]

    assert waited(0, arrive, copy, wait, work) == pytest.approx(1.0, abs=0.05)
    assert waited(1, arrive, copy, wait, work) == pytest.approx(0.0, abs=0.05)
    assert waited(0, arrive, copy, wait) == pytest.approx(0.0, abs=0.05)


def test_what_takes_one_lane_at_a_time_runs_for_each_lane() -> None:
    listing = [
        SassInstruction(0, "ELECT P1, URZ, PT", 7),
        SassInstruction(16, "UBLKCP.S.G [UR20], [UR18], UR17", 7),
        SassInstruction(32, "@P0 BRA.U.ANY `(.L_x_0)", 7, target=0),
        SassInstruction(48, "EXIT", 8),
    ]
    counted = [replace(record(7, 10), active_lanes=160), replace(record(8, 10), active_lanes=320)]
    assert lane_by_lane(listing, [10.0] * 4, counted) == [160.0, 160.0, 160.0, 10.0]


def record(line: int, executions: int, *callers: int) -> InstructionRecord:
    places = tuple(SourcePlace(KERNEL_FILE_NAME, each) for each in (line, *callers))
    return InstructionRecord(1, "add.f32 %f1, %f2, %f3;", places, executions, 0, 0, 0, 0, 0, 0, 0)


def test_executions_go_by_place_and_the_deepest_in_loops_run_most() -> None:
    listing = [
        SassInstruction(0, "FADD R0, R0, R1", 5),
        SassInstruction(16, "FADD R0, R0, R1", 5),
        SassInstruction(32, "@P0 BRA `(.L_x_0)", 5, target=16),
        SassInstruction(48, "FADD R0, R0, R1", 9, callers=(20,)),
        SassInstruction(64, "FADD R0, R0, R1", 9, callers=(30,)),
        SassInstruction(80, "EXIT", 7),
        SassInstruction(96, "FADD R0, R0, R1", 5),  # a routine that is hardly ever called
        SassInstruction(112, "RET.REL.NODEC R4", 5),
    ]
    counted = [record(5, 1), record(5, 40), record(5, 40), record(9, 8, 20), record(9, 0, 30), record(7, 1)]
    assert spread_executions(listing, counted) == [1, 40, 40, 8, 0, 1, 0, 0]


def test_what_leads_to_a_routine_that_is_hardly_ever_called_does_not_run_either() -> None:
    """As of a division, which a branch passes over; the branch itself runs."""
    listing = [
        SassInstruction(0, "FCHK P1, R7, R16", 5),
        SassInstruction(16, "@!P1 BRA `(.L_x_0)", 5, target=80),
        SassInstruction(32, "MOV R20, 0x50", 5),
        SassInstruction(48, "CALL.REL.NOINC `($__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath)", 5),
        SassInstruction(64, "MOV R15, R12", 5),
        SassInstruction(80, "BSYNC B3", 5),
        SassInstruction(96, "EXIT", 5),
        SassInstruction(112, "RET.REL.NODEC R20", 5),
    ]
    assert spread_executions(listing, [record(5, 8)]) == [8, 8, 0, 0, 0, 8, 8, 0]


def test_copies_of_a_loop_that_the_assembler_made_share_its_executions() -> None:
    """Two copies of each load, and a loop for the rest of an odd count, which takes at most one for each of 4 warps."""
    listing = [
        *(SassInstruction(address, "LDG.E R4, desc[UR4][R2.64]", 5) for address in (0, 16)),
        SassInstruction(32, "FADD R0, R4, R5", 6),
        SassInstruction(48, "@P0 BRA `(.L_x_0)", 5, target=0),
        SassInstruction(64, "LDG.E R4, desc[UR4][R2.64]", 5),
        SassInstruction(80, "FADD R0, R4, R5", 6),
        SassInstruction(96, "@P0 BRA `(.L_x_1)", 5, target=64),
        SassInstruction(112, "STG.E desc[UR4][R2.64], R0", 9),
    ]
    load = replace(record(5, 400), ptx_text="ld.global.nc.f32 %f1, [%rd1];")
    executions = [400.0] * 7 + [4.0]
    assert without_copies(listing, executions, [load, record(6, 400)], 4) == [200] * 4 + [2] * 3 + [4]
    assert without_copies(listing, executions, [load, load, record(6, 400)], 4) == executions  # the compiler's own


def test_a_loop_that_waits_for_others_costs_what_it_costs_once() -> None:
    """One that counts arrivals, entered from above; one that works; one behind an end, for the copy engine."""
    listing = [
        SassInstruction(0, "REDG.E.ADD.S32.STRONG.GPU desc[UR4][R2.64], R9", 3),
        SassInstruction(16, "LDG.E.STRONG.GPU R9, desc[UR4][R2.64]", 4),
        SassInstruction(32, "CCTL.IVALL", 4),
        SassInstruction(48, "@!P0 BRA `(.L_x_0)", 4, target=16),
        SassInstruction(64, "LDG.E.STRONG.GPU R9, desc[UR4][R2.64]", 5),
        SassInstruction(80, "STG.E desc[UR4][R2.64], R9", 5),
        SassInstruction(96, "@!P0 BRA `(.L_x_1)", 5, target=64),
        SassInstruction(112, "EXIT", 6),
        SassInstruction(128, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9], R8", 7),
        SassInstruction(144, "@!P0 BRA `(.L_x_2)", 7, target=128),
    ]
    assert without_polling(listing, [1, 96, 96, 96, 8, 8, 8, 1, 70, 70]) == [1, 1, 1, 1, 8, 8, 8, 1, 0, 0]


def test_a_barrier_is_for_those_it_counts(emulator: EmulatedDevice) -> None:
    body = """%s
  if (i < n) y[i] = 2 * x[i];"""
    named = 'asm volatile("bar.sync %0, 64;" ::"r"(1 + (int)threadIdx.x / 64) : "memory");'
    costs = [cost_of(kernels.scale(body % one, 1), emulator) for one in (named, "__syncthreads();")]
    assert [one.together for one in costs] == [2, 8]


def test_a_barrier_after_a_loop_leaves_warps_to_themselves_in_it(emulator: EmulatedDevice) -> None:
    loop = """float v = 0;
  #pragma unroll 1
  for (int k = 0; k < 32; ++k) { v += x[i + k * 256]; %s }
  %s y[i] = v;"""
    inside, after = (kernels.scale(loop % one, 32) for one in (("__syncthreads();", ""), ("", "__syncthreads();")))
    assert cost_of(inside, emulator).together == pytest.approx(8)
    assert cost_of(after, emulator).together < 1.2


def cost_of(file: KernelFile, emulator: EmulatedDevice) -> CodeCost:
    counted = count_plan(file, kernels.scale_task(64, 1024), None, emulator)
    (launch,), build = counted.launches, counted.prepared.build
    assert build is not None
    warps = launch.counts.blocks * launch.block_warps
    made = code_cost(build, "scale", launch.counts.instructions, warps, launch.block_warps, PROFILES["H200"])
    assert made is not None
    return made


def test_unrolled_loads_are_in_flight_together_and_chained_ones_are_not(emulator: EmulatedDevice) -> None:
    together = kernels.scale(
        """float held[8];
  #pragma unroll
  for (int k = 0; k < 8; ++k) held[k] = x[i + k * 256];
  #pragma unroll
  for (int k = 0; k < 8; ++k) y[i + k * 256] = 2 * held[k];""",
        8,
    )
    chained = kernels.scale(
        """long long at = i;
  #pragma unroll 1
  for (int k = 0; k < 8; ++k) { const float v = x[at]; y[at] = 2 * v; at = (at + (long long)v) % n; }""",
        8,
    )
    assert cost_of(together, emulator).in_flight >= 6
    assert cost_of(chained, emulator).in_flight == pytest.approx(1, abs=0.2)
