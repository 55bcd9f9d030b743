"""Which dimensions a reference is independent in: some places of them alone give what they give among all.

Rows of a softmax are, columns are not; of a matrix product those of either operand, but not the ones it adds up. Found
out by calling it, in the reference's own process. Importing this does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.records import Case, Task
from tilewright.reference import AnyReference, ReferenceProblem
from tilewright.verify.case_sizes import permitted
from tilewright.verify.distributions import draw_inputs

if TYPE_CHECKING:
    import torch

_FIND = "tilewright.verify.independence:find_independent"
_SECONDS = 20.0
_PLACES = 5  # of each dimension that varies
_MOST_ELEMENTS = 4 << 20
_RELATIVE, _ABSOLUTE = 1e-2, 1e-3  # of the largest result: 16-bit types are summed up in another order


@dataclass(frozen=True)
class IndependenceRequest:
    task: Task
    sizes: dict[str, int]


@dataclass(frozen=True)
class IndependenceAnswer:
    names: tuple[str, ...]


def independent_dimensions(task: Task, reference: AnyReference) -> tuple[str, ...]:
    """Those that were seen to be; none where it cannot be told."""
    wanted = {one.name: permitted(one, min(_PLACES, one.size)) if one.varies else one.size for one in task.free}
    small = task.complete(wanted)
    sizes = small if task.is_sound(small) else task.sizes
    if not candidates(task) or sum(spec.numel for spec in task.specs(sizes).values()) > _MOST_ELEMENTS:
        return ()
    try:
        return reference.call(_FIND, IndependenceRequest(task, sizes), IndependenceAnswer, _SECONDS).names
    except ReferenceProblem:
        return ()


def candidates(task: Task) -> tuple[str, ...]:
    """Dimensions that every result has once, no tensor twice, and from which no other size follows."""
    followed = {name for one in task.dimensions if one.formula is not None for name in one.formula.names}
    results = [one.shape for one in task.outputs] + [one.dimensions for one in task.tensors if one.in_place]
    given = [one.dimensions for one in task.tensors if not one.optional]
    return tuple(
        one.name
        for one in task.free
        if one.name not in followed
        and one.size > 1
        and all(shape.count(one.name) == 1 for shape in results)
        and max((shape.count(one.name) for shape in given), default=0) == 1
    )


# -- in the reference's process --


def find_independent(function: Callable[..., Any], request: IndependenceRequest) -> IndependenceAnswer:
    from tilewright.reference.torch_calls import to_torch

    task, sizes = request.task, request.sizes
    contents = draw_inputs(task, Case(sizes, 5))
    tensors = {name: to_torch(spec, contents[name]) for name, spec in task.specs(sizes).items()}
    names = [name for name in candidates(task) if sizes[name] > 1]
    return IndependenceAnswer(
        tuple(
            name
            for name in names
            if all(is_independent(function, task, tensors, name, places) for places in _few(sizes[name]))
        )
    )


def _few(size: int) -> tuple[tuple[int, ...], ...]:
    """Places that stand otherwise among themselves than among all, whichever way those are turned."""
    return ((size - 1,), (max(size - 2, 0), 0))


def is_independent(
    function: Callable[..., Any],
    task: Task,
    tensors: Mapping[str, torch.Tensor],
    name: str,
    places: tuple[int, ...],
) -> bool:
    """Whether the reference gives the same for some places of a dimension alone as among all of them."""
    import torch

    from tilewright.reference.torch_calls import call_reference

    shapes = [*(one.shape for one in task.outputs), *(one.dimensions for one in task.tensors if one.in_place)]
    whole = call_reference(function, task, tensors)
    try:
        alone = call_reference(function, task, taken(task, tensors, {name: places}))
    except Exception:  # of somebody's function, called as it need not be callable
        return False
    for shape, mine, other in zip(shapes, alone, whole, strict=True):
        wanted = other.index_select(shape.index(name), torch.tensor(places))
        if mine.shape != wanted.shape or mine.dtype != wanted.dtype:
            return False
        largest = float(wanted.double().nan_to_num(0.0, 0.0, 0.0).abs().max()) if wanted.numel() else 0.0
        if not torch.allclose(mine.double(), wanted.double(), _RELATIVE, _ABSOLUTE * largest, equal_nan=True):
            return False
    return True


def taken(
    task: Task, tensors: Mapping[str, torch.Tensor], places: Mapping[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """The tensors with only these places of some dimensions."""
    import torch

    made = dict(tensors)
    for one in task.tensors:
        for axis, name in enumerate(one.dimensions if one.name in made else ()):
            if name in places:
                made[one.name] = made[one.name].index_select(axis, torch.tensor(places[name]))
    return made
