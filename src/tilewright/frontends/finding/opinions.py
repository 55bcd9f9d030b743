"""What the playbook makes of a region: its own reader is asked, in this process, at the sizes that were seen.

Nothing is computed: the function is called with tensors that have no content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tilewright.devices.inputs import DTYPE_OF_TORCH
from tilewright.frontends.finding.recording import Layout
from tilewright.frontends.finding.regions import Region, chain_function, state_of
from tilewright.frontends.finding.report import RegionKind
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.tracing import TraceRequest, Traces, trace
from tilewright.playbook.understanding import check_supported
from tilewright.records import Dimension, Task, TaskOutput, TensorInput
from tilewright.reference import ReferenceProblem
from tilewright.tasks.reading.python_source import usable_name


def playbook_refusal(region: Region, gpu: str) -> str:
    """Why the playbook cannot make a kernel of a region; "" where it can."""
    names = input_names(region)
    try:
        task = _task(region, names, gpu)
    except ValueError as error:
        return str(error)
    function = region_function(region, names)

    def ask(request: TraceRequest) -> Traces:
        try:
            return trace(function, request)
        except Exception as error:  # whatever somebody's function does with a tensor that has no content
            raise ReferenceProblem(str(error).splitlines()[0] if str(error) else type(error).__name__) from error

    try:
        check_supported(task, ask)
    except NotSupported as refusal:
        return str(refusal)
    return ""


def input_names(region: Region) -> dict[str, str]:
    """The inputs of the region, and what a kernel would call them."""
    names: dict[str, str] = {}
    for own in region.inputs:
        names[own] = usable_name(own.replace(".", "_"), names.values(), "x")
    return names


def _task(region: Region, names: Mapping[str, str], gpu: str) -> Task:
    """A task of fixed sizes, good for being read and nothing else."""
    sizes = {size for one in (*region.inputs.values(), *region.outputs) for size in one.shape}
    return Task(
        usable_name(region.name),
        f"# {region.title}\n",
        "reference",
        tuple(
            TensorInput(name, _dtype(own, region.inputs[own]), _axes(region.inputs[own])) for own, name in names.items()
        ),
        tuple(TaskOutput(f"result_{place}", _dtype("", one), _axes(one)) for place, one in enumerate(region.outputs)),
        tuple(Dimension(f"d{size}", size, varies=False) for size in sorted(sizes)),
        gpu=gpu,
    )


def _axes(layout: Layout) -> tuple[str, ...]:
    return tuple(f"d{size}" for size in layout.shape)


def _dtype(name: str, layout: Layout) -> Any:
    found = DTYPE_OF_TORCH.get(layout.dtype)
    if found is None:
        raise ValueError(f"{name or 'a result'} is of {layout.dtype}, which kernel files do not have")
    return found


def region_function(region: Region, names: Mapping[str, str]) -> Callable[..., Any]:
    """The region as a function of its inputs by the names that a kernel has for them."""
    own = {name: one for one, name in names.items()}
    if region.kind is RegionKind.CHAIN:
        assert region.chain is not None
        function = chain_function(region.chain.text)
        return lambda **given: function(**{own[name]: value for name, value in given.items()})
    if region.kind is RegionKind.FUNCTION:
        return lambda **given: region.owner(**{own[name]: value for name, value in given.items()}, **region.held)
    module = region.owner
    state = state_of(module)

    def call(**given: Any) -> Any:
        named = {own[name]: value for name, value in given.items()}
        parameters = {name: value for name, value in named.items() if name in state}
        rest = {name: value for name, value in named.items() if name not in state}
        return torch.func.functional_call(module, parameters, (), {**rest, **region.held})

    return call
