"""Loads in flight, read off machine code."""

from __future__ import annotations

from tests.measure import kernels

from tilewright.kernel_file import KernelFile
from tilewright.measure.in_flight import loads_in_flight, mean_in_flight
from tilewright.measure.preparation import prepare
from tilewright.toolchain import SassInstruction


def flight(*texts: str) -> float:
    return mean_in_flight(tuple(SassInstruction(16 * i, text, None) for i, text in enumerate(texts)))


def test_a_use_a_barrier_or_an_overwritten_address_ends_a_batch() -> None:
    load = "LDG.E.128 R{}, desc[UR4][R2.64]"
    assert flight(load.format(4), load.format(8), "FADD R0, R9, R1") == 2
    assert flight(load.format(4), "FADD R0, R7, R1", load.format(8), "FADD R0, R8, R1") == 1
    assert flight(load.format(4), load.format(8), "BAR.SYNC.DEFER_BLOCKING 0x0", load.format(12)) == (4 + 1) / 3
    assert flight("LDG.E R4, desc[UR4][R2.64]", "LDG.E R5, desc[UR4][R4.64]") == 1  # an address that was loaded
    assert flight("FADD R0, R1, R2") == 1


def test_copies_to_shared_memory_are_in_flight_by_the_stages_left_pending() -> None:
    copy = "LDGSTS.E.BYPASS.128 [R5], desc[UR4][R2.64]"
    assert flight(copy, copy, "LDGDEPBAR", "DEPBAR.LE SB0, 0x2", "BAR.SYNC 0x0") == 6


def test_unrolled_loads_are_in_flight_together_and_chained_ones_are_not() -> None:
    def measured(file: KernelFile) -> float:
        prepared = prepare(file, kernels.scale_task(64, 1024), None)
        assert prepared.build is not None
        return loads_in_flight(prepared.build)["scale"]

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
    assert measured(together) >= 6
    assert measured(chained) == 1
