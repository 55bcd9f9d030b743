"""Lowering: ATen operations become nodes; views become index rewrites and no nodes at all.

A `Tensor` here is a shape, a dtype and a function from indices to an expression. An operation that computes makes a
node with a buffer of its own, whether or not that buffer will ever exist: the scheduler decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.playbook.errors import NotSupported, OtherAtTheLeast
from tilewright.playbook.families import TracedTask
from tilewright.playbook.loops.index import Atom, Index, Indices
from tilewright.playbook.loops.ir import KINDS, Buffer, Expr, Exprs, Node, Program, kind_of
from tilewright.playbook.loops.numbers import of_powers, without_whole_numbers
from tilewright.playbook.loops.sizes import Size, SizeTable
from tilewright.playbook.lowering import needed
from tilewright.playbook.places.sizes import dimension_texts
from tilewright.playbook.tracing import Items, Scalar, Trace, TracedArgument, TracedNode, explain
from tilewright.playbook.tracing import Node as Reference
from tilewright.records import DType, Layout, TensorInput

Shape = Sequence[Size]


@dataclass(frozen=True)
class Tensor:
    shape: tuple[Size, ...]
    dtype: DType
    at: Callable[[tuple[Index, ...]], Expr]
    exact: bool = True  # whether its elements are what a tensor of the dtype would hold, without f32's further places

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Result:
    """What the trace says of a result."""

    shape: tuple[Size, ...]
    dtype: DType


Value = Any  # a Tensor, a number (int, float, bool, Size, or an Expr of the plan), a word, None, or a list of these
Rule = Callable[..., Value]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def named_rule(**names: str) -> Callable[[Rule], Rule]:
    """One rule for several operations, told which by its first argument."""

    def register(function: Rule) -> Rule:
        for name, word in names.items():
            RULES[name] = partial(function, word)
        return function

    return register


_DTYPES = {one.torch_name: one for one in DType}
NARROW = {
    DType.BF16: "round_bf16",
    DType.F16: "round_f16",
    DType.F8E4M3: "round_f8e4m3",
    DType.F8E5M2: "round_f8e5m2",
    DType.I32: "wrap_i32",
    DType.I16: "wrap_i16",
    DType.I8: "wrap_i8",
    DType.U8: "wrap_u8",
}


def wide(dtype: DType) -> DType:
    """What a value is held in between launches: a result is rounded once, where the graph has it rounded."""
    return DType.F32 if dtype.is_float and dtype.itemsize < 4 else dtype


class Lowering:
    """One walk over a graph, in all of its calls at once; `program` is what it leaves."""

    def __init__(self, traced: TracedTask, own: Trace | None = None, least: Trace | None = None) -> None:
        self._own, self._least = own, least
        sizes = SizeTable(traced)
        self.indices = Indices(sizes)
        self.exprs = Exprs(self.indices)
        self.program = Program(self.exprs)
        self.sizes, self.traced, self.traces, self.task = sizes, traced, traced.traces, traced.task
        self._made = 0
        self._known: dict[int, Value] = {}
        self._first: dict[int, int] = {}  # the first node that computes what a node does
        self._seen: dict[object, int] = {}
        self._texts = dimension_texts(self.task)
        for one in self.task.tensors:
            for place, name in enumerate(one.dimensions):
                values = tuple(call[name] for call in sizes.sizes_of_calls)
                if len(set(values)) > 1 and not one.optional:
                    sizes.named(values, f"{one.name}.shape[{place}]")

    def run(self) -> Program:
        first = self.traces[0]
        wanted = needed(first)
        names = dict.fromkeys(first.nodes[index].target for index in sorted(wanted))
        unknown = [name for name in names if name != "input" and not {name, name.removesuffix("_")} & RULES.keys()]
        if unknown:
            listed = ", ".join(_shown(one) for one in unknown[:4])
            raise NotSupported(f"the playbook has no rule for {listed}; docs/playbook.md lists what it writes")
        for index, node in enumerate(first.nodes):
            if index in wanted:
                self._first[index] = first_one = self._seen.setdefault(self._key(index, node), index)
                self._known[index] = self._known[first_one] if first_one != index else self._lowered(index, node)
        count = len(self.task.outputs)
        changed = [one.name for one in self.task.tensors if one.in_place]
        for place, index in enumerate(first.outputs):
            if place < count:
                self._output(self._known[index], self.task.outputs[place].name, "output")
            else:
                self._output(self._known[index], changed[place - count], "changed")
        return self.program

    def _key(self, index: int, node: TracedNode) -> object:
        """What a node computes: nodes of one key are one. What changes its operands is like nothing else."""
        if node.target.endswith("_") or node.target == "input":
            return index

        def plain(one: TracedArgument) -> object:
            if isinstance(one, Items):
                return tuple(plain(item) for item in one.values)
            return ("node", self._first[one.index]) if isinstance(one, Reference) else (type(one).__name__, repr(one))

        given = tuple(
            (tuple(map(plain, one.arguments)), tuple((key, plain(word)) for key, word in one.keywords.items()))
            for one in (trace.nodes[index] for trace in self.traces)
        )
        return node.target, node.overload, node.results, given

    def _lowered(self, index: int, node: TracedNode) -> Value:
        if node.target == "input":
            return self._input(index, str(node.arguments[0]))
        name = node.target if node.target in RULES else node.target.removesuffix("_")
        results = tuple(self._result(index, place) for place in range(len(node.results)))
        result = results[0] if len(results) == 1 else results
        arguments = [self._argument(index, place) for place in range(len(node.arguments))]
        keywords = {key: self._argument(index, key) for key in node.keywords}
        made = RULES[name](self, result, *arguments, **keywords)
        if name != node.target and node.arguments and isinstance(node.arguments[0], Reference):
            self._known[node.arguments[0].index] = made  # an operation in place: seen changed from here on
        return made

    # -- what a node was given --

    def _result(self, index: int, place: int) -> Result | None:
        found = [trace.nodes[index].results[place] for trace in self.traces]
        first = found[0]
        if first is None:
            return None
        target = self.traces[0].nodes[index].target
        shapes = [one.shape for one in found if one is not None]
        at_own = self._own.nodes[index].results[place] if self._own else None
        owns = at_own.shape if at_own else (None,) * len(first.shape)
        sizes = zip(zip(*shapes, strict=True), owns, strict=True)
        shape = self.sizes.shape(tuple(self.sizes.traced(values, target, value) for values, value in sizes))
        least = self._least.nodes[index].results[place] if self._least else None
        if least is not None and any(one.at_least != its for one, its in zip(shape, least.shape, strict=True)):
            raise OtherAtTheLeast(f"a size of {target} is another at the least sizes")
        if first.dtype not in _DTYPES:
            raise NotSupported(f"the playbook does not compute in {first.dtype}, which {target} makes")
        return Result(shape, _DTYPES[first.dtype])

    def _argument(self, index: int, place: int | str) -> Value:
        def of(node: TracedNode) -> TracedArgument:
            return node.arguments[place] if isinstance(place, int) else node.keywords[place]

        given = [of(trace.nodes[index]) for trace in self.traces]
        target = self.traces[0].nodes[index].target
        first = given[0]
        least = of(self._least.nodes[index]) if self._least else None
        if isinstance(first, Items):
            lists = [one.values for one in given if isinstance(one, Items)]
            if len({len(one) for one in lists}) > 1:
                raise NotSupported(f"the playbook cannot tell how the numbers given to {target} follow from the sizes")
            made = [self._single(tuple(one), target) for one in zip(*lists, strict=True)]
            at_least = least.values if isinstance(least, Items) else ()
        else:
            made = [self._single(tuple(one for one in given if not isinstance(one, Items)), target)]
            at_least = (least,) if not isinstance(least, Items) else ()
        for one, number in zip(made, at_least, strict=False):
            at_end = one.at_least if isinstance(one, Size) else one
            if type(at_end) is int and type(number) is int and number != at_end:
                raise OtherAtTheLeast(f"a number given to {target} is another at the least sizes")
        return made if isinstance(first, Items) else made[0]

    def _single(self, given: tuple[Reference | Scalar, ...], target: str) -> Value:
        first = given[0]
        if isinstance(first, Reference):
            return self._known[first.index]
        if all(one == first or one != one for one in given):
            return first
        whole = tuple(one for one in given if isinstance(one, int))
        if len(whole) == len(given):
            return self.sizes.traced(whole, target)
        numbers = tuple(float(one) for one in given if isinstance(one, (int, float)))
        if len(numbers) != len(given):
            raise NotSupported(f"the playbook does not understand {first!r} given to {target}")
        if (ratio := self._ratio(numbers)) is not None:
            return ratio
        try:
            found = explain(numbers, without_whole_numbers(self.task, self.traced.probes), self._texts, target)
        except NotSupported:
            power = of_powers(numbers, self.traced.probes, self.task, self.exprs) or self._root(numbers)
            if power is None:
                raise
            return power
        return self.exprs.number(found.name, found.expression, "float")

    def _ratio(self, numbers: tuple[float, ...]) -> Expr | None:
        """The quotient of two sizes that took these values."""
        if (ratio := self.sizes.ratio(numbers)) is None:
            return None
        above, below = (self.exprs.convert(self.exprs.size(one), "float") for one in ratio)
        return self.exprs.expr("div", (above, below))

    def _explained(self, whole: tuple[int, ...]) -> Size | None:
        with suppress(NotSupported):
            return self.sizes.traced(whole, "a root")
        return None

    def _root(self, numbers: tuple[float, ...]) -> Expr | None:
        """The square root of one, or what it is below zero."""
        squares = tuple(one * one for one in numbers)
        for inverse in (False, True):
            whole = tuple(round(1 / one if inverse and one else one) for one in squares)
            if all(
                abs(one - (1 / n if inverse and n else n)) <= 1e-9 * one for one, n in zip(squares, whole, strict=True)
            ):
                self.sizes.known(whole) or self._explained(whole)
        if (square := self._ratio(squares)) is None:
            return None
        root = self.exprs.expr("sqrt", (square,))
        return self.exprs.expr("neg", (root,)) if numbers[0] < 0 else root

    def _input(self, index: int, name: str) -> Tensor:
        result = self._result(index, 0)
        assert result is not None
        given = next(one for one in self.task.tensors if one.name == name)
        buffer = self.program.buffer(name, result.shape, result.dtype, "input", self._strides(given, result.shape))
        self.program.inputs.append(name)
        return self.read(buffer)

    def _strides(self, given: TensorInput, shape: Shape) -> tuple[Size, ...]:
        order = given.memory_order or tuple(range(len(shape)))
        made, step = [self.sizes.one] * len(shape), self.sizes.one
        for dim in reversed(order):
            made[dim] = step
            step = step * shape[dim]
        if given.layout in (Layout.DENSE, Layout.UNALIGNED):
            return tuple(made)
        # Any strides: numbers of the plan, told from all others by values that nothing else has.
        first = 16 * [one.name for one in self.task.tensors].index(given.name)
        strides = []
        for dim, size in enumerate(made, first + 1):
            values = tuple(one * 3 + 1_000_003 * dim + 7919 * call for call, one in enumerate(size.values))
            strides.append(self.sizes.named(values, f"{given.name}.stride[{dim - first - 1}]"))
        return tuple(strides)

    def fixed(self, given: Value, what: str) -> float:
        """A number that shapes the graph, and so must be the same in every call."""
        if not isinstance(given, (bool, int, float)):
            raise NotSupported(f"the playbook writes {what} for one value alone")
        return given

    # -- building --

    def fresh(self, word: str) -> str:
        """A name that no tensor of the task has."""
        taken = {one.name for one in (*self.task.inputs, *self.task.outputs)}
        while True:
            self._made += 1
            if (name := f"{word}{self._made}") not in taken:
                return name

    def variables(self, shape: Shape) -> tuple[Atom, ...]:
        return tuple(self.indices.var(self.fresh("v"), size) for size in shape)

    def places(self, variables: Sequence[Atom]) -> tuple[Index, ...]:
        return tuple(self.indices.of(one) for one in variables)

    def read(self, buffer: Buffer, exact: bool = True) -> Tensor:
        return Tensor(buffer.shape, buffer.dtype, lambda places: self.exprs.load(buffer, places), exact)

    def _output(self, tensor: Tensor, name: str, role: str) -> None:
        loops = self.variables(tensor.shape)
        places = self.places(loops)
        own = name if role == "output" else self.fresh("changed")
        strides = self.program.buffers[name].strides if role == "changed" else None
        buffer = self.program.buffer(own, tensor.shape, tensor.dtype, role, strides)
        body = self.exprs.convert(tensor.at(places), kind_of(tensor.dtype))
        self.program.nodes.append(Node("pointwise", buffer, loops, body, places))
        self.program.outputs.append(own)
        if role == "changed":
            self.program.changed[own] = name

    def compute(
        self, shape: Shape, dtype: DType, value: Callable[[tuple[Index, ...]], Expr], exact: bool = False
    ) -> Tensor:
        """A pointwise node: `value` makes its body from the indices."""
        loops = self.variables(shape)
        places = self.places(loops)
        buffer = self.program.buffer(self.fresh("t"), shape, dtype if exact else wide(dtype))
        body = self.exprs.convert(value(places), kind_of(dtype))
        self.program.nodes.append(Node("pointwise", buffer, loops, body, places))
        return Tensor(buffer.shape, dtype, self.read(buffer).at, exact)

    def element(self, one: Value, places: tuple[Index, ...]) -> Expr:
        """An operand's element that meets this one: broadcasting is an index rewrite too."""
        if isinstance(one, Tensor):
            own = places[len(places) - one.rank :]
            shape = zip(one.shape, own, strict=True)
            return one.at(tuple(self.indices.zero if size.is_always(1) else index for size, index in shape))
        if isinstance(one, Expr):
            return one
        if isinstance(one, Size):
            return self.exprs.size(one)
        kind = "bool" if isinstance(one, bool) else "int" if isinstance(one, int) else "float"
        return self.exprs.constant(one, kind)

    def common_kind(self, operands: Sequence[Value]) -> str:
        """Of tensors, then of numbers: a number widens a tensor's kind only from bool to int to float."""
        tensors = [kind_of(one.dtype) for one in operands if isinstance(one, Tensor)]
        numbers = [self.element(one, ()).kind for one in operands if not isinstance(one, Tensor)]
        return max([*tensors, *numbers], key=KINDS.index)

    def require(self, least: Size, most: Size) -> None:
        """That one size is no longer than another, as in all traced calls; the plan needs it where it may not hold."""
        if least.own > most.own:
            raise NotSupported("the playbook cannot tell how a slice follows from the sizes")
        if any(one > other for one, other in zip(least.values, most.values, strict=True)):
            self.program.needs[least, most] = None

    def narrowed(self, made: Expr, dtype: DType) -> Expr:
        """What an integer of the dtype keeps of a 64-bit result."""
        return self.exprs.expr(NARROW[dtype], (made,), "int") if made.kind == "int" and dtype in NARROW else made

    def reduce(
        self,
        op: str,
        tensor: Tensor,
        dims: Value,
        keep: bool,
        dtype: DType,
        change: Callable[[Expr], Expr] | None = None,
    ) -> Tensor:
        gone = self.dims(tensor, dims)
        every = self.variables(tensor.shape)
        outer = tuple(one for dim, one in enumerate(every) if dim not in gone)
        inner = tuple(one for dim, one in enumerate(every) if dim in gone)
        places = self.places(every)
        body = tensor.at(places)
        made = self.reduction(op, outer, inner, change(body) if change else body, dtype)
        return self.kept(made, tensor, gone) if keep else made

    def kept(self, made: Tensor, tensor: Tensor, gone: tuple[int, ...]) -> Tensor:
        """A reduction's result with dimensions of size 1 in the place of those that it took."""
        shape = tuple(self.sizes.one if dim in gone else size for dim, size in enumerate(tensor.shape))
        at = made.at
        return Tensor(
            shape, made.dtype, lambda p: at(tuple(one for dim, one in enumerate(p) if dim not in gone)), made.exact
        )

    def dims(self, tensor: Tensor, dims: Value) -> tuple[int, ...]:
        if dims is None or dims == []:
            return tuple(range(tensor.rank))
        listed = dims if isinstance(dims, list) else [dims]
        return tuple(dim % tensor.rank for dim in listed) if tensor.rank else ()

    def reduction(self, op: str, outer: Sequence[Atom], inner: Sequence[Atom], body: Expr, dtype: DType) -> Tensor:
        buffer = self.program.buffer(self.fresh("r"), [one.size for one in outer], dtype)
        body = body if op.startswith("arg") else self.exprs.convert(body, kind_of(dtype))
        self.program.nodes.append(Node("reduction", buffer, tuple(outer), body, self.places(outer), tuple(inner), op))
        return self.read(buffer, exact=op.startswith("arg") or (op in ("max", "min") and wide(dtype) is not dtype))


def _shown(name: str) -> str:
    """ATen's name as people write it."""
    return name.strip("_").removeprefix("native_")
