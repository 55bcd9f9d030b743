"""Other forms of the same call: optional tensors given, tensors with the strides a file accepts, more leading
dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.kernel_file.compiled_plan import CompiledPlan
from tilewright.kernel_file.syntax import Accept
from tilewright.records import Case, Layout, Task
from tilewright.verify.distributions import TASK

_BASES = 3  # cases whose sizes are used
_MOST_ALONE = 4  # optional tensors that are also given one at a time
_SEED_STEP = 401
_LEADING = ((2,), (2, 3))


def other_forms(task: Task, plan: CompiledPlan, cases: Sequence[Case]) -> Iterator[Case]:
    """Every other form of the given cases that the task and the file allow."""
    bases: dict[tuple[tuple[str, int], ...], Case] = {}
    for case in cases:
        if case.values == TASK and max(case.sizes.values(), default=1) > 1:
            bases.setdefault(tuple(case.sizes.items()), case)
    optional = tuple(one.name for one in task.tensors if one.optional)
    alone = [(name,) for name in optional[:_MOST_ALONE]] if len(optional) > 1 else []
    given = [optional, *alone] if optional else []
    chosen = [*bases.values()]
    for base in chosen if len(chosen) <= _BASES else [*chosen[: _BASES - 1], chosen[-1]]:
        forms = (*(replace(base, given=one) for one in given), *_layouts(task, plan.accepts, base))
        if plan.lead is not None and base is chosen[0]:
            forms += tuple(_led(task, base))
        for number, form in enumerate(forms):
            yield replace(form, seed=base.seed + _SEED_STEP * (number + 1))


def _led(task: Task, base: Case) -> Iterator[Case]:
    """The rows under one more leading dimension, and under two."""
    free = (name for number in itertools.count(1) if (name := f"leading_{number}") not in task.sizes)
    for sizes in _LEADING:
        names = tuple(itertools.islice(free, len(sizes)))
        yield replace(base, sizes={**base.sizes, **dict(zip(names, sizes, strict=True))}, leading=names)


def _layouts(task: Task, accepts: Mapping[str, Accept], base: Case) -> Iterator[Case]:
    known = {one.name: bool(one.dimensions) for one in task.tensors if not one.optional}
    taken = [accept for name, accept in accepts.items() if known.get(name)]
    strided = [accept.name for accept in taken if accept.strided]
    unaligned = [accept.name for accept in taken if accept.unaligned]
    for layout in Layout:
        names = unaligned if layout is Layout.UNALIGNED else [] if layout is Layout.DENSE else strided
        if names:
            yield replace(base, layouts=tuple((name, layout) for name in names))
