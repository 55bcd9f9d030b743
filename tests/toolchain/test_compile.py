"""Resource use, launch bounds and cluster shape of compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tilewright.records import ARCHITECTURES, Build, BuildRequest
from tilewright.toolchain import build
from tilewright.toolchain.compile import cluster_shape, max_threads, read_resources
from tilewright.toolchain.nvrtc import Compilation, Nvrtc, ToolchainError

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


def test_what_the_compiler_itself_keeps_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a driver NVRTC keeps what it made, with an empty log, and the resources are read from the log."""
    asked: list[Sequence[str]] = []
    compile = Nvrtc.compile

    def spied(self: Nvrtc, source: str, name: str, options: Sequence[str], kernels: Sequence[str]) -> Compilation:
        asked.append(options)
        return compile(self, source, name, options, kernels)

    monkeypatch.setattr(Nvrtc, "compile", spied)
    request = BuildRequest("__global__ void f(float* x) { x[threadIdx.x] *= 3; }\n", (), ("f",), "sm_90a", "k.cu")
    builds = [build(request, isolated=False, cache=None) for _ in range(2)]
    assert all(isinstance(one, Build) and one.kernels[0].resources.registers for one in builds)
    assert all("--no-cache" in options for options in asked)
    assert len(asked) == 2
