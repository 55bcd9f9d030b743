"""CUTLASS's CuTe tutorials as device programs: their text is taken from the nvidia-cutlass wheel when this runs.

Each tutorial is a kernel, host functions that choose layouts and launch it, and a `main`. Here the host functions run
on the device: the kernel becomes a device function, its launch a call, `main` is left out, and a kernel of ours calls
the function with the tutorial's own choices of layouts, copies and matrix instructions. A tutorial with tensor maps
gets maps, made by the caller, in the place of its two inputs.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

_INCLUDE = re.compile(r"^#include (?!<cute/).*$", re.MULTILINE)
_KERNEL = re.compile(r"__global__(\s+static)?(\s+__launch_bounds__\(decltype\(size\(\w+\{\}\)\)::value\))?")
_LAUNCH = re.compile(r"<<<.*?>>>", re.DOTALL)
_HOST_CALL = re.compile(r"\bcudaFunc\w+\(.*?\);", re.DOTALL)
_SETTING_UP = re.compile(
    r"CUTE_CHECK_ERROR\(.*?\)\);|CUTE_CHECK_LAST\(\);|cutlass::ClusterLaunchParams params =.*?;|if \(status != .*?\}",
    re.DOTALL,
)
_POINTER = re.compile(r"void const\* kernel_ptr = reinterpret_cast<void const\*>\((.*?)\);", re.DOTALL)
_CLUSTER_LAUNCH = re.compile(r"cutlass::Status status = .*?kernel_ptr,")
_MAP_BY_VALUE = re.compile(r"CUTLASS_GRID_CONSTANT (\w+) const (\w+)")
_MAP_MADE = re.compile(r"Copy_Atom tma([AB]) = (make_tma_atom\(.*?\));")
_MAP_GIVEN = r"auto const& tma\1 = *reinterpret_cast<decltype(\2) const*>(\1);"
_HOST_NAMES = """
#undef assert
#define assert(condition)
struct alignas(64) Map { char bytes[128]; };
"""

_GEMM = """
extern "C" __global__ void __launch_bounds__(THREADS)
    NAME(const TA* a, const TB* b, TC* c, int m, int n, int k, int lda, int ldb, int ldc) {
  FUNCTION(m, n, k, TC(1.0f), a, lda, b, ldb, TC(0.0f), c, ldc);
}
"""
_GEMM_OF_MAPS = """
extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ Map a, const __grid_constant__ Map b,
    TC* c, int m, int n, int k, int lda, int ldb, int ldc) {
  FUNCTION(m, n, k, TC(1.0f), (const TA*)&a, lda, (const TB*)&b, ldb, TC(0.0f), c, ldc);
}
"""
_COPY = """
extern "C" __global__ void NAME(const float* s, float* d, int m, int n) {
  using namespace cute;
  auto source = make_tensor(make_gmem_ptr(s), make_layout(make_shape(m, n)));
  auto target = make_tensor(make_gmem_ptr(d), make_layout(make_shape(m, n)));
  auto block = make_shape(Int<128>{}, Int<64>{});
  auto threads = make_layout(make_shape(Int<32>{}, Int<8>{}));
  auto values = make_layout(make_shape(Int<4>{}, Int<1>{}));
  auto wide = make_tiled_copy(Copy_Atom<UniversalCopy<uint_byte_t<16>>, float>{}, threads, values);
  CALL;
}
"""


@dataclass(frozen=True)
class Gemm:
    """A product C = A B^T of column-major C. `transposed`: A and B are row-major (TN), else column-major (NT)."""

    name: str
    tutorial: str
    transposed: bool
    half: bool
    threads: int
    dynamic_smem_bytes: int
    maps: bool = False  # of A and B
    cluster: int = 1


@dataclass(frozen=True)
class Copy:
    """A copy of a column-major matrix of floats, in tiles of 128 x 64."""

    name: str
    tutorial: str
    call: str
    any_size: bool


GEMMS = (
    Gemm("sgemm_1_nt", "sgemm_1", False, False, 256, 0),
    Gemm("sgemm_1_tn", "sgemm_1", True, False, 256, 0),
    Gemm("sgemm_2_nt", "sgemm_2", False, False, 256, 0),
    Gemm("sgemm_2_tn", "sgemm_2", True, False, 256, 0),
    Gemm("sgemm_sm70_nt", "sgemm_sm70", False, False, 256, 0),
    Gemm("sgemm_sm70_tn", "sgemm_sm70", True, False, 256, 0),
    Gemm("sgemm_sm80_nt", "sgemm_sm80", False, False, 256, 3 * 2 * 128 * 8 * 4),
    Gemm("sgemm_sm80_tn", "sgemm_sm80", True, False, 256, 3 * 2 * 129 * 8 * 4),
    Gemm("hgemm_sm80_tn", "sgemm_sm80", True, True, 128, 3 * 2 * 128 * 64 * 2),
    Gemm("wgmma_sm90_nt", "hopper/wgmma_sm90", False, True, 128, 3 * 2 * 128 * 64 * 2),
    Gemm("wgmma_sm90_tn", "hopper/wgmma_sm90", True, True, 128, 3 * 2 * 128 * 64 * 2),
    Gemm("wgmma_tma_sm90_nt", "hopper/wgmma_tma_sm90", False, True, 128, 3 * 2 * 128 * 64 * 2 + 128, True, 2),
    Gemm("wgmma_tma_sm90_tn", "hopper/wgmma_tma_sm90", True, True, 128, 3 * 2 * 128 * 64 * 2 + 128, True, 2),
)
COPIES = (
    Copy(
        "tiled_copy",
        "tiled_copy",
        "copy_kernel(tiled_divide(source, block), tiled_divide(target, block), threads)",
        False,
    ),
    Copy(
        "tiled_copy_vectorized",
        "tiled_copy",
        "copy_kernel_vectorized(tiled_divide(source, block), tiled_divide(target, block), wide)",
        False,
    ),
    Copy("tiled_copy_if", "tiled_copy_if", "copy_if_kernel(source, target, block, threads)", True),
    Copy("tiled_copy_if_vectorized", "tiled_copy_if", "copy_if_kernel_vectorized(source, target, block, wide)", True),
)
TUTORIALS = (
    "sgemm_1",
    "sgemm_2",
    "sgemm_sm70",
    "sgemm_sm80",
    "tiled_copy",
    "tiled_copy_if",
    "hopper/wgmma_sm90",
    "hopper/wgmma_tma_sm90",
)


def tutorial_folder() -> Path | None:
    """Where the wheel keeps the tutorials, or None where it is not installed."""
    spec = importlib.util.find_spec("cutlass_library")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "source/examples/cute/tutorial"
    return folder if folder.is_dir() else None


def programs_of(tutorial: str) -> list[Gemm | Copy]:
    return [program for program in (*GEMMS, *COPIES) if program.tutorial == tutorial]


def device_source(folder: Path, tutorial: str) -> str:
    """The tutorial as device code, with a kernel for each of our programs."""
    text = (folder / f"{tutorial}.cu").read_text()
    text = text[: text.index("int main(")]
    text = _INCLUDE.sub("", text)
    text = _KERNEL.sub("__device__", text)
    text = _CLUSTER_LAUNCH.sub("kernel_ptr(", _POINTER.sub(r"auto* kernel_ptr = \1;", _SETTING_UP.sub("", text)))
    text = _MAP_MADE.sub(_MAP_GIVEN, _MAP_BY_VALUE.sub(r"\1 const& \2", text))
    text = _HOST_CALL.sub("", _LAUNCH.sub("", text))
    head = "#include <cute/tensor.hpp>\n" + _HOST_NAMES
    if tutorial.startswith("hopper/"):
        head = "#include <cutlass/pipeline/sm90_pipeline.hpp>\n" + head
    return head + text + "".join(_wrapper(program) for program in programs_of(tutorial))


def _wrapper(program: Gemm | Copy) -> str:
    if isinstance(program, Copy):
        return _COPY.replace("NAME", program.name).replace("CALL", program.call)
    element = "cute::half_t" if program.half else "float"
    wrapper = (
        (_GEMM_OF_MAPS if program.maps else _GEMM)
        .replace("NAME", program.name)
        .replace("THREADS", str(program.threads))
    )
    wrapper = wrapper.replace("FUNCTION", "gemm_tn" if program.transposed else "gemm_nt")
    return re.sub(r"\bT[ABC]\b", element, wrapper)
