"""`build` and `build_many`: cache, isolation, names, keys. `build_plan`: from a file to what a device runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.kernel_file import DoesNotApply, KernelFileError, evaluate, parse
from tilewright.records import (
    PROFILES,
    Build,
    BuildFailure,
    BuildRequest,
    Emulation,
    FailureReason,
    LibraryCall,
    Limits,
    PackedLaunch,
    TensorSpec,
)
from tilewright.toolchain import (
    BuildCache,
    BuiltPlan,
    CompilePool,
    ToolchainError,
    bind_plan,
    build,
    build_key,
    build_many,
    build_plan,
    find_toolkit,
)

REQUEST = BuildRequest(
    "template <int N> __global__ void k(float* x) {\n  int unused;\n  x[N] = N;\n}\n",
    (("C", 1),),
    ("k<3>",),
    "sm_80",
    "a.cu",
)


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path)


def test_isolated_and_in_process_builds_are_the_same(cache: BuildCache) -> None:
    here = build(REQUEST, isolated=False, cache=None)
    there = build(REQUEST, isolated=True, cache=None)
    assert isinstance(here, Build)
    assert isinstance(there, Build)
    assert replace(here, seconds=0) == replace(there, seconds=0)


def test_the_second_build_comes_from_the_cache_and_asks_no_compiler(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(REQUEST, isolated=False, cache=cache)
    monkeypatch.setattr(CompilePool, "run", lambda *_: pytest.fail("compiled again"))
    assert build(REQUEST, cache=cache) == first


def test_a_cached_build_is_called_by_the_name_asked_for(cache: BuildCache) -> None:
    first = build(REQUEST, isolated=False, cache=cache)
    again = build(replace(REQUEST, name="b.cu"), isolated=False, cache=cache)
    assert isinstance(first, Build)
    assert isinstance(again, Build)
    assert (first.warnings[0].file, again.warnings[0].file) == ("a.cu", "b.cu")
    assert first.key == again.key


def test_a_rejected_source_is_cached_too(cache: BuildCache) -> None:
    bad = replace(REQUEST, source="__global__ void k() { oops; }", kernels=("k",))
    first = build(bad, isolated=False, cache=cache)
    assert isinstance(first, BuildFailure)
    assert first.reason is FailureReason.DIAGNOSTICS
    assert build(bad, cache=cache) == first


def test_a_damaged_entry_is_built_again(cache: BuildCache) -> None:
    first = build(REQUEST, isolated=False, cache=cache)
    (cache.directory / f"{first.key}.build").write_bytes(b"damaged")
    again = build(REQUEST, isolated=False, cache=cache)
    assert isinstance(again, Build)
    assert isinstance(first, Build)
    assert again.cubin == first.cubin


def test_everything_that_matters_is_in_the_key() -> None:
    toolkit = find_toolkit()
    key = build_key(REQUEST, toolkit)
    others = [
        replace(REQUEST, source=REQUEST.source + " "),
        replace(REQUEST, constants=(("C", 2),)),
        replace(REQUEST, constants=(("C", True),)),
        replace(REQUEST, kernels=("k<4>",)),
        replace(REQUEST, arch="sm_86"),
    ]
    keys = {build_key(other, toolkit) for other in others}
    keys.add(build_key(REQUEST, replace(toolkit, compiler="NVRTC 99.0")))
    keys.add(build_key(REQUEST, replace(toolkit, cutlass="99")))
    assert len(keys) == 7
    assert key not in keys
    assert build_key(replace(REQUEST, name="b.cu"), toolkit) == key


def test_many_requests_keep_their_order(cache: BuildCache) -> None:
    requests = [replace(REQUEST, kernels=(f"k<{n}>",)) for n in range(6)]
    results = build_many(requests, cache=cache)
    assert [r.kernels[0].expression for r in results if isinstance(r, Build)] == [f"k<{n}>" for n in range(6)]
    assert build_many([], cache=cache) == ()


def test_an_unknown_target_is_the_callers_mistake() -> None:
    with pytest.raises(ToolchainError, match="known: sm_75"):
        build(replace(REQUEST, arch="sm_42"))


def test_importing_the_toolchain_is_light() -> None:
    script = "import sys, tilewright.toolchain; print([m for m in ('torch', 'numpy', 'cuda') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CUTE = """#include <cute/tensor.hpp>
using namespace cute;
template <class T>
__global__ void __launch_bounds__(128) k(const T* a, const T* b, float* c, const __grid_constant__ CUtensorMap map) {
  __shared__ __align__(128) T s[64 * 64];
  auto layout = make_layout(Shape<_64, _64>{}, LayoutRight{});
  auto in = make_tensor(make_gmem_ptr(a), layout);
  auto staged = make_tensor(make_smem_ptr(s), layout);
  auto out = make_tensor(make_gmem_ptr(c), layout);
  for (int i = threadIdx.x; i < 64 * 64; i += 128) staged(i) = in(i);
  __syncthreads();
  for (int i = threadIdx.x; i < 64 * 64; i += 128) out(i) = float(staged(4095 - i)) + float(b[i]);
  if (c == nullptr) SM90_TMA_LOAD_2D::copy(&map, nullptr, 0, s, 0, 0);
}
"""


@pytest.mark.slow
def test_a_cute_kernel() -> None:
    result = build(BuildRequest(CUTE, (), ("k<half_t>", "k<bfloat16_t>"), "sm_90a"), cache=None)
    assert isinstance(result, Build), result
    half, brain = result.kernels
    assert [p.kind.value for p in half.parameters] == ["const pointer", "const pointer", "pointer", "CUtensorMap"]
    assert [k.parameters[0].pointee.value for k in (half, brain)] == ["f16", "bf16"]
    assert half.resources.static_smem_bytes >= 8192


# -- from a kernel file to what a device runs --

H200 = PROFILES["H200"]
SCALED = """\
//! op      scaled(x, factor: float) -> y
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  scaled<<<ceil_div(n, 128), 128>>>(x, y, n, factor)
__global__ void scaled(const float* x, float* y, long long n, float factor) {
  long long i = blockIdx.x * 128ll + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}
"""
PRODUCT = """\
//! op      product(x, w) -> y
//! out     y: x.dtype[x.shape[0], w.shape[1]]
//! library y = aten.mm(x, w)
"""


def scaled(text: str = SCALED, x: str = "1000:f32", factor: float = 2.5) -> BuiltPlan | BuildFailure:
    return build_plan(parse(text), {"x": TensorSpec.parse(x), "factor": factor}, H200, isolated=False)


def test_a_plan_stands_on_its_own_with_the_numbers_of_its_call() -> None:
    one, other = scaled(), scaled(factor=3.5)
    assert isinstance(one, BuiltPlan)
    assert isinstance(other, BuiltPlan)
    assert one.build is not None
    assert other.build is not None
    assert replace(one.build, seconds=0) == replace(other.build, seconds=0)  # though no cache can be kept
    (launch,), (differing,) = one.plan.steps, other.plan.steps
    assert isinstance(launch, PackedLaunch)
    assert isinstance(differing, PackedLaunch)
    assert (launch.kernel, launch.grid, launch.late) == ("scaled", (8, 1, 1), ())
    assert launch.block_template != differing.block_template
    (left_open,) = bind_plan(one.evaluation, one.build).steps
    assert isinstance(left_open, PackedLaunch)
    assert len(left_open.late) == 1


def test_a_job_carries_what_its_device_runs() -> None:
    built = scaled()
    assert isinstance(built, BuiltPlan)
    assert built.build is not None
    on_gpu = built.job("a", (), returns=("y",), limits=Limits(seconds=3.0))
    assert (on_gpu.arch, on_gpu.cubin, on_gpu.ptx) == ("sm_90a", built.build.cubin, built.build.ptx)
    assert (on_gpu.returns, on_gpu.limits.seconds) == (("y",), 3.0)
    emulated = built.job("b", (), limits=Limits(), emulation=Emulation(schedules=2))
    assert (emulated.cubin, emulated.ptx, emulated.emulation.schedules) == (b"", built.build.ptx, 2)


def test_a_file_that_launches_nothing_is_a_plan_without_a_build() -> None:
    shapes = {"x": TensorSpec.parse("3x4:f32"), "w": TensorSpec.parse("4x5:f32")}
    assert evaluate(parse(PRODUCT), shapes, H200).build_request() is None
    built = build_plan(parse(PRODUCT), shapes, H200)
    assert isinstance(built, BuiltPlan)
    assert built.build is None
    (step,) = built.plan.steps
    assert isinstance(step, LibraryCall)
    assert (step.function, [buffer.name for buffer in built.plan.buffers]) == ("aten.mm", ["y"])
    job = built.job("library", (), limits=Limits())
    assert (job.cubin, job.ptx) == (b"", None)
    empty = scaled(x="0:f32")
    assert isinstance(empty, BuiltPlan)
    assert (empty.build, empty.plan.steps) == (None, ())


def test_what_a_plan_is_refused_for() -> None:
    failure = scaled(SCALED.replace("factor * x[i]", "factor * z[i]"))
    assert isinstance(failure, BuildFailure)
    assert failure.reason is FailureReason.DIAGNOSTICS
    with pytest.raises(DoesNotApply, match="f32"):
        scaled(x="1000:f16")
    with pytest.raises(KernelFileError, match="scaled takes 3 arguments, 4 are passed"):
        scaled(SCALED.replace(", float factor)", ")").replace("factor * x", "2 * x"))
