"""Runs a kernel file in the emulator, straight on its memory and program: results, findings and counts of one call.

Evaluates, builds and binds the plan as any device does; adds nothing to what the emulator reports.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilewright.devices.emulation.plan_memory import PlanMemory, add_buffers, storage_bytes, tensor_copy
from tilewright.devices.emulation.plan_run import launch_request, run_library_step
from tilewright.devices.inputs import DTYPE_OF_TORCH
from tilewright.kernel_file import DoesNotApply, Evaluation, KernelFile
from tilewright.ptx.launching import LaunchOptions, LaunchRequest, LaunchResult, PixelBox, encoded_map
from tilewright.ptx.program import Program, load_program
from tilewright.records import (
    PROFILES,
    BoundPlan,
    BufferRole,
    Clearing,
    FindingRecord,
    GpuProfile,
    LibraryCall,
    PackedLaunch,
    TensorSpec,
)
from tilewright.toolchain import BuiltPlan, build_plan

A100 = PROFILES["A100"]


@dataclass(frozen=True)
class Outcome:
    """What one call gave."""

    results: tuple[torch.Tensor, ...]  # the op's outputs, then the tensors changed in place
    launches: tuple[LaunchResult, ...]
    counters_left: tuple[str, ...]  # `counter` scratch that is not zero at the end
    unwritten: tuple[str, ...]  # outputs with an element that nothing wrote

    @property
    def findings(self) -> tuple[FindingRecord, ...]:
        return tuple(finding for launch in self.launches for finding in launch.findings)

    @property
    def incomplete(self) -> tuple[str, ...]:
        return tuple(sentence for launch in self.launches for sentence in launch.incomplete)

    @property
    def completed(self) -> bool:
        return all(launch.completed for launch in self.launches)


@dataclass(frozen=True)
class Prepared:
    """A call ready to be run under any options: its plan, its program, its arguments."""

    evaluation: Evaluation
    plan: BoundPlan
    program: Program | None  # None where the plan launches nothing
    arguments: Mapping[str, Any]

    def run(self, options: LaunchOptions, pixel_box: PixelBox | None = None) -> Outcome:
        """`pixel_box`: every map is an im2col map with this, which plans cannot say."""
        return _run(self, options, pixel_box)


def prepare(
    file: KernelFile, arguments: Sequence[Any], gpu: GpuProfile = A100, choice: Mapping[str, int | bool] | None = None
) -> Prepared:
    """The file at these arguments (CPU tensors and numbers, by position); raises `DoesNotApply`."""
    names = [parameter.name for parameter in file.plan.op.parameters]
    given = dict(zip(names, arguments, strict=False))
    described = {name: _spec(value) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    built = build_plan(file, described, gpu, choice, isolated=False)
    assert isinstance(built, BuiltPlan), str(built)
    return Prepared(built.evaluation, built.plan, _program(built.build.ptx) if built.build else None, given)


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


def shown(findings: Sequence[FindingRecord]) -> str:
    """Findings as lines of text, for messages."""
    return "\n".join(
        f"line {f.line} (other {f.other_line}): {f.kind.name}: {f.where}; "
        f"{f.detail} x{f.count} [{f.ptx_line}: {f.ptx_text}]"
        for f in findings
    )


def _spec(tensor: torch.Tensor) -> TensorSpec:
    """What a plan may know of a tensor; the emulator aligns every one of them."""
    return TensorSpec(DTYPE_OF_TORCH[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride()))


@functools.lru_cache(maxsize=128)
def _program(ptx: str) -> Program:
    return load_program(ptx)


# -- one run --


def _run(call: Prepared, options: LaunchOptions, pixel_box: PixelBox | None) -> Outcome:
    memory = _memory(call)
    launches: list[LaunchResult] = []
    for step in call.plan.steps:
        if isinstance(step, LibraryCall):
            run_library_step(step, next(b for b in call.plan.buffers if b.name == step.target), memory)
            continue
        assert call.program is not None
        request = launch_request(step, call.plan.maps, memory, options)
        if pixel_box is not None:
            request = _with_im2col(request, step, call.plan, memory, pixel_box)
        launches.append(call.program.launch(memory.memory, request))
        if not launches[-1].completed:
            break
    buffers = call.plan.buffers
    outs = [buffer.name for buffer in buffers if buffer.role is BufferRole.OUT]
    changed = [p.name for p in call.evaluation.file.plan.op.parameters if p.in_place]
    results = [tensor_copy(memory, name) for name in (*outs, *changed)]
    left = [b.name for b in buffers if b.clearing is Clearing.COUNTER and memory.content(b.name).any()]
    unwritten = [name for name in outs if memory.unwritten(name) is not None]
    return Outcome(tuple(results), tuple(launches), tuple(left), tuple(unwritten))


def _with_im2col(
    request: LaunchRequest, step: PackedLaunch, plan: BoundPlan, memory: PlanMemory, pixel_box: PixelBox
) -> LaunchRequest:
    block = bytearray(request.parameters)
    for place in step.maps:
        record = next(one for one in plan.maps if one.name == place.map)
        encoded = encoded_map(record, memory.address(record.tensor), pixel_box)
        block[place.offset : place.offset + len(encoded)] = encoded
    return replace(request, parameters=bytes(block))


def _memory(call: Prepared) -> PlanMemory:
    memory = PlanMemory()
    changed = {p.name for p in call.evaluation.file.plan.op.parameters if p.in_place}
    for name, spec in call.evaluation.tensors:
        content = storage_bytes(call.arguments[name], spec.storage_bytes)
        memory.add_input(name, spec, content, writable=name in changed)
    add_buffers(memory, call.plan.buffers, sampled=False)
    return memory
