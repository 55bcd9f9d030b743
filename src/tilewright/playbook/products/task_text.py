"""Plan text of a whole task: its results, what it asks of its inputs, and where sizes are read off."""

from __future__ import annotations

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.families import TracedTask
from tilewright.records import NumberInput, ScalarType, Task


def out_lines(task: Task) -> tuple[str, ...]:
    """Every result, its sizes read off the inputs."""
    places = size_places(task)

    def size(one: str | int) -> str:
        if isinstance(one, int):
            return str(one)
        if one not in places:
            raise NotSupported(f"the playbook cannot tell the size {one} from the inputs' shapes")
        return places[one]

    return tuple(f"{one.name}: {one.dtype}[{', '.join(size(each) for each in one.shape)}]" for one in task.outputs)


def shape_needs(traced: TracedTask) -> tuple[str, ...]:
    """What the plan asks of the inputs: dtypes, ranks, sizes that agree, and what the graph was seen with."""
    task, probes = traced.task, traced.probes
    given = [one for one in task.tensors if not one.optional]
    places = size_places(task)
    needs = [" and ".join(f"{one.name}.dtype == {one.dtype}" for one in given)]
    for one in given:
        needs.append(f"{one.name}.ndim == {len(one.dimensions)}")
        for place, name in enumerate(one.dimensions):
            own = f"{one.name}.shape[{place}]"
            if places[name] != own:
                needs.append(f"{own} == {places[name]}")
    needs += [f"not has({one.name})" for one in task.tensors if one.optional]
    fixed = [one for one in task.dimensions if one.name in places and (probes.fixed or not one.varies)]
    needs += [f"{places[one.name]} == {one.size}" for one in fixed]
    parts = [one for one in task.dimensions if one.name in places and one.multiple_of > 1 and one not in fixed]
    needs += [f"{places[one.name]} % {one.multiple_of} == 0" for one in parts]
    needs += [_number_need(one) for one in task.numbers if one.name not in probes.probes[0].numbers]
    return tuple(needs)


def size_places(task: Task) -> dict[str, str]:
    """Where each dimension's size is read off."""
    found: dict[str, str] = {}
    for tensor in task.tensors:
        for place, name in enumerate(tensor.dimensions):
            if not tensor.optional:
                found.setdefault(name, f"{tensor.name}.shape[{place}]")
    return found


def _number_need(one: NumberInput) -> str:
    value = str(one.value).lower() if one.type is ScalarType.BOOL else repr(one.value)
    return f"{one.name} == {value}" if not value.startswith("-") else f"{one.name} + {value[1:]} == 0"
