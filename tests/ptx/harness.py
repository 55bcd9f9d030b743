"""Runs a kernel file in the emulator, straight on its memory and program: results, findings and counts of one call.

Evaluates, builds and binds the plan as any device does; adds nothing to what the emulator reports. Library steps are
run by torch.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilewright.devices.cuda.library_steps import LibraryStep
from tilewright.devices.cuda.torch_dtypes import DTYPE_OF_TORCH, TORCH_DTYPE
from tilewright.kernel_file import DoesNotApply, Evaluation, KernelFile, bind, evaluate, settle
from tilewright.ptx.launching import LaunchOptions, LaunchRequest
from tilewright.ptx.memory import Memory
from tilewright.ptx.program import Program, load_program
from tilewright.ptx.results import Ending, Finding, LaunchResult
from tilewright.ptx.syntax import Place
from tilewright.records import (
    KERNEL_FILE_NAME,
    PROFILES,
    BoundPlan,
    Buffer,
    BufferRole,
    Build,
    BuildRequest,
    Clearing,
    GpuProfile,
    LibraryCall,
    PackedLaunch,
    TensorSpec,
)
from tilewright.toolchain import build

A100 = PROFILES["A100"]


@dataclass(frozen=True)
class Outcome:
    """What one call gave."""

    results: tuple[torch.Tensor, ...]  # the op's outputs, then the tensors changed in place
    launches: tuple[LaunchResult, ...]
    counters_left: tuple[str, ...]  # `counter` scratch that is not zero at the end
    unwritten: tuple[str, ...]  # outputs with an element that nothing wrote

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for launch in self.launches for finding in launch.findings)

    @property
    def completed(self) -> bool:
        return all(launch.ending is Ending.COMPLETED for launch in self.launches)


@dataclass(frozen=True)
class Prepared:
    """A call ready to be run under any options: its plan, its program, its arguments."""

    evaluation: Evaluation
    plan: BoundPlan
    program: Program | None  # None where the plan launches nothing
    arguments: Mapping[str, Any]

    def run(self, options: LaunchOptions) -> Outcome:
        return _run(self, options)


def prepare(
    file: KernelFile, arguments: Sequence[Any], gpu: GpuProfile = A100, choice: Mapping[str, int | bool] | None = None
) -> Prepared:
    """The file at these arguments (CPU tensors and numbers, by position); raises `DoesNotApply`."""
    names = [parameter.name for parameter in file.plan.op.parameters]
    given = dict(zip(names, arguments, strict=False))
    described = {name: _spec(value) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    evaluation = evaluate(file, described, gpu, choice)
    request = evaluation.build_request(gpu.arch)
    if not request.kernels:
        return Prepared(evaluation, BoundPlan(evaluation.buffers, evaluation.maps, evaluation.steps), None, given)  # type: ignore[arg-type]
    made = _build(request)
    scalars = {name: value for name, value in described.items() if not isinstance(value, TensorSpec)}
    plan = settle(bind(evaluation, made, gpu), evaluation.late_values(scalars))
    return Prepared(evaluation, plan, _program(made.ptx), given)


def prepare_first(files: Sequence[KernelFile], arguments: Sequence[Any], gpu: GpuProfile = A100) -> Prepared:
    """The first file that takes the call."""
    for file in files:
        try:
            return prepare(file, arguments, gpu)
        except DoesNotApply as refusal:
            last = refusal
    raise last


def run(file: KernelFile, arguments: Sequence[Any], options: LaunchOptions, gpu: GpuProfile = A100) -> Outcome:
    return prepare(file, arguments, gpu).run(options)


def kernel_file_line(place: Place | None) -> int | None:
    """The innermost line of the kernel file that an instruction comes from."""
    while place is not None:
        if place.file == KERNEL_FILE_NAME:
            return place.line
        place = place.inlined_at
    return None


def shown(findings: Sequence[Finding]) -> str:
    """Findings as lines of text, for messages."""
    return "\n".join(
        f"line {kernel_file_line(f.place)} (other {kernel_file_line(f.other_place)}): {f.kind.value}: {f.where}; "
        f"{f.detail} x{f.count} [{f.ptx_line}: {f.ptx_text}]"
        for f in findings
    )


def _spec(tensor: torch.Tensor) -> TensorSpec:
    """What a plan may know of a tensor; the emulator aligns every one of them."""
    return TensorSpec(DTYPE_OF_TORCH[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride()))


@functools.lru_cache(maxsize=128)
def _build(request: BuildRequest) -> Build:
    made = build(request, isolated=False)
    assert isinstance(made, Build), str(made)
    return made


@functools.lru_cache(maxsize=128)
def _program(ptx: str) -> Program:
    return load_program(ptx)


# -- one run --


def _run(call: Prepared, options: LaunchOptions) -> Outcome:
    memory, addresses = _memory(call)
    library: dict[str, torch.Tensor] = {}
    launches: list[LaunchResult] = []
    for step in call.plan.steps:
        if isinstance(step, LibraryCall):
            _library_step(call, step, memory, library)
            continue
        assert call.program is not None
        launches.append(call.program.launch(memory, _request(step, addresses, options)))
        if launches[-1].ending is not Ending.COMPLETED:
            break
    buffers = call.plan.buffers
    outs = {buffer.name: buffer for buffer in buffers if buffer.role is BufferRole.OUT}
    changed = [p.name for p in call.evaluation.file.plan.op.parameters if p.in_place]
    specs = dict(call.evaluation.tensors)
    results = [_tensor(memory, buffer.name, buffer.spec) for buffer in outs.values()]
    results += [_tensor(memory, name, specs[name]) for name in changed]
    left = [b.name for b in buffers if b.clearing is Clearing.COUNTER and memory.bytes(b.name).any()]
    unwritten = [name for name, buffer in outs.items() if _has_unwritten(memory, buffer)]
    return Outcome(tuple(results), tuple(launches), tuple(left), tuple(unwritten))


def _memory(call: Prepared) -> tuple[Memory, dict[str, int]]:
    memory = Memory()
    addresses: dict[str, int] = {}
    changed = {p.name for p in call.evaluation.file.plan.op.parameters if p.in_place}
    for name, spec in call.evaluation.tensors:
        data = storage_bytes(call.arguments[name])
        addresses[name] = _add(memory, name, spec, name in changed, data)
    for buffer in call.plan.buffers:
        data = None if buffer.clearing is Clearing.UNDEFINED else np.zeros(buffer.spec.storage_bytes, np.uint8)
        addresses[buffer.name] = _add(memory, buffer.name, buffer.spec, True, data)
    return memory, addresses


def _add(memory: Memory, name: str, spec: TensorSpec, writable: bool, data: np.ndarray | None) -> int:
    return memory.add(
        name,
        spec.storage_bytes,
        element_bytes=spec.dtype.itemsize,
        shape=spec.shape,
        stride=spec.stride,
        writable=writable,
        initialised=data is not None,
        data=data,
    )


def storage_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor from its first element to its last, gaps included."""
    if tensor.numel() == 0:
        return np.zeros(0, np.uint8)
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((extent,), (1,))
    return flat.contiguous().view(torch.uint8).numpy().copy()


def _tensor(memory: Memory, name: str, spec: TensorSpec) -> torch.Tensor:
    dtype = TORCH_DTYPE[spec.dtype]
    if spec.numel == 0:
        return torch.empty(spec.shape, dtype=dtype)
    flat = torch.from_numpy(np.array(memory.bytes(name))).view(dtype)
    return flat.as_strided(spec.shape, spec.stride)


def _has_unwritten(memory: Memory, buffer: Buffer) -> bool:
    return memory.never_written(buffer.name) > 0


def _request(launch: PackedLaunch, addresses: Mapping[str, int], options: LaunchOptions) -> LaunchRequest:
    block = bytearray(launch.block_template)
    for field in launch.pointers:
        struct.pack_into("<Q", block, field.offset, addresses[field.tensor])
    return LaunchRequest(
        kernel=launch.symbol,
        grid=launch.grid,
        block=launch.block,
        dynamic_smem_bytes=launch.dynamic_smem_bytes,
        parameters=bytes(block),
        cluster=launch.cluster,
        cooperative=launch.cooperative,
        options=options,
    )


def _library_step(call: Prepared, step: LibraryCall, memory: Memory, made: dict[str, torch.Tensor]) -> None:
    target = next(buffer for buffer in call.plan.buffers if buffer.name == step.target)
    tensors = {name: call.arguments[name] for name, _ in call.evaluation.tensors}
    result = LibraryStep(step, target).run({**tensors, **made})
    made[target.name] = result
    memory.bytes(target.name)[:] = storage_bytes(result)
    memory.mark_initialised(target.name)
