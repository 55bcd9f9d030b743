"""Limits of the hardware and the specification, checked before launches, and checks of tensor layouts.

A layout problem is no error: another file may take the tensor. Only `compiled_problems` needs a build.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from tilewright import records
from tilewright.kernel_file.expression_values import show_value
from tilewright.kernel_file.problems import Code, Problem
from tilewright.kernel_file.syntax import Accept, Parameter, Span
from tilewright.records import CompiledKernel, Dim3, DType, GpuProfile, Launch, TensorSpec

MAX_GRID: Dim3 = (2**31 - 1, 65535, 65535)
MAX_BLOCK: Dim3 = (1024, 1024, 64)
MAX_BLOCK_THREADS = 1024
MAX_SCRATCH_BYTES = 32 << 30
MAX_COUNTER_BYTES = 64 << 10
MAX_ARGUMENT_BYTES = 4096
TENSOR_ALIGNMENT = 16
INTEGERS = (DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)


def _limit(place: Span, found: str, remedy: str = "add a `need`") -> Problem:
    return Problem.at(place, Code.LIMIT, found, remedy)


def grid_problem(grid: Dim3, place: Span) -> Problem | None:
    for axis, size, limit in zip("xyz", grid, MAX_GRID, strict=True):
        if size > limit:
            remedy = "add a `need`, or loop over blocks inside the kernel"
            return _limit(place, f"grid {_show(grid)}: {axis} is {size}, the limit is {limit}", remedy)
    return None


def block_problem(block: Dim3, place: Span) -> Problem | None:
    for axis, size, limit in zip("xyz", block, MAX_BLOCK, strict=True):
        if not 1 <= size <= limit:
            return _limit(place, f"block {_show(block)}: {axis} is {size}, it must be 1 to {limit}")
    threads = math.prod(block)
    if threads > MAX_BLOCK_THREADS:
        return _limit(place, f"block {_show(block)} has {threads} threads, the limit is {MAX_BLOCK_THREADS}")
    return None


def smem_problem(dynamic_bytes: int, gpu: GpuProfile, place: Span) -> Problem | None:
    if 0 <= dynamic_bytes <= gpu.smem_block:
        return None
    found = f"{dynamic_bytes} bytes of dynamic shared memory, the limit on {gpu.name} is {gpu.smem_block}"
    return _limit(place, found, "add a `need ... <= device.smem_block`")


def cluster_problem(cluster: Dim3, grid: Dim3, gpu: GpuProfile, place: Span) -> Problem | None:
    blocks = math.prod(cluster)
    if min(cluster) < 1:
        return _limit(place, f"cluster {_show(cluster)}: every size must be at least 1")
    if gpu.max_cluster == 1 and blocks > 1:
        return _limit(place, f"a cluster, and {gpu.name} has none", "add `need device.cc >= 90`")
    if blocks > gpu.max_cluster:
        found = f"cluster {_show(cluster)} has {blocks} blocks, the limit on {gpu.name} is {gpu.max_cluster}"
        return _limit(place, found)
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        found = f"cluster {_show(cluster)} does not divide grid {_show(grid)}"
        return _limit(place, found, "use round_up on the grid, or add a `need`")
    return None


def buffer_problems(buffers: Iterable[records.Buffer], places: dict[str, Span]) -> tuple[Problem, ...]:
    """Limits of total scratch and of counters."""
    problems = []
    scratch_bytes = 0
    for buffer in buffers:
        place = places[buffer.name]
        if buffer.clearing is records.Clearing.COUNTER:
            if buffer.spec.dtype not in INTEGERS:
                found = f"counter {buffer.name} is {buffer.spec.dtype}"
                problems.append(_limit(place, found, "counters are integers, such as i32"))
            if buffer.spec.storage_bytes > MAX_COUNTER_BYTES:
                found = f"counter {buffer.name} has {buffer.spec.storage_bytes} bytes, the limit is {MAX_COUNTER_BYTES}"
                problems.append(_limit(place, found, "add a `need`, or use `zeroed` scratch"))
        if buffer.role is records.BufferRole.SCRATCH:
            before, scratch_bytes = scratch_bytes, scratch_bytes + buffer.spec.storage_bytes
            if before <= MAX_SCRATCH_BYTES < scratch_bytes:
                found = f"{buffer.name}: {buffer.spec} brings scratch to {scratch_bytes} bytes"
                problems.append(_limit(place, f"{found}, the limit is {MAX_SCRATCH_BYTES} (32 GiB)"))
    return tuple(problems)


def compiled_problems(launch: Launch, kernel: CompiledKernel, gpu: GpuProfile) -> tuple[Problem, ...]:
    """Check a launch against its compiled kernel: threads, shared memory, cluster, occupancy."""
    place = Span(launch.line, launch.column)
    threads = math.prod(launch.block)
    smem_bytes = kernel.resources.static_smem_bytes + launch.dynamic_smem_bytes
    problems = []
    if kernel.max_threads is not None and threads > kernel.max_threads:
        found = f"{threads} threads, __launch_bounds__ of {launch.kernel} allows {kernel.max_threads}"
        problems.append(_limit(place, found, "add a `need`, or raise __launch_bounds__"))
    if smem_bytes > gpu.smem_block:
        found = (
            f"{kernel.resources.static_smem_bytes} static + {launch.dynamic_smem_bytes} dynamic bytes of shared memory "
            f"are {smem_bytes}, the limit on {gpu.name} is {gpu.smem_block}"
        )
        problems.append(_limit(place, found))
    if kernel.cluster is not None and kernel.cluster != (launch.cluster or (1, 1, 1)):
        given = "no cluster" if launch.cluster is None else f"cluster {_show(launch.cluster)}"
        found = f"{given}, __cluster_dims__ of {launch.kernel} is {_show(kernel.cluster)}"
        problems.append(_limit(place, found, f"write cluster({', '.join(map(str, kernel.cluster))})"))
    if problems:
        return tuple(problems)
    problem = _residency_problem(launch, kernel, gpu, place)
    return () if problem is None else (problem,)


def _residency_problem(launch: Launch, kernel: CompiledKernel, gpu: GpuProfile, place: Span) -> Problem | None:
    """Check occupancy: one block per multiprocessor, or co-residency of a cooperative grid."""
    threads = math.prod(launch.block)
    registers = kernel.resources.registers
    smem_bytes = kernel.resources.static_smem_bytes + launch.dynamic_smem_bytes
    fit = records.occupancy(gpu, registers, threads, smem_bytes, kernel.resources.barriers)
    if fit.blocks_per_sm < 1:
        found = (
            f"a block of {threads} threads with {registers} registers each and {smem_bytes} bytes of shared memory "
            f"does not fit a multiprocessor of {gpu.name}"
        )
        return _limit(place, found, "use fewer threads, or state __launch_bounds__ so that fewer registers are used")
    blocks, resident = math.prod(launch.grid), fit.blocks_per_sm * gpu.sms
    if launch.cooperative and blocks > resident:
        found = (
            f"a cooperative grid of {blocks} blocks, {resident} are co-resident on {gpu.name} "
            f"({fit.blocks_per_sm} on each of {gpu.sms} multiprocessors, limited by {fit.limiter.value})"
        )
        return _limit(place, found, "launch device.sms * PER_SM blocks with __launch_bounds__(T, PER_SM)")
    return None


def argument_block_problem(launch: Launch, block_bytes: int) -> Problem | None:
    if block_bytes <= MAX_ARGUMENT_BYTES:
        return None
    found = f"the arguments of {launch.kernel} take {block_bytes} bytes, the limit is {MAX_ARGUMENT_BYTES}"
    return _limit(Span(launch.line, launch.column), found, "pass fewer")


def _show(dim: Dim3) -> str:
    return f"({', '.join(map(str, dim))})"


# -- layout --


def layout_problem(parameter: Parameter, spec: TensorSpec, accepts: Mapping[str, Accept]) -> Problem | None:
    """Why the file does not take a tensor with this layout; None where it does."""
    accept = accepts.get(parameter.name)
    strided = accept is not None and accept.strided
    unaligned = accept is not None and accept.unaligned
    at = accept.at if accept is not None else parameter.at
    name = parameter.name

    def refused(found: str, remedy: str) -> Problem:
        return Problem.at(at, Code.DOES_NOT_APPLY, found, remedy)

    if not strided and not spec.is_contiguous:
        found = f"{name}: {spec} has strides {show_value(spec.stride)}, which is not contiguous"
        return refused(found, f"pass {name}.contiguous()")
    if strided and parameter.in_place and overlaps_itself(spec):
        found = f"{name}: {spec} has strides {show_value(spec.stride)}, so that elements share memory"
        return refused(found, f"{name} is changed in place; pass a tensor of its own memory")
    if spec.numel == 0:
        return None
    wanted = spec.dtype.itemsize if unaligned else max(TENSOR_ALIGNMENT, spec.dtype.itemsize)
    if spec.alignment % wanted:
        found = f"{name} starts at an address aligned to {spec.alignment} bytes, not to {wanted}"
        return refused(found, f"pass {name}.clone()")
    return None


def overlaps_itself(spec: TensorSpec) -> bool:
    """Whether elements may share an address (a stride smaller than the extent inside it)."""
    if 0 in spec.shape:
        return False
    reach = 0
    dimensions = [(s, n) for n, s in zip(spec.shape, spec.stride, strict=True) if n > 1]
    for step, size in sorted(dimensions):
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False


def is_dense(spec: TensorSpec) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in any dimension order."""
    if any(step < 0 for step in spec.stride):
        return False
    return 0 in spec.shape or (not overlaps_itself(spec) and spec.extent == spec.numel)
