"""A kernel for a region, made by the ordinary flow.

Where every row of a region is worked out by itself, the kernel is made for rows, however many dimensions they lie in.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from tilewright.frontends.api.make import Made, make
from tilewright.frontends.api.objects import BoundKernel, ObjectRequest, object_request
from tilewright.frontends.finding.opinions import input_names, region_function
from tilewright.frontends.finding.recording import Layout
from tilewright.frontends.finding.regions import Region, state_of
from tilewright.frontends.finding.report import RegionKind
from tilewright.store import Request
from tilewright.tasks.errors import BadArgument
from tilewright.tasks.lifting.module_source import drawn_like
from tilewright.tasks.lifting.source_text import is_constant, literal

_LEADING = (2, 3)  # sizes of a trial


@dataclass(frozen=True)
class RegionKernel:
    """A finished kernel for a region. `by_rows`: it takes data with all dimensions but the last laid together."""

    region: Region
    made: Made | BoundKernel
    by_rows: bool

    @property
    def plain(self) -> Made:
        """The kernel as a function of all its inputs."""
        return self.made.made if isinstance(self.made, BoundKernel) else self.made


def make_kernel(region: Region, **options: Any) -> RegionKernel:
    """Raises what `make` raises; a kernel of the library is taken where there is one."""
    by_rows = is_by_rows(region)
    data = set(data_inputs(region))
    shapes = {
        name: str(_as_rows(one) if by_rows and name in data else _batched(one, region, name in data))
        for name, one in region.inputs.items()
    }
    return RegionKernel(region, make(_request(region, shapes), **options), by_rows)


def _request(region: Region, shapes: dict[str, str]) -> ObjectRequest:
    if region.kind is RegionKind.CHAIN:
        assert region.chain is not None
        text = region.chain.text
        drawn = {one.name: drawn_like(attrgetter(one.path)(region.owner)) for one in text.inputs if one.path}
        values = {name: said for name, said in drawn.items() if said}
        return ObjectRequest(Request(text.source, shapes, {}, values, function=text.function), None)
    state = state_of(region.owner) if region.kind is RegionKind.MODULE else {}
    given = {name: shape for name, shape in shapes.items() if name not in state}
    return object_request(region.owner, given, _numbers(region), {})


def _numbers(region: Region) -> dict[str, str]:
    """Arguments that are no tensors and not what they are by default."""
    signature = inspect.signature(region.owner.forward if region.kind is RegionKind.MODULE else region.owner)
    numbers = {}
    for name, value in region.held.items():
        known = signature.parameters.get(name)
        if value is None or (known is not None and known.default is not known.empty and value == known.default):
            continue
        if not is_constant(value):
            raise BadArgument(f"{region.title}: {name} is a {type(value).__name__}, which no kernel takes")
        numbers[name] = literal(value)
    return numbers


# -- rows --


def data_inputs(region: Region) -> list[str]:
    """The inputs that are no parameters."""
    if region.kind is RegionKind.CHAIN:
        assert region.chain is not None
        return [one.name for one in region.chain.text.inputs if not one.path]
    state = state_of(region.owner) if region.kind is RegionKind.MODULE else {}
    return [name for name in region.inputs if name not in state]


def is_by_rows(region: Region) -> bool:
    """Whether laying all dimensions of the data but the last together changes nothing: tried with numbers."""
    data = data_inputs(region)
    shapes = [region.inputs[name].shape for name in data] + [one.shape for one in region.outputs]
    leading = {shape[:-1] for shape in shapes}
    if region.kind is RegionKind.FUNCTION or len(leading) != 1 or len(next(iter(leading))) < 2:
        return False
    names = input_names(region)
    generator = torch.Generator().manual_seed(0)
    given: dict[str, torch.Tensor] = {}
    for own, layout in region.inputs.items():
        shape = (*_LEADING, layout.shape[-1]) if own in data else layout.shape
        if not layout.dtype.is_floating_point:
            return False
        given[names[own]] = torch.randn(shape, generator=generator).to(layout.dtype)
    flat = {name: one.flatten(0, 1) if _own(names, name) in data else one for name, one in given.items()}
    function = region_function(region, names)
    try:
        with torch.no_grad():
            whole, parts = _listed(function(**given)), _listed(function(**flat))
    except Exception:  # a function that wants the dimensions it was given
        return False
    return all(torch.equal(one.flatten(0, 1), other) for one, other in zip(whole, parts, strict=True))


def _own(names: dict[str, str], name: str) -> str:
    return next(own for own, one in names.items() if one == name)


def _listed(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _as_rows(layout: Layout) -> Layout:
    return Layout((math.prod(layout.shape[:-1]), layout.shape[-1]), layout.dtype)


def _batched(layout: Layout, region: Region, is_data: bool) -> Layout:
    """A batch of 1 as one of 2: a size of 1 would be taken for one that never varies."""
    first = {one.shape[0] for name, one in region.inputs.items() if name in data_inputs(region) and len(one.shape) > 2}
    if is_data and first == {1} and len(layout.shape) > 2:
        return Layout((2, *layout.shape[1:]), layout.dtype)
    return layout
