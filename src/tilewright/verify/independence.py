"""Find the dimensions along which a task's reference is independent, as the process that holds the task asks for it.

The reference is called at small sizes in its own process (`parts`). Importing this does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.records import Case, Task
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.verify.distributions import draw_inputs

if TYPE_CHECKING:
    import torch

_FIND = "tilewright.verify.independence:find_independent"
_SECONDS = 20.0
_PLACES = 5  # size of each varying dimension
_MOST_ELEMENTS = 4 << 20


@dataclass(frozen=True)
class IndependenceRequest:
    task: Task
    sizes: dict[str, int]


@dataclass(frozen=True)
class IndependenceAnswer:
    names: tuple[str, ...]


def independent_dimensions(task: Task, reference: AnyReference) -> tuple[str, ...]:
    """The dimensions found independent; none where that is unknown."""
    wanted = {one.name: one.permitted(min(_PLACES, one.size)) if one.varies else one.size for one in task.free}
    small = task.complete(wanted)
    sizes = small if task.is_sound(small) else task.sizes
    if sum(spec.numel for spec in task.specs(sizes).values()) > _MOST_ELEMENTS:
        return ()
    try:
        return reference.call(_FIND, IndependenceRequest(task, sizes), IndependenceAnswer, _SECONDS).names
    except ReferenceProblem:
        return ()


# -- in the reference's process --


def find_independent(function: Callable[..., Any], request: IndependenceRequest) -> IndependenceAnswer:
    from tilewright.reference.torch_calls import to_torch

    task = request.task
    contents = draw_inputs(task, Case(request.sizes, 5))
    tensors = {name: to_torch(spec, contents[name]) for name, spec in task.specs(request.sizes).items()}
    return IndependenceAnswer(independent_at(function, task, tensors))


def independent_at(function: Callable[..., Any], task: Task, tensors: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """The dimensions that it is independent in for these tensors."""
    from tilewright.reference.torch_calls import call_reference
    from tilewright.verify import parts
    from tilewright.verify.expectation import in_f64

    def call(given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return in_f64(lambda inner: call_reference(function, task, inner), given)

    return tuple(parts.independent(call, dict(tensors), parts.sliceable(task)))


def taken(
    task: Task, tensors: Mapping[str, torch.Tensor], places: Mapping[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """Select indices of some dimensions."""
    import torch

    made = dict(tensors)
    for one in task.tensors:
        for axis, name in enumerate(one.dimensions if one.name in made else ()):
            if name in places:
                made[one.name] = made[one.name].index_select(axis, torch.tensor(places[name]))
    return made
