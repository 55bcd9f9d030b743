"""Findings in words: their kinds, the lines they belong to, the names people gave their variables."""

from __future__ import annotations

import re
import struct

import pytest
from tests.ptx.cuda_kernels import program_of
from tests.ptx.native_functions import CORE

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest
from tilewright.ptx.reporting import readable
from tilewright.records import KERNEL_FILE_NAME, FindingKind, FindingRecord, SourcePlace, from_json, to_json


def test_the_kinds_stand_in_the_order_of_the_core() -> None:
    """The core gives a kind as a number: its place in both lists."""
    listed = re.findall(r"TW_FIND_(\w+)", (CORE / "api.h").read_text().partition("TW_FIND_GLOBAL_BOUNDS = 0")[2])
    numbered = ["GLOBAL_BOUNDS", *listed[: listed.index("KINDS")]]
    names = [re.sub(r"^(\w+)_BOUNDS$", r"OUT_OF_BOUNDS_\1", name) for name in numbered]
    of_the_plan = {FindingKind.UNINITIALISED_REGISTER, FindingKind.OUTPUT_NOT_WRITTEN, FindingKind.COUNTER_LEFT}
    assert names == [kind.name for kind in FindingKind if kind not in of_the_plan]


INLINED = f"""#line 99 "/include/cute.hpp"
__device__ __forceinline__ void put(float* y, int at) {{ y[at] = 1.0f; }}
#line 16 "{KERNEL_FILE_NAME}"
extern "C" __global__ void k(float* y) {{
  put(y, 32 + threadIdx.x);
}}
"""


def test_a_finding_in_a_header_belongs_to_the_line_that_used_it() -> None:
    memory = GlobalMemory()
    y = memory.add("y", 128, element_bytes=4, shape=(32,))
    request = LaunchRequest(
        "k", (1, 1, 1), (32, 1, 1), 0, struct.pack("<Q", y), options=LaunchOptions(workers=1),
        shown_as="f<1>", launch_line=3,
    )  # fmt: skip
    result = program_of(INLINED).launch(memory, request)
    (record,) = result.findings
    assert (record.line, record.kernel, record.launch_line) == (17, "f<1>", 3)
    assert record.places == (SourcePlace("/include/cute.hpp", 99), SourcePlace(KERNEL_FILE_NAME, 17))
    kind = FindingKind.OUT_OF_BOUNDS_GLOBAL.value
    place = "0 bytes after the end of y: an access of 4 bytes"
    assert str(record) == f"f<1>, line 17, thread 0 of block 0: {kind}: {place} (32 times)"
    assert from_json(FindingRecord, to_json(record)) == record
    assert result.counts is not None
    assert (result.counts.kernel, result.counts.launch_line) == ("f<1>", 3)
    store = next(one for one in result.counts.instructions if one.ptx_text.startswith("st.global"))
    assert (store.places, store.executions, store.bytes) == (record.places, 1, 128)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZZ14layernorm_geluPKfS0_S0_PfiffE7partial", "partial"),
        ("_ZZ1fILi3EEvPfE4tile_0", "tile"),
        ("_ZN2ab4heldE", "held"),
        ("_ZZ1fvE", "_ZZ1fvE"),
    ],
)
def test_shared_variables_have_the_names_of_the_source(symbol: str, name: str) -> None:
    assert readable(f"byte 0 of {symbol} in shared memory") == f"byte 0 of {name} in shared memory"
