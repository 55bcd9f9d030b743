"""Resource use, launch bounds and cluster shape of compiled kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.records import ARCHITECTURES, Build
from tilewright.toolchain.compile import cluster_shape, max_threads, read_resources
from tilewright.toolchain.errors import ToolchainError

Compiled = Callable[..., Build]

SPILLING = """
__global__ void __launch_bounds__(1024, 2) k(const float* x, float* y, int n) {
  float v[80];
  #pragma unroll
  for (int i = 0; i < 80; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 80; ++i) y[i * 1024 + threadIdx.x] = v[79 - i] * v[i] + v[(i * 7) % 80];
}
"""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_shared_memory_barriers_and_bounds_on_every_target(compiled: Compiled, arch: str) -> None:
    build = compiled(
        """__global__ void __launch_bounds__(256) k(const float* x, float* y) {
          __shared__ float s[256];
          s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); y[threadIdx.x] = s[255 - threadIdx.x];
        }""",
        arch=arch,
    )
    (kernel,) = build.kernels
    assert build.arch == arch
    assert f".target {arch}" in build.ptx
    assert build.cubin[:4] == b"\x7fELF"
    assert kernel.resources.static_smem_bytes >= 1024  # newer targets add a reserve of their own
    assert kernel.resources.static_smem_bytes <= 2048
    assert kernel.resources.barriers == 1
    assert 4 <= kernel.resources.registers <= 40
    assert kernel.resources.spill_store_bytes == kernel.resources.spill_load_bytes == kernel.resources.stack_bytes == 0
    assert kernel.max_threads == 256
    assert kernel.cluster is None


def test_spills_are_counted(compiled: Compiled) -> None:
    resources = compiled(SPILLING, arch="sm_80").kernels[0].resources
    assert resources.registers == 32
    assert resources.spill_store_bytes > 0
    assert resources.spill_load_bytes > 0
    assert resources.stack_bytes > 0


def test_constant_memory_is_counted(compiled: Compiled) -> None:
    without = compiled("__global__ void k(float* y, int n) { y[0] = n; }").kernels[0]
    with_table = compiled(
        "__constant__ float t[100] = {1};\n__global__ void k(float* y, int n) { y[0] = t[n]; }"
    ).kernels[0]
    assert with_table.resources.constant_bytes - without.resources.constant_bytes >= 400
    assert without.max_threads is None


def test_cluster_shape_of_a_kernel(compiled: Compiled) -> None:
    build = compiled("__global__ void __cluster_dims__(2, 4) __launch_bounds__(64) k(float* y) { y[0] = 1; }")
    assert build.kernels[0].cluster == (2, 4, 1)
    assert build.kernels[0].max_threads == 64


def test_directives_in_all_their_spellings() -> None:
    assert max_threads(".entry k()\n.maxntid 128, 2, 1\n.minnctapersm 2") == 256
    assert max_threads(".entry k()\n.reqntid 96") == 96
    assert max_threads(".entry k()") is None
    assert cluster_shape(".entry k()\n.explicitcluster\n.reqnctapercluster 2, 1, 1") == (2, 1, 1)


def test_output_that_is_no_cubin_is_our_fault() -> None:
    with pytest.raises(ToolchainError, match="ELF"):
        read_resources("", b"not a cubin")
