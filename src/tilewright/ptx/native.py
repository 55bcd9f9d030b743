"""The compiled core, through ctypes: its structures, its functions, the names of its operations."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any


class CoreMissing(RuntimeError):
    """The compiled core is not there: the package was installed without a C compiler."""


_TYPES: dict[str, Any] = {"u8": c_uint8, "u16": c_uint16, "u32": c_uint32, "u64": c_uint64}
_TYPES |= {"i32": c_int32, "i64": c_int64, "pointer": c_void_p}


def _fields(text: str) -> tuple[tuple[str, Any], ...]:
    """`u16 op; i32 guard o[8]`: types, each with the names of its fields, in the order of the core's structure."""
    made = []
    for kind, *names in (part.split() for part in text.split(";")):
        for name in names:
            plain, _, count = name.rstrip("]").partition("[")
            made.append((plain, _TYPES[kind] * int(count) if count else _TYPES[kind]))
    return tuple(made)


class Encoded(Structure):
    """One decoded instruction; packed by `lower`."""

    _fields_ = _fields("u16 op; u8 flags count; i32 guard o[8]; i64 imm; u32 extra mod")


class FunctionInfo(Structure):
    _fields_ = _fields(
        "i32 entry frame_bytes local_bytes parameter_at parameter_stride result_at result_stride parameter_bytes"
    )


class RawRegion(Structure):
    _fields_ = _fields("u64 address bytes; pointer data state recent; u32 flags id")


class RawFinding(Structure):
    _fields_ = _fields(
        "i32 kind instruction block thread; i64 count; u64 address; "
        "i32 size other_instruction other_block other_thread detail other_kind"
    )


class RawCount(Structure):
    _fields_ = _fields(
        "u64 executions lanes requests sectors ideal_sectors passes ideal_passes bytes lines new_sectors"
    )


class RawTouch(Structure):
    _fields_ = _fields("u64 address[32]; u32 lanes; i32 size how unused")


class RawLaunch(Structure):
    _fields_ = _fields(
        "pointer program regions; i64 region_count; i32 grid[3] block[3] cluster[3] explicit_cluster; "
        "pointer parameters; i64 parameter_bytes; i32 dynamic_shared_bytes; u32 checks; "
        "i32 cooperative overlaps inherits seeded; "
        "u64 seed windows shared_window local_window parameter_window circumstance; "
        "u32 total_shared_bytes aggregate_shared_bytes; u64 workspace; i64 instruction_budget race_bytes; "
        "pointer fill; i64 fill_bytes; pointer remains; i64 remains_bytes; i32 workers max_findings; "
        "pointer blocks; i64 block_count; u32 open_at_start open_when_awaited; pointer findings; i64 finding_count; "
        "pointer counts coverage touches printed; i64 printed_capacity printed_bytes; pointer messages; "
        "i64 message_capacity message_bytes thread_instructions warp_instructions; "
        "i32 awaited awaited_first ending; u32 missed; pointer notes"
    )


class RegionNotes(Structure):
    _fields_ = _fields("pointer written fresh read hollow owners; i32 shift content hollowed misfit; i64 twice")


class RawTwice(Structure):
    _fields_ = _fields("i32 region instruction; u64 unit; u32 first second")


class RawPath(Structure):
    _fields_ = _fields("u64 key; i64 blocks; i32 example unused")


class RawNotes(Structure):
    _fields_ = _fields(
        "pointer regions touched twice paths; i32 twice_count twice_capacity path_count path_capacity missing "
        "missing_instruction; u64 random"
    )


class ProgramSource(Structure):
    _fields_ = _fields(
        "pointer code; i64 code_count; pointer extra; i64 extra_count; pointer constants; i64 constant_bytes; "
        "pointer functions; i64 function_count; "
        "i32 kernel static_shared_bytes local_bytes has_guard_zones loop_count; pointer loop_marks shared_state"
    )


_MIRRORED: tuple[type[Structure], ...] = (
    *(Encoded, FunctionInfo, RawRegion, RawFinding, RawCount, RawLaunch, ProgramSource, RawTouch),
    *(RegionNotes, RawTwice, RawPath, RawNotes),
)

# Name of a function of the library -> what it takes, what it gives.
_FUNCTIONS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "tw_opcode_count": ((), c_int64),
    "tw_opcode_name": ((c_int64,), c_char_p),
    "tw_width": ((), c_char_p),
    "tw_choose_width": ((c_int32,), None),
    "tw_program_new": ((POINTER(ProgramSource),), c_void_p),
    "tw_program_free": ((c_void_p,), None),
    "tw_run": ((POINTER(RawLaunch),), c_int32),
    "tw_mark": ((c_void_p, c_uint64, c_uint64, c_int64, c_int64), c_int64),
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

# Spaces of an address in a finding; machine.h has the same.
SHARED_WINDOW, LOCAL_WINDOW, PARAMETER_WINDOW = 0xFFFE << 48, 0xFFFD << 48, 0xFFFC << 48
FUNCTION_WINDOW = 0x7B0000000000


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
