"""The emulator against a real GPU: every recorded instruction, bit by bit where the hardware is exact.

`benchmarks/golden_vectors.py record` makes the file; tolerances stand with the probes.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from benchmarks.golden_probe import EXACT, Family, Kind, Probe, Tolerance, Words, mismatches
from benchmarks.golden_vectors import build_family, cases, rows_of, unpacked

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchRequest
from tilewright.ptx.program import load_program

GOLDEN = Path(__file__).parent / "golden" / "h200.npz"
FAMILIES = {family.name: family for family in cases()}


@lru_cache(maxsize=1)
def stored() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return dict(file)


def emulate(family: Family) -> Words:
    """[results, threads] of the family's kernel in the emulator; it must run without a finding."""
    built = build_family(family)
    rows, threads = family.rows, family.threads
    memory = GlobalMemory()
    inputs = np.ascontiguousarray(family.inputs).view(np.uint8).ravel()
    x = memory.add(
        "x", inputs.size, element_bytes=8, shape=family.inputs.shape, stride=(threads, 1), writable=False,
        initialised=True, data=inputs,
    )  # fmt: skip
    y = memory.add(
        "y", rows * threads * 8, element_bytes=8, shape=(rows, threads), stride=(threads, 1), writable=True,
        initialised=False, data=None,
    )  # fmt: skip
    request = LaunchRequest(
        kernel=built.kernel("golden").symbol,
        grid=(threads // 32, 1, 1),
        block=(32, 1, 1),
        dynamic_smem_bytes=0,
        parameters=struct.pack("<QQi", x, y, threads),
    )
    result = load_program(built.ptx).launch(memory, request)
    assert result.completed
    assert result.findings == ()
    return memory.bytes("y").copy().view(np.uint64).reshape(rows, threads)


def differences(family: Family, probe: Probe, recorded: Words, emulated: Words) -> list[str]:
    lines = []
    for kind, expected, actual in zip(probe.results, recorded, emulated, strict=True):
        wrong = np.nonzero(mismatches(expected, actual, kind, probe.tolerance))[0]
        if len(wrong):
            thread = int(wrong[0])
            words = ", ".join(f"{int(row[thread]):#x}" for row in family.inputs[:4])
            lines.append(
                f"{probe.label}: {len(wrong)} of {family.threads}; thread {thread} on {words}: "
                f"the GPU {int(expected[thread]):#x}, here {int(actual[thread]):#x}"
            )
    return lines


@pytest.mark.parametrize("name", list(FAMILIES))
def test_the_emulator_agrees_with_the_gpu(name: str) -> None:
    family = FAMILIES[name]
    identity, recorded = unpacked(stored(), name)
    assert identity == family.identity(), "the family has changed: record the golden vectors again"
    emulated = emulate(family)
    wrong = [
        line
        for probe, first, end in rows_of(family)
        for line in differences(family, probe, recorded[first:end], emulated[first:end])
    ]
    assert not wrong, f"{len(wrong)} results differ:\n" + "\n".join(wrong[:40])


# -- the comparison itself --


def words(*values: int) -> Words:
    return np.array(values, np.uint64)


def test_without_a_tolerance_only_the_same_bits_pass() -> None:
    assert mismatches(words(1, 0x7FC00000, 0), words(1, 0x7FFFFFFF, 0x80000000), Kind.F32, EXACT).tolist() == [
        False,
        True,
        True,
    ]


def test_units_in_the_last_place() -> None:
    one = Tolerance(ulp=1)
    recorded = words(0x3F800000, 0x3F800000, 0x7F800000, 0x7FC00000, 0x7FC00000, 0x00000001, 0)
    emulated = words(0x3F800001, 0x3F800002, 0x7F7FFFFF, 0xFFFFFFFF, 0x3F800000, 0x00000003, 0x80000000)
    assert mismatches(recorded, emulated, Kind.F32, one).tolist() == [False, True, True, False, True, True, False]


def test_halves_are_compared_apart() -> None:
    recorded, emulated = words(0x3C003C00, 0x3C003C00), words(0x3C013C00, 0x3C033C00)
    assert mismatches(recorded, emulated, Kind.F16X2, Tolerance(ulp=2)).tolist() == [False, True]


def test_absolute_bounds() -> None:
    bound = Tolerance(absolute=1e-6)
    recorded, emulated = words(0x3F800000, 0x40000000), words(0x3F800001, 0x40000010)
    assert mismatches(recorded, emulated, Kind.F32, bound).tolist() == [False, True]


def test_any_nan() -> None:
    nan = Tolerance(any_nan=True)
    assert mismatches(words(0x7FFF, 0x3C00), words(0xFE00, 0x3C01), Kind.F16, nan).tolist() == [False, True]
