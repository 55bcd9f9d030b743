"""Numbers that follow from powers with a whole argument as the exponent, such as Adam's 1 - b1 ** step.

The plan has no powers, so a kernel computes these itself, in f64, from the arguments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from tilewright.playbook.loops.ir import Expr, Exprs
from tilewright.playbook.tracing import ProbeSet
from tilewright.records import NumberInput, ScalarType, Task

_CLOSE = 1e-12
Values = tuple[float, ...]
Build = Callable[[], Expr]
Term = tuple[Values, Build]


def of_powers(values: Values, probes: ProbeSet, task: Task, exprs: Exprs) -> Expr | None:
    """The number that took these values, where it is a power, what it leaves of 1, or a quotient of such."""
    given = {name: tuple(probe.numbers[name] for probe in probes.probes) for name in probes.probes[0].numbers}
    types = {one.name: one.type for one in task.numbers}
    bases: list[Term] = [
        (numbers, lambda name=name: exprs.number(name, name, "double"))  # type: ignore[misc]
        for name, numbers in given.items()
        if types[name] is ScalarType.FLOAT
    ]
    exponents: list[Term] = [
        (numbers, lambda name=name: exprs.number(name, name, "double"))  # type: ignore[misc]
        for name, numbers in given.items()
        if types[name] is ScalarType.INT
    ]
    one: Build = lambda: exprs.constant(1.0, "double")  # noqa: E731
    unit: Term = ((1.0,) * len(values), one)
    powers = [_two(exprs, "pow", base, power) for base, power in itertools.product(bases, exponents)]
    rests = [_two(exprs, "sub", unit, power) for power in powers]
    roots = [_root(exprs, rest) for rest in rests]
    known = [*powers, *rests, *roots]
    below = [*rests, *roots]
    quotients = [_two(exprs, "div", above, under) for above in (unit, *bases, *roots) for under in below]
    scaled = [_two(exprs, "mul", base, quotient) for base, quotient in itertools.product(bases, quotients)]
    for numbers, build in (*exponents, *known, *quotients, *scaled):
        if _agree(numbers, values):
            return exprs.convert(build(), "float")
        if _agree(tuple(-number for number in numbers), values):
            return exprs.expr("neg", (exprs.convert(build(), "float"),), "float")
    return None


def _two(exprs: Exprs, op: str, first: Term, second: Term) -> Term:
    work: dict[str, Callable[[float, float], float]] = {
        "pow": lambda a, b: a**b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b if b else math.inf,
    }
    values = tuple(map(work[op], first[0], second[0]))
    return values, lambda: exprs.expr(op, (first[1](), second[1]()), "double")


def _root(exprs: Exprs, term: Term) -> Term:
    values = tuple(math.sqrt(one) if one >= 0 else math.nan for one in term[0])
    return values, lambda: exprs.expr("sqrt", (term[1](),), "double")


def _agree(a: Values, b: Values) -> bool:
    return all(math.isclose(one, other, rel_tol=_CLOSE) for one, other in zip(a, b, strict=True))


def with_whole_numbers(task: Task, probes: ProbeSet) -> ProbeSet | None:
    """The same calls with whole arguments that differ too; None where the task has none that may."""
    whole = [one for one in task.numbers if one.type is ScalarType.INT and one.value > 1]
    if not whole:
        return None
    made = []
    for call, probe in enumerate(probes.probes):
        more = {one.name: _near(one, call) for one in whole}
        made.append(type(probe)(probe.sizes, {**probe.numbers, **more}))
    return ProbeSet(tuple(made))


def without_whole_numbers(task: Task, probes: ProbeSet) -> ProbeSet:
    floats = {one.name for one in task.numbers if one.type is ScalarType.FLOAT}
    kept = ({name: value for name, value in one.numbers.items() if name in floats} for one in probes.probes)
    return ProbeSet(
        tuple(type(one)(one.sizes, more) for one, more in zip(probes.probes, kept, strict=True)), probes.fixed
    )


def _near(one: NumberInput, call: int) -> int:
    own = int(one.value)
    return next((value for value in (own + (0, 1, 3, 4, 6)[call], own - call) if one.takes(value)), own)
