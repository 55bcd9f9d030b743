"""Numbers of a graph that change with sizes or arguments, explained: 0.0884 that is 1 / sqrt(cols) at every probe."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.tracing import Probe
from tilewright.records import ScalarType, Task

_TOLERANCE = 1e-6  # a number may have been rounded to f32 on its way

# name, plan expression and function of a whole number n that is a product of sizes
_OF_SIZE: tuple[tuple[str, str, Callable[[float], float]], ...] = (
    ("{n}", "{e}", lambda n: n),
    ("inverse_{n}", "1.0 / ({e})", lambda n: 1.0 / n),
    ("root_{n}", "sqrt({e})", math.sqrt),
    ("inverse_root_{n}", "1.0 / sqrt({e})", lambda n: 1.0 / math.sqrt(n)),
    ("minus_{n}", "0 - ({e})", lambda n: -n),
    ("{n}_less_1", "({e}) - 1", lambda n: n - 1),
    ("inverse_{n}_less_1", "1.0 / (({e}) - 1)", lambda n: 1.0 / (n - 1) if n > 1 else math.inf),
)

# the same of a float argument v
_OF_NUMBER: tuple[tuple[str, str, Callable[[float], float]], ...] = (
    ("{n}", "{n}", lambda v: v),
    ("minus_{n}", "0.0 - {n}", lambda v: -v),
    ("one_minus_{n}", "1.0 - {n}", lambda v: 1.0 - v),
    ("one_plus_{n}", "1.0 + {n}", lambda v: 1.0 + v),
    ("inverse_{n}", "1.0 / {n}", lambda v: 1.0 / v if v else math.inf),
    ("half_{n}", "0.5 * {n}", lambda v: 0.5 * v),
    ("twice_{n}", "2.0 * {n}", lambda v: 2.0 * v),
    ("{n}_squared", "{n} * {n}", lambda v: v * v),
)


@dataclass(frozen=True)
class Explained:
    """What a number is at every size: a name for the kernel and an expression for the plan."""

    name: str
    expression: str


@dataclass(frozen=True)
class ProbeSet:
    """The calls that were traced. `fixed`: only with the task's own sizes and numbers; nothing is known of others."""

    probes: tuple[Probe, ...]
    fixed: bool = False


def probes_of(task: Task) -> ProbeSet:
    """Three calls whose sizes and float arguments all differ."""
    probes: list[Probe] = []
    primes = iter((5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101))
    for factor in (1.0, 1.0625, 0.9375):
        sizes = {one.name: one.size if not one.varies else one.multiple_of * next(primes) for one in task.free[:8]}
        sizes |= {one.name: one.size for one in task.free[8:]}
        numbers = {
            one.name: float(one.value) * factor for one in task.numbers if one.type is ScalarType.FLOAT and one.value
        }
        probes.append(Probe(task.complete(sizes), numbers))
    return ProbeSet(tuple(probes))


def fixed_probe(task: Task) -> ProbeSet:
    """One call as the task has it."""
    return ProbeSet((Probe(task.sizes, {}),), fixed=True)


def explain(values: tuple[float, ...], probes: ProbeSet, size_expressions: dict[str, str], operation: str) -> Explained:
    """What the number is that took these values; `size_expressions` has a plan expression for each dimension's name."""
    for name in probes.probes[0].numbers:
        given = tuple(probe.numbers[name] for probe in probes.probes)
        for label, expression, function in _OF_NUMBER:
            if _agree(values, tuple(function(one) for one in given)):
                return Explained(label.format(n=name), expression.format(n=name))
    for count in range(1, min(len(size_expressions), 4) + 1):
        for chosen in itertools.combinations(size_expressions, count):
            products = tuple(float(math.prod(probe.sizes[name] for name in chosen)) for probe in probes.probes)
            for label, expression, function in _OF_SIZE:
                if _agree(values, tuple(function(one) for one in products)):
                    product = " * ".join(size_expressions[name] for name in chosen)
                    return Explained(label.format(n="_".join(chosen)), expression.format(e=product))
    shown = ", ".join(f"{value:g}" for value in values)
    raise NotSupported(f"the playbook cannot tell how a number of {operation} follows from the sizes (it was {shown})")


def _agree(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return all(math.isclose(one, other, rel_tol=_TOLERANCE) for one, other in zip(a, b, strict=True))
