"""Machine code listings and highlights, by the real disassembler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tilewright.records import Build, BuildRequest
from tilewright.toolchain import ToolchainError, build, disassemble, highlights, sass_text

SOURCE = """\
template <int N>
__global__ void k(const float4* x, float4* y) {
  __shared__ float s[256];
  float4 v = x[threadIdx.x];
  s[threadIdx.x] = v.x + v.y + v.z + v.w;
  __syncthreads();
  float t = __shfl_xor_sync(~0u, s[255 - threadIdx.x], N);
  y[threadIdx.x] = make_float4(t, exp2f(t), t * v.x + v.y, v.w);
}
__global__ void count(int* x) { atomicAdd(x, 1); }
"""


@pytest.fixture(scope="module")
def built() -> Build:
    result = build(BuildRequest(SOURCE, (), ("k<1>", "count"), "sm_90a"), isolated=False, cache=None)
    assert isinstance(result, Build)
    return result


def test_listings_have_the_files_lines(built: Build) -> None:
    k, count = disassemble(built)
    assert (k.kernel, count.kernel) == ("k<1>", "count")
    opcodes = {instruction.opcode: instruction.line for instruction in k.instructions}
    assert opcodes["LDG.E.128.CONSTANT" if "LDG.E.128.CONSTANT" in opcodes else "LDG.E.128"] == 4
    assert opcodes["STG.E.128"] == 8
    assert k.instructions[0].address == 0
    assert k.instructions[-1].opcode == "BRA"


def test_highlights_count_telling_instructions(built: Build) -> None:
    found = highlights(built)
    assert found["k<1>"].items() >= {"LDG": 1, "LDG.128": 1, "STG.128": 1, "SHFL": 1, "BAR": 1, "MUFU": 1}.items()
    assert found["count"] == {"RED": 1}


def test_text_for_people(built: Build) -> None:
    text = sass_text(built)
    assert text.startswith("k<1>  (_Z1k")
    assert "line 8" in text


def test_a_broken_cubin_is_an_error_of_ours(built: Build) -> None:
    with pytest.raises(ToolchainError, match="nvdisasm failed"):
        disassemble(dataclasses.replace(built, cubin=b"junk"))


def test_tensor_core_instructions(compiled: Callable[..., Build]) -> None:
    tensor_core = compiled(
        """__global__ void k(const unsigned* a, float* c) {
          asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]));
        }""",
        arch="sm_80",
    )
    assert highlights(tensor_core)["k"]["HMMA"] == 1
