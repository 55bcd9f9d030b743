"""The compiled core, through ctypes: its structures, its functions, the names of its operations."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any


class CoreMissing(RuntimeError):
    """The compiled core is not there: the package was installed without a C compiler."""


class Encoded(Structure):
    """One decoded instruction; packed by `lower`."""

    _fields_ = (
        ("op", c_uint16),
        ("flags", c_uint8),
        ("count", c_uint8),
        ("guard", c_int32),
        ("o", c_int32 * 8),
        ("imm", c_int64),
        ("extra", c_uint32),
        ("mod", c_uint32),
    )


class FunctionInfo(Structure):
    _fields_ = (
        ("entry", c_int32),
        ("frame_bytes", c_int32),
        ("local_bytes", c_int32),
        ("parameter_at", c_int32),
        ("parameter_stride", c_int32),
        ("result_at", c_int32),
        ("result_stride", c_int32),
        ("parameter_bytes", c_int32),
    )


class RawRegion(Structure):
    _fields_ = (
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("data", c_void_p),
        ("state", c_void_p),
        ("recent", c_void_p),
        ("flags", c_uint32),
        ("id", c_uint32),
    )


class RawFinding(Structure):
    _fields_ = (
        ("kind", c_int32),
        ("instruction", c_int32),
        ("block", c_int32),
        ("thread", c_int32),
        ("count", c_int64),
        ("address", c_uint64),
        ("size", c_int32),
        ("other_instruction", c_int32),
        ("other_block", c_int32),
        ("other_thread", c_int32),
        ("detail", c_int32),
        ("other_kind", c_int32),
    )


_COUNTERS = "executions lanes requests sectors ideal_sectors passes ideal_passes bytes lines new_sectors"


class RawCount(Structure):
    _fields_ = tuple((name, c_uint64) for name in _COUNTERS.split())


class RawTouch(Structure):
    _fields_ = (
        ("address", c_uint64 * 32),
        ("lanes", c_uint32),
        ("size", c_int32),
        ("how", c_int32),
        ("unused", c_int32),
    )


class RawLaunch(Structure):
    _fields_ = (
        ("program", c_void_p),
        ("regions", c_void_p),
        ("region_count", c_int64),
        ("grid", c_int32 * 3),
        ("block", c_int32 * 3),
        ("cluster", c_int32 * 3),
        ("explicit_cluster", c_int32),
        ("parameters", c_void_p),
        ("parameter_bytes", c_int64),
        ("dynamic_shared_bytes", c_int32),
        ("checks", c_uint32),
        ("cooperative", c_int32),
        ("overlaps", c_int32),
        ("poison", c_int32),
        ("seeded", c_int32),
        ("seed", c_uint64),
        ("workspace", c_uint64),
        ("instruction_budget", c_int64),
        ("race_bytes", c_int64),
        ("workers", c_int32),
        ("max_findings", c_int32),
        ("blocks", c_void_p),
        ("block_count", c_int64),
        ("findings", c_void_p),
        ("finding_count", c_int64),
        ("counts", c_void_p),
        ("coverage", c_void_p),
        ("touches", c_void_p),
        ("printed", c_void_p),
        ("printed_capacity", c_int64),
        ("printed_bytes", c_int64),
        ("messages", c_void_p),
        ("message_capacity", c_int64),
        ("message_bytes", c_int64),
        ("thread_instructions", c_int64),
        ("warp_instructions", c_int64),
        ("ending", c_int32),
        ("missed", c_uint32),
    )


class ProgramSource(Structure):
    _fields_ = (
        ("code", c_void_p),
        ("code_count", c_int64),
        ("extra", c_void_p),
        ("extra_count", c_int64),
        ("constants", c_void_p),
        ("constant_bytes", c_int64),
        ("functions", c_void_p),
        ("function_count", c_int64),
        ("kernel", c_int32),
        ("static_shared_bytes", c_int32),
        ("local_bytes", c_int32),
        ("has_guard_zones", c_int32),
        ("loop_count", c_int32),
        ("loop_marks", c_void_p),
        ("shared_state", c_void_p),
    )


_MIRRORED = (Encoded, FunctionInfo, RawRegion, RawFinding, RawCount, RawLaunch, ProgramSource, RawTouch)

# Name of a function of the library -> what it takes, what it gives.
_FUNCTIONS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "tw_opcode_count": ((), c_int64),
    "tw_opcode_name": ((c_int64,), c_char_p),
    "tw_width": ((), c_char_p),
    "tw_choose_width": ((c_int32,), None),
    "tw_program_new": ((POINTER(ProgramSource),), c_void_p),
    "tw_program_free": ((c_void_p,), None),
    "tw_run": ((POINTER(RawLaunch),), c_int32),
    "tw_mma_registers": ((c_int32, c_int32 * 4, c_int32 * 4), None),
    **dict.fromkeys(
        ("tw_conversion_find", "tw_mma_find", "tw_wmma_mma_find", "tw_fragment_find", "tw_wgmma_find"),
        ((c_char_p,), c_int32),
    ),
    **dict.fromkeys(
        (
            *("tw_conversion_operands", "tw_fragment_registers", "tw_fragment_register_bits"),
            *("tw_wgmma_sums", "tw_wgmma_element_bits", "tw_wgmma_is_float"),
        ),
        ((c_int32,), c_int32),
    ),
}

# Generic addresses from here on are not of global memory; machine.h has the same.
SHARED_WINDOW, LOCAL_WINDOW = 0x7E0000000000, 0x7D0000000000
PARAMETER_WINDOW, FUNCTION_WINDOW = 0x7C0000000000, 0x7B0000000000


@cache
def core() -> ctypes.CDLL:
    """The library, loaded once. Raises `CoreMissing` when it was not built."""
    found = sorted(Path(__file__).parent.glob("_core*.so"))
    if not found:
        raise CoreMissing(
            "the emulator's compiled core is missing: it is built when the package is installed, which needs a C "
            "compiler (gcc or clang). Install one and run `pip install --force-reinstall --no-deps tilewright`, "
            "or `pip install -e .` in a checkout"
        )
    library = ctypes.CDLL(str(found[0]))
    library.tw_layout.argtypes, library.tw_layout.restype = (c_int64,), c_int64
    for index, structure in enumerate(_MIRRORED):
        if library.tw_layout(index) != ctypes.sizeof(structure):
            raise CoreMissing(
                f"{found[0]} was built from other sources than this package ({structure.__name__} differs in size): "
                "install the package again"
            )
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def vector_width() -> str:
    """Which code was chosen for this processor: "avx2" or "baseline"."""
    name: bytes = core().tw_width()
    return name.decode()


@cache
def opcode_numbers() -> dict[str, int]:
    """Operation name -> its number in the library, so that the two can never drift apart."""
    library = core()
    return {library.tw_opcode_name(index).decode(): index for index in range(library.tw_opcode_count())}
