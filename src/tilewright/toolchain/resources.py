"""What a compiled kernel uses: registers, spills and stack from the assembler's log, constant banks from the cubin,
launch bounds and cluster shape from the PTX.
"""

from __future__ import annotations

import re
import struct

from tilewright.records import Dim3, Resources
from tilewright.toolchain.errors import ToolchainError

_PROPERTIES = re.compile(
    r"Function properties for (\S+)\s*\n[^\n]*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\s*\n[^\n]*?Used (\d+) registers([^\n]*)"
)
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_DIMENSIONS = r"\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?"


def read_resources(log: str, cubin: bytes) -> dict[str, Resources]:
    """The resources of every entry function the log speaks of, by symbol."""
    sections = _section_sizes(cubin)
    shared_constants = sections.get(".nv.constant3", 0)  # the module's __constant__ variables
    resources = {}
    for symbol, stack, stores, loads, registers, rest in _PROPERTIES.findall(log):
        barriers, shared = _BARRIERS.search(rest), _SHARED.search(rest)
        own = sum(
            size for name, size in sections.items() if re.fullmatch(rf"\.nv\.constant\d+\.{re.escape(symbol)}", name)
        )
        resources[symbol] = Resources(
            registers=int(registers),
            spill_store_bytes=int(stores),
            spill_load_bytes=int(loads),
            stack_bytes=int(stack),
            static_smem_bytes=int(shared[1]) if shared else 0,
            constant_bytes=own + shared_constants,
            barriers=int(barriers[1]) if barriers else 0,
        )
    return resources


def max_threads(declaration: str) -> int | None:
    """The block size an entry's launch bounds admit, from its PTX directives."""
    dimensions = _dimensions(declaration, "maxntid") or _dimensions(declaration, "reqntid")
    return dimensions[0] * dimensions[1] * dimensions[2] if dimensions else None


def cluster_shape(declaration: str) -> Dim3 | None:
    """The cluster an entry was compiled for, if any."""
    return _dimensions(declaration, "reqnctapercluster")


def _dimensions(declaration: str, directive: str) -> Dim3 | None:
    found = re.search(rf"\.{directive}{_DIMENSIONS}", declaration)
    if found is None:
        return None
    x, y, z = (int(number) if number else 1 for number in found.groups())
    return x, y, z


def _section_sizes(cubin: bytes) -> dict[str, int]:
    """Section name -> size of a 64-bit little-endian ELF file."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ToolchainError("the compiler's output is not a 64-bit ELF file; reinstall nvidia-cuda-nvrtc")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + entry_size * index) for index in range(count)]
    names_at = headers[names_index][4]
    sizes = {}
    for name_offset, _, _, _, _, size in headers:
        start = names_at + name_offset
        sizes[cubin[start : cubin.index(b"\0", start)].decode(errors="replace")] = size
    return sizes
