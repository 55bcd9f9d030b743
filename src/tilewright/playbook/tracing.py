"""A PyTorch function as a graph of ATen operations, and its numbers explained. `trace` runs in the reference's process.

The function is called with fake tensors, which have shapes and dtypes but no content: nothing is computed, and any size
is cheap. It is called several times with different sizes and numbers, so that a constant that follows a size shows it.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, wraps
from typing import Any

from tilewright.playbook.errors import NotSupported
from tilewright.playbook.row_program import LaunchNumber
from tilewright.records import Dimension, NumberInput, ScalarType, Task

_TOLERANCE = 2e-7  # a number may have been rounded to f32 on its way
_OWN_TOLERANCE = 1e-12  # what follows from several arguments is told by its last places: 1 - lr * wd is nearly 1
_COPIES = ("_to_copy", "index_copy")  # no views whose results are copied
_ATTENTION = "_scaled_dot_product"  # how the names of its fused forms begin
MOST_CONSTANTS = 4096  # elements of a tensor of constants that are read
_GREATEST_POWER = 16  # the plan has no powers, only products

# name, plan expression and function of a whole number n that is a product of sizes
_OF_SIZE: tuple[tuple[str, str, Callable[[float], float]], ...] = (
    ("{n}", "{e}", lambda n: n),
    ("inverse_{n}", "1.0 / ({e})", lambda n: 1.0 / n),
    ("root_{n}", "sqrt({e})", math.sqrt),
    ("inverse_root_{n}", "1.0 / sqrt({e})", lambda n: 1.0 / math.sqrt(n)),
    ("inverse_fourth_root_{n}", "1.0 / sqrt(sqrt({e}))", lambda n: n**-0.25),
    ("minus_{n}", "0 - ({e})", lambda n: -n),
    ("{n}_less_1", "({e}) - 1", lambda n: n - 1),
    ("inverse_{n}_less_1", "1.0 / (({e}) - 1)", lambda n: 1.0 / (n - 1) if n > 1 else math.inf),
)

# the same of a float argument v, or of what follows from two
_OF_NUMBER: tuple[tuple[str, str, Callable[[float], float]], ...] = (
    ("{n}", "{n}", lambda v: v),
    ("minus_{n}", "0.0 - {n}", lambda v: -v),
    ("one_minus_{n}", "1.0 - {n}", lambda v: 1.0 - v),
    ("one_plus_{n}", "1.0 + {n}", lambda v: 1.0 + v),
    ("inverse_{n}", "1.0 / {n}", lambda v: 1.0 / v if v else math.inf),
    ("half_{n}", "0.5 * {n}", lambda v: 0.5 * v),
    ("twice_{n}", "2.0 * {n}", lambda v: 2.0 * v),
    ("{n}_squared", "{n} * {n}", lambda v: v * v),
    ("twice_{n}_squared", "2.0 * {n} * {n}", lambda v: 2.0 * v * v),
    ("root_{n}", "sqrt({n})", lambda v: math.sqrt(v) if v >= 0 else math.nan),
)

# and of two such numbers
_OF_TWO: tuple[tuple[str, str, Callable[[float, float], float]], ...] = (
    ("times", "*", lambda a, b: a * b),
    ("over", "/", lambda a, b: a / b if b else math.inf),
    ("less", "-", lambda a, b: a - b),
    ("plus", "+", lambda a, b: a + b),
)


@dataclass(frozen=True)
class Probe:
    """Sizes and numbers of one call."""

    sizes: dict[str, int]
    numbers: dict[str, float]


@dataclass(frozen=True)
class TraceRequest:
    """What the child is asked."""

    task: Task
    probes: tuple[Probe, ...]
    kept: tuple[str, ...] = ()  # operations that are not decomposed; (): those that a family takes whole


@dataclass(frozen=True)
class Node:
    """A reference to an earlier node."""

    index: int


Scalar = int | float | bool | str | None


@dataclass(frozen=True)
class Items:
    """A list among the arguments."""

    values: tuple[Node | Scalar, ...]


TracedArgument = Node | Items | Scalar


@dataclass(frozen=True)
class TracedTensor:
    shape: tuple[int, ...]
    dtype: str  # PyTorch's name without "torch."


@dataclass(frozen=True)
class TracedNode:
    """One operation. `target` is ATen's name without the overload, or `input`, `constant`, `getitem`."""

    target: str
    arguments: tuple[TracedArgument, ...]
    keywords: dict[str, TracedArgument]
    results: tuple[TracedTensor | None, ...]
    overload: str = ""

    def given(self, position: int, keyword: str = "") -> TracedArgument:
        """An argument by its place or its name; None where it is absent."""
        return self.arguments[position] if position < len(self.arguments) else self.keywords.get(keyword)

    @property
    def result(self) -> TracedTensor:
        """The first of its results, which is a tensor."""
        first = self.results[0]
        assert first is not None
        return first


@dataclass(frozen=True)
class Trace:
    nodes: tuple[TracedNode, ...]
    outputs: tuple[int, ...]  # results, then every tensor changed in place


@dataclass(frozen=True)
class Traces:
    """One trace for each probe."""

    traces: tuple[Trace, ...]


def trace(function: Callable[..., Any], request: TraceRequest) -> Traces:
    """The handler: every probe's graph."""
    return Traces(tuple(_trace_one(function, request.task, probe, request.kept) for probe in request.probes))


def _trace_one(function: Callable[..., Any], task: Task, probe: Probe, kept: tuple[str, ...]) -> Trace:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    from tilewright.reference.torch_calls import TORCH_DTYPE, call_reference

    inputs = tuple(
        replace(one, value=probe.numbers.get(one.name, one.value)) if isinstance(one, NumberInput) else one
        for one in task.inputs
    )
    probed = replace(task, inputs=inputs)
    specs = task.specs(probe.sizes)
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = [torch.empty(spec.shape, dtype=TORCH_DTYPE[spec.dtype]) for spec in specs.values()]

    def whole(*given: Any) -> tuple[Any, ...]:
        return call_reference(function, probed, dict(zip(specs, given, strict=True)))

    functional = dispatch_functionalize(whole)  # below autograd, so that references may take gradients
    module = make_fx(functional, decomposition_table=_decompositions(kept), tracing_mode="fake")(*tensors)
    return _records(module, tuple(specs))


@cache
def _decompositions(names: tuple[str, ...]) -> dict[Any, Any]:
    """PyTorch's own rules, but for the operations that are read as they are. Made once: it takes a second."""
    from torch._decomp import core_aten_decompositions, decomposition_table

    from tilewright.playbook.understanding import FAMILIES

    kept = frozenset(names) if names else frozenset[str]().union(*(family.kept for family in FAMILIES))
    table: Any = {**(decomposition_table if names else {}), **core_aten_decompositions()}
    rules = {op: rule for op, rule in table.items() if _name(op).removesuffix("_") not in kept}
    return _with_own_casts(rules) if names else rules


def _with_own_casts(rules: dict[Any, Any]) -> dict[Any, Any]:
    """The rules, whose own casts between floats become `convert_element_type`: no cast that the function has.

    Those of attention stay: its products are of terms that are rounded.
    """
    import torch

    depth = 0

    def within(rule: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(rule)
        def made(*given: Any, **words: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return rule(*given, **words)
            finally:
                depth -= 1

        return made

    def cast(one: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
        if not depth or dtype is None or not (one.dtype.is_floating_point and dtype.is_floating_point):
            return NotImplemented  # stays as it is
        return torch.ops.prims.convert_element_type(one, dtype)

    own = {op: rule if _name(op).startswith(_ATTENTION) else within(rule) for op, rule in rules.items()}
    return own | {torch.ops.aten._to_copy.default: cast}


def _name(target: Any) -> str:
    """`aten.add.Tensor` is `add`; operations of other libraries keep their library's name."""
    if target is operator.getitem:
        return "getitem"
    words = str(target).split(".")
    if words[0] not in ("aten", "prims") or len(words) < 2:
        return str(target)
    return words[1] if words[1] in _COPIES else words[1].removesuffix("_copy")


def _records(module: Any, names: tuple[str, ...]) -> Trace:
    numbers: dict[Any, int] = {}
    nodes: list[TracedNode] = []
    outputs: tuple[int, ...] = ()
    waiting = iter(names)
    for node in module.graph.nodes:
        if node.op == "output":
            returned = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
            outputs = tuple(numbers[one] for one in returned)
            continue
        numbers[node] = len(nodes)
        if node.op == "placeholder":
            nodes.append(TracedNode("input", (next(waiting),), {}, _results(node)))
        elif node.op == "get_attr":
            tensor = getattr(module, node.target)
            held: tuple[TracedArgument, ...] = (tensor.item(),) if tensor.numel() == 1 else (None, _several(tensor))
            nodes.append(TracedNode("constant", held, {}, (_tensor(tensor),)))
        else:
            arguments = tuple(_argument(one, numbers) for one in node.args)
            keywords = {key: _argument(one, numbers) for key, one in node.kwargs.items()}
            overload = str(node.target).rpartition(".")[2]
            nodes.append(TracedNode(_name(node.target), arguments, keywords, _results(node), overload))
    return Trace(tuple(nodes), outputs)


def _several(tensor: Any) -> Items | None:
    """The elements of a constant tensor, row by row; None for more than a kernel file should hold."""
    return Items(tuple(tensor.flatten().tolist())) if tensor.numel() <= MOST_CONSTANTS else None


def _results(node: Any) -> tuple[TracedTensor | None, ...]:
    value = node.meta.get("val")
    several = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(_tensor(one) if hasattr(one, "dtype") else None for one in several)


def _tensor(tensor: Any) -> TracedTensor:
    return TracedTensor(tuple(int(size) for size in tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _argument(value: Any, numbers: dict[Any, int]) -> TracedArgument:
    if isinstance(value, (tuple, list)):
        return Items(tuple(_single(one, numbers) for one in value))
    return _single(value, numbers)


def _single(value: Any, numbers: dict[Any, int]) -> Node | Scalar:
    if value in numbers if hasattr(value, "graph") else False:
        return Node(numbers[value])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value).removeprefix("torch.")


# -- numbers that change with sizes or arguments: 0.0884 that is 1 / sqrt(cols) at every probe --


@dataclass(frozen=True)
class ProbeSet:
    """The calls that were traced. `fixed`: only with the task's own sizes and numbers; nothing is known of others."""

    probes: tuple[Probe, ...]
    fixed: bool = False


# No two dimensions keep a simple relation from one call to the next, as 5, 11, 17 and 7, 13, 19 would, and each is odd
# in one call and even in another, so that halves show how they are rounded.
_SIZES = (
    *(38, 94, 61, 37, 97, 53, 113, 43, 62, 122, 58, 146, 74, 106, 131, 71, 59, 149, 82, 134, 79, 67, 166, 86),
    *(89, 118, 101, 142, 103, 158, 107, 109, 178, 127, 137, 139),
)
_ALIKE = 16  # times a size, and a little more that differs from size to size
MOST_PROBED = len(_SIZES) // 3  # dimensions that can have a size of their own in every call


class Spread(str, Enum):
    """Which sizes a function is called at."""

    SMALL = "small"
    LARGE = "large"  # where small ones are too small for it
    ALIKE = "alike"  # multiples of the task's own: a filter stays smaller than the image


def probes_of(task: Task, spread: Spread = Spread.SMALL) -> ProbeSet:
    """Three calls whose sizes and float arguments all differ."""
    probes: list[Probe] = []
    primes = iter(_SIZES)
    floats = [one for one in task.numbers if one.type is ScalarType.FLOAT and one.value]
    for call in range(3):
        sizes = {one.name: one.size if not one.varies else _probed(one, next(primes), spread) for one in task.free}
        # Each by a step of its own: the quotient of two numbers that grew alike would look like a constant.
        steps = (((0.0, 1.0, -1.0)[call] / (16 + (1 + call) * place)) for place in itertools.count())
        numbers = {one.name: _near(one, step) for one, step in zip(floats, steps, strict=False)}
        probes.append(Probe(task.complete(sizes), numbers))
    return ProbeSet(tuple(probes))


def _probed(one: Dimension, prime: int, spread: Spread) -> int:
    """A small size that the dimension takes; one that begins with a wide window holds several of them."""
    if spread is Spread.ALIKE:
        return one.permitted(one.size * _ALIKE + one.multiple_of * (prime // 12 * 2 + prime % 2))
    size = one.multiple_of * (prime * 8 + prime % 2 if spread is Spread.LARGE or one.at_least > 8 else prime)
    return size if one.takes(size) else one.permitted(one.at_least + size)


def _near(one: NumberInput, step: float) -> float:
    """A value beside the task's own at which the reference does the same."""
    own = float(one.value)
    near = (own * (1.0 + part * step) for part in (1.0, -0.5, 0.125, -0.0625))
    return next((value for value in near if one.takes(value)), own)


def fixed_probe(task: Task) -> ProbeSet:
    """One call as the task has it."""
    return ProbeSet((Probe(task.sizes, {}),), fixed=True)


def explain(
    values: tuple[float, ...], probes: ProbeSet, size_expressions: dict[str, str], operation: str
) -> LaunchNumber:
    """What the number is that took these values; `size_expressions` has a plan expression for each dimension's name."""
    found = _of_numbers(values, probes)
    if found is not None:
        return found
    for count in range(1, min(len(size_expressions), 4) + 1):
        for chosen in itertools.combinations(size_expressions, count):
            products = tuple(float(math.prod(probe.sizes[name] for name in chosen)) for probe in probes.probes)
            for label, expression, function in _OF_SIZE:
                if _agree(values, tuple(function(one) for one in products)):
                    product = " * ".join(size_expressions[name] for name in chosen)
                    return LaunchNumber(label.format(n="_".join(chosen)), expression.format(e=product))
            share = float(f"{values[0] * products[0]:.6g}")  # such as what label smoothing leaves to every class
            if _agree(values, tuple(share / one for one in products)):
                product = " * ".join(size_expressions[name] for name in chosen)
                return LaunchNumber(f"share_of_{'_'.join(chosen)}", f"{share!r} / ({product})")
    shown = ", ".join(f"{value:g}" for value in values)
    raise NotSupported(
        f"the playbook cannot tell how a number given to {operation} follows from the sizes and the numbers of the "
        f"function (it was {shown}); work it out outside, and make it a parameter of its own"
    )


@dataclass(frozen=True)
class _Term:
    """What follows from float arguments: its name in a kernel, its plan expression, and what it was at every probe."""

    name: str
    text: str
    values: tuple[float, ...]

    @property
    def operand(self) -> str:
        return self.text if self.text.isidentifier() else f"({self.text})"

    def forms(self) -> Iterator[_Term]:
        for name, text, function in _OF_NUMBER:
            own = self.operand if " " in text else self.text
            yield _Term(name.format(n=self.name), text.format(n=own), tuple(map(function, self.values)))

    def with_other(self, other: _Term) -> Iterator[_Term]:
        for word, sign, function in _OF_TWO:
            values = tuple(map(function, self.values, other.values))
            yield _Term(f"{self.name}_{word}_{other.name}", f"{self.operand} {sign} {other.operand}", values)


def _of_numbers(values: tuple[float, ...], probes: ProbeSet) -> LaunchNumber | None:
    """What the number is of one float argument, of a power of one, or of two: 1 - lr * wd, lr / (1 - b1 ** 10)."""
    given = {name: tuple(probe.numbers[name] for probe in probes.probes) for name in probes.probes[0].numbers}
    singles = [_Term(name, name, numbers) for name, numbers in given.items()]
    powers = [
        _Term(f"{one.name}_to_the_{power}", " * ".join([one.name] * power), tuple(v**power for v in one.values))
        for one, power in itertools.product(singles, range(2, _GREATEST_POWER + 1))
    ]
    inner = [form for one in (*singles, *powers) for form in one.forms()]
    pairs = (pair for one, other in itertools.product(singles, inner) for pair in one.with_other(other))
    exact = ((one, _OWN_TOLERANCE) for one in itertools.chain(singles, powers, inner, pairs))
    for term, tolerance in itertools.chain(exact, ((one, _TOLERANCE) for one in singles)):
        for form in term.forms():
            if _agree(values, form.values, tolerance):
                return LaunchNumber(form.name, form.text)
    return None


def _agree(a: tuple[float, ...], b: tuple[float, ...], tolerance: float = _TOLERANCE) -> bool:
    return all(math.isclose(one, other, rel_tol=tolerance) for one, other in zip(a, b, strict=True))
