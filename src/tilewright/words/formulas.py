"""Formulas of tensors by their names, read as Python reads them: `x * sigmoid(x)`, `a @ b.T`, `F.gelu(x)`.

A name is a tensor like the first one, but `bias`, `b` that is added and `w` that multiplies x are vectors, `t` and `s`
that something is divided by are numbers, and `d` and `n` in sqrt(d) and sum(x) / n are sizes; the task says so.
"""

from __future__ import annotations

import ast
import copy
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from tilewright.records import DType, TensorSpec
from tilewright.words.building import Builder, Dimensions, Value
from tilewright.words.catalogue import Argument, Operation, fillers, names, operations, operative, vocabulary
from tilewright.words.errors import unread
from tilewright.words.reading import read_tokens
from tilewright.words.steps import Step
from tilewright.words.text import joined, plain, stem, stems
from tilewright.words.tokens import tokens

_SIGNS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult, ast.Gt, ast.GtE, ast.Lt, ast.LtE)
_MODULES = ("torch", "F", "nn", "nn.functional", "torch.nn.functional")
_AS_SIGNS = {"matmul": ast.MatMult, "mm": ast.MatMult, "pow": ast.Pow}
_EXTREMES = {"max": "maximum", "maximum": "maximum", "min": "minimum", "minimum": "minimum"}
_APART = ("where", "maximum", "minimum")  # functions of elements with operands of any kind
_COUNTED = frozenset(("d", "n", "d_k", "dk"))
_SHORT = re.compile(r"[a-zA-Z]{1,2}(_?\d)?|[wWx][a-z_]{1,2}|[WX]_?\w{1,5}|pred\w*|[a-z]+(_[a-z\d]+)+")
_TARGET = re.compile(r"([A-Za-z]\w*) ?= ?(?!=)")


@dataclass(frozen=True)
class Formula:
    """`target`: the name that it gives its value; `numbers`: names that were said to be numbers, and their values."""

    text: str
    body: ast.expr
    target: str = ""
    axis: tuple[int, ...] | None = None
    numbers: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        nodes = [one for one in ast.walk(self.body) if isinstance(one, (ast.Call, ast.BinOp))]
        found = [_function(one) if isinstance(one, ast.Call) else type(one.op).__name__ for one in nodes[::-1]]
        return "_".join(dict.fromkeys(found[:4])).lower().replace("matmult", "matmul") or "formula"

    def substituted(self, defined: Mapping[str, ast.expr]) -> Formula | None:
        """The formula with definitions in place of their names; None where one needs itself."""

        class Instead(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.AST:
                return copy.deepcopy(defined.get(node.id, node))

        body = copy.deepcopy(self.body)
        for _ in defined:
            body = Instead().visit(body)
        text = _text(body) if letters(self.body) & defined.keys() else self.text
        return None if letters(body) & defined.keys() else replace(self, text=text, body=body)


# -- reading --


def read_formula(words: str, known: Collection[str] = ()) -> Formula | None:
    """The formula that the words are, politeness around it apart; None where they are none. `known` are its names."""
    text = " ".join(plain(words).strip(" .!,").split())
    along = re.search(r" (?:over|along) (?:dim|axis) (-?\d)$", text)
    if along:
        found = read_formula(text[: along.start()], known)
        return replace(found, axis=(int(along[1]),)) if found and re.search(r"(?:mean|sum)\(", words) else None
    parts = text.split(" ")
    while parts and len(parts[-1]) > 1 and stem(parts[-1].lower()) in fillers():
        parts.pop()
    for skipped, part in enumerate(parts):
        found = _parsed(" ".join(parts[skipped:]), known)
        if found is not None or stem(part.lower().strip(",:")) not in fillers():
            return found
    return None


def _parsed(text: str, known: Collection[str]) -> Formula | None:
    target = _TARGET.match(text)
    source = text[target.end() :] if target else text
    source, over_rows = re.subn(r"\b(mean|sum) over (?:all |the )*(?:tokens|rows|samples) of (.+)$", r"\1(\2)", source)
    told = vocabulary()["formulas"]
    for pattern, instead in (*(told["turns"] if re.search(r"\^T(?!\w)", source) else ()), *told["rewrite"]):
        source = re.sub(pattern, instead, source)
    try:
        with warnings.catch_warnings(action="ignore"):
            body = _Plain().visit(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return None
    calls = [one for one in ast.walk(body) if isinstance(one, ast.Call) and _function(one) in ("mean", "sum")]
    if over_rows and any(_elements(one.args[0]) for one in calls if one.args):
        return None  # the rows are left only where the elements of each were reduced
    compound = set(re.findall(r"[a-z]{2,}(?=[-/][a-z]{2})|(?<=[a-z][-/])[a-z]{2,}", source)) - {*known}
    compound |= letters(body) if re.search(r"\bw/ ", text) else set()  # short for "with"
    is_formula = not compound & letters(body) and _is_formula(body, known)
    return Formula(text.strip(), body, target[1] if target else "") if is_formula else None


class _Plain(ast.NodeTransformer):
    """Calls by the one name of their function, all arguments in brackets: x.sum(0) is ".sum"(x, 0)."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called, arguments = ast.unparse(node.func), [self.visit(one) for one in node.args]
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in _MODULES:
            called, arguments = f".{node.func.attr}", [self.visit(node.func.value), *arguments]
        name = called.rpartition(".")[2]
        if name in _AS_SIGNS and len(arguments) == 2:
            return ast.BinOp(arguments[0], _AS_SIGNS[name](), arguments[1])
        if name in _EXTREMES and len(arguments) == 2 and not ("." in called and _literal(arguments[1]) is not None):
            called = _EXTREMES[name]
        return ast.Call(ast.Constant(called), arguments, node.keywords)


def _function(node: ast.Call) -> str:
    return str(_literal(node.func)).rpartition(".")[2]


def _text(node: ast.AST) -> str:
    return re.sub(r"'\.?([\w.]+)'(?=\()", r"\1", ast.unparse(node))


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def letters(node: ast.AST) -> set[str]:
    """The names in a part of a formula."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _is_formula(body: ast.expr, known: Collection[str]) -> bool:
    """Whether its functions are known and its names may be tensors, numbers and sizes."""
    if not isinstance(body, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Compare)) and getattr(body, "attr", "") != "T":
        return False
    if not all(_entry(one) for one in ast.walk(body) if isinstance(one, ast.Call)):
        return False
    tensors = {one for one in letters(body) if one in known or _may_be_tensor(one)}
    roles = vocabulary()["formulas"]["roles"]
    others = " ".join([*roles["number"].values(), *roles["size"].values(), *roles["vector"].values(), "pi"])
    return bool(tensors) and letters(body) - tensors <= {*others.split()}


@cache
def _may_be_tensor(name: str) -> bool:
    """Whether a name stands for a tensor: the catalogue has such tensors, or it is short and no word."""
    functions = [operations().get(one) for one in (name, f"row_{name}")]
    told = vocabulary()
    numbers = told["formulas"]["roles"]["number"]["anyhow"].split()
    if name in numbers or any(one and len(one.arguments) < 2 for one in functions):
        return len(name) == 1
    own = {one.name for operation in operations().values() for one in operation.arguments}
    if name in own | {*told["tensors"].split(), *told["tensor_names"]}:
        return len(name) == 1 or name not in told["sizes"]  # a shift or a margin may be a number
    words = {stem(part) for part in name.lower().split("_") if len(part) > 1}
    said = fillers() | operative() | stems(*told["sizes"].values()) | {*told["whole"]}
    return _SHORT.fullmatch(name) is not None and not words & said


def _phrase(node: ast.Call) -> str:
    name = _function(node)
    if name == "kl_div":
        raise unread("F.kl_div takes log-probabilities; write the formula, or say KL divergence of logits")
    meant = vocabulary()["formulas"]["meant"]
    return str(meant.get(_literal(node.func), meant.get(name, re.sub(r"(?<=[a-z])_", " ", name))))


def _entry(node: ast.Call) -> Operation | None:
    """The entry that a call names."""
    if _function(node) in ("diag", *_APART):
        return operations()["abs"]  # a function of elements, which is written apart
    found = names().get(joined(_phrase(node)), ())
    return next((operations()[one.operation] for one in sorted(found, key=lambda one: one.option != "")), None)


def _elements(node: ast.AST) -> set[str]:
    """The names of which elements are left, not reduced, in a part of a formula."""
    if isinstance(node, ast.Name):
        return {node.id}
    entry = _entry(node) if isinstance(node, ast.Call) and len(node.args) == 1 else None
    is_reduced = entry is not None and entry.kind == "reduce"
    return set() if is_reduced else set().union(*map(_elements, ast.iter_child_nodes(node)))


def _has_product(node: ast.AST) -> bool:
    return any(isinstance(one, ast.MatMult) for one in ast.walk(node))


def _operands(node: ast.AST) -> list[ast.expr]:
    """What an operation on elements has as operands; [] where it is none."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=one):
            return [one]
        case ast.BinOp(op=op, left=left, right=right) | ast.Compare(ops=[op], left=left, comparators=[right]):
            return [left, right] if isinstance(op, _SIGNS) else []
        case ast.Call(args=[_, _, *_]) if _function(node) in _APART:
            return node.args
    return []


def _uses(body: ast.expr) -> Iterator[tuple[str, str]]:
    """Names and how each is used: as an operand, as a factor, in a product, under a root, dividing."""
    said = letters(body)
    elementwise, usual = "x" in said and not _has_product(body), vocabulary()["formulas"]["usual"].keys()
    for node in ast.walk(body):
        parts = _operands(node)
        both = [one.id if isinstance(one, ast.Name) else "" for one in parts]
        yield from ((name, "operand") for name in both)
        match node:
            case ast.BinOp(op=ast.Mult()) if elementwise:
                yield from ((name, "scales") for name in both)
                yield from ((name, "gains") for name in both if re.search("mean|var|std", _text(body)))
            case ast.BinOp(op=ast.Add(), left=left):
                with_vector = both if elementwise and "a" not in said else both[1:] if _has_product(left) else []
                yield from ((name, "shifts") for name in with_vector)
            case ast.BinOp(op=ast.Div(), left=left, right=right) if letters(right) <= usual | _COUNTED:
                yield from ((name, "divides") for name in letters(right))
                if _has_product(left) or not _elements(left) - usual:
                    yield from ((name, "counts") for name in letters(right))
            case ast.BinOp(op=ast.Pow(), right=right) if _literal(right) in (0.5, -0.5):
                yield both[0], "root"
            case ast.Attribute(value=ast.Name(id=name)):
                yield name, "@"
            case ast.BinOp(op=ast.MatMult()):
                yield from ((name, "@") for name in both)
            case ast.Call() if _function(node) in ("sqrt", "rsqrt") and len(letters(node)) == 1:
                yield min(letters(node)), "root"
            case ast.Call(args=[ast.Name(id=name), _, _]) if _function(node) == "where":
                yield name, "condition"


# -- writing --


def write_formula(formula: Formula, builder: Builder, given: Mapping[str, TensorSpec]) -> Value:
    """The value of a formula; its tensors are in the order in which they are said. `given` have known shapes."""
    try:
        return _Writer(formula, builder, given).value()
    except IndexError:
        raise unread(f'the dimensions of the tensors in "{formula.text}" cannot be told') from None


class _Writer:
    """Walks the tree once: writes PyTorch and gives every name its dimensions."""

    def __init__(self, formula: Formula, builder: Builder, given: Mapping[str, TensorSpec]) -> None:
        self.formula, self.body, self.builder, self.given = formula, formula.body, builder, given
        self.letters, self.has_product = letters(self.body), _has_product(self.body)
        self.is_matrix = self.has_product or any(isinstance(one, ast.Attribute) for one in ast.walk(self.body))
        if len({one.lower() for one in self.letters}) < len(self.letters) and not self.has_product:
            raise unread(f'"{formula.text}" has names that differ in case only, which could be one tensor or two')
        uses = list(_uses(self.body))
        used = {one: {"anyhow", *(use for name, use in uses if name == one)} for one in self.letters}
        self.roles = {one: self._role(one, some) for one, some in used.items()}
        self.values: dict[str, Value] = {}
        self.sizes: dict[str, str] = {}
        self.inner = ""  # the dimension that the last product sums over
        self.within = 0  # how many operations over a dimension stand around
        self.first: Dimensions = ()
        self.keeps = bool(self._tensors(_elements(self.body)))

    def _role(self, name: str, uses: set[str]) -> str:
        """Whether a name is a number, a size, a vector, a mask, or a tensor like the first one."""
        if "condition" in uses:
            made = self.given.get(name)
            if made.dtype is not DType.BOOL if made else name not in ("mask", "cond", "condition"):
                raise unread(f'"{self.formula.text}" has a condition that is no comparison and no mask')
            return "mask"
        if name == "pi" or name in self.formula.numbers:
            return "number"
        if name in self.given:
            return "tensor"
        for role, known in vocabulary()["formulas"]["roles"].items() if "@" not in uses else ():
            if not any(name in known.get(use, "").split() for use in uses):
                continue
            if name == "beta" and "gamma" in self.letters:
                return "vector"
            if role != "unclear":
                return str(role)
            if name not in self.builder.renamed.values() and ("x" in self.letters or self.has_product):
                raise unread(
                    f'whether {name} in "{self.formula.text}" is a number or a tensor cannot be told; '
                    "write alpha for a number, or y and z for tensors"
                )
        return "tensor"

    def value(self) -> Value:
        builder, body = self.builder, self.body
        entry = _entry(body) if isinstance(body, ast.Call) else None
        simple = isinstance(body, ast.Call) and all(isinstance(one, (ast.Name, ast.Constant)) for one in body.args)
        if self.is_matrix:
            self.first = (builder.dimension("m"), builder.dimension("k"))
        elif not (entry and simple and entry.arguments[0].dimensions != ("...",)):
            self.first = builder.generic()
        found = self._value(body, self.first)
        order = re.findall(r"[A-Za-z]\w*", _text(body))
        builder.tensors.sort(key=lambda one: order.index(one.name) if one.name in order else len(order))
        vectors = [one for one in builder.tensors if self.roles.get(one.name) == "vector"]
        if len(vectors) == len(builder.tensors):
            raise unread(f'"{self.formula.text}" has no tensor')
        if builder.tensors[0] in vectors:
            first = next(one for one in builder.tensors if one not in vectors)
            builder.tensors.sort(key=lambda one: one is not first)
            builder.assume(f"the arguments are {', '.join(one.name for one in builder.tensors)} in this order")
        for one in vectors:
            builder.assume(f"{one.name} is a vector with one element per column")
        for name in (one for one in builder.params if self.roles.get(one) == "number"):
            builder.assume(f"{name} is a number, {builder.params[name]} where none is given")
        return replace(found, code=self._with_sizes(found.code), dimensions=builder.settled(found.dimensions))

    def _with_sizes(self, code: str) -> str:
        """The code with sizes of tensors in place of the names of sizes."""
        first, axis = self.builder.tensors[0].name, self.formula.axis
        for name, dimension in self.sizes.items():
            (wanted,) = self.builder.settled((dimension,))
            have = ((one.name, self.builder.settled(one.dimensions)) for one in self.builder.tensors)
            owner, dimensions = next(one for one in have if wanted in one[1])
            size = f"{owner}.shape[{dimensions.index(wanted) - len(dimensions)}]"
            what = f"{size}, which the product sums over"
            if not self.has_product:
                what = "the number of elements of each row, along the last dimension"
                if axis is not None:
                    size, what = f"{first}.shape[{axis[0]}]", f"the size of dimension {axis[0]}"
                elif name == "n" and re.search(r"\.(?:sum|mean)\(\)", self.formula.text):
                    size, what = f"{first}.numel()", "the number of all elements"
            code = re.sub(rf"(?<![\w.]){name}(?!\w)", size, code)
            self.builder.assume(f"{name} is {what}")
        return code

    # -- nodes --

    def _value(self, node: ast.expr, wanted: Dimensions) -> Value:
        function = _function(node) if isinstance(node, ast.Call) else ""
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return Value(repr(value), ())
            case ast.Name(id=name):
                return self._name(name, wanted)
            case ast.Attribute(attr="T", value=inside):
                found = self._value(inside, wanted[::-1])
                return Value(f"{found.atom}.T{'.contiguous()' * (node is self.body)}", found.dimensions[::-1])
            case ast.BinOp(op=ast.MatMult(), left=left, right=right):
                return self._product(left, right, wanted)
            case ast.Call(args=[one]) if function == "diag":
                found = self._value(one, wanted[:1])
                return Value(f"torch.diag({found.code})", found.dimensions * 2)
            case ast.Call(args=[one]) if function in ("sqrt", "rsqrt") and not self._tensors(letters(one)):
                exponent = ast.Constant(0.5 if function == "sqrt" else -0.5)
                return self._elementwise(ast.BinOp(one, ast.Pow(), exponent), [one, exponent], wanted)
            case ast.Call(args=[_, *_]) if function not in _APART:
                return self._operation(node, wanted)
        parts = _operands(node)
        if not parts:
            raise unread(f'"{_text(node)}" in the formula is not read')
        return self._elementwise(node, parts, wanted)

    def _tensors(self, said: set[str]) -> set[str]:
        return {one for one in said if self.roles[one] not in ("number", "size")}

    def _name(self, name: str, wanted: Dimensions) -> Value:
        role = self.roles[name]
        if name == "pi":
            return Value(repr(math.pi), ())
        if role == "size":
            self.sizes.setdefault(name, self.inner or (wanted if self.is_matrix else self.first or wanted)[-1])
            return Value(name, ())
        if role == "number":
            self.builder.params.setdefault(name, (vocabulary()["formulas"]["usual"] | self.formula.numbers)[name])
            return Value(name, ())
        if name not in self.values:
            if name in self.given and len(self.given[name].shape) == 1 < len(wanted):
                self.roles[name] = role = "vector"
            dimensions = wanted[-1:] if role == "vector" else wanted
            self.builder.renamed.setdefault(name, name)
            argument = Argument(name, dimensions, DType.BOOL if role == "mask" else None)
            self.values[name] = self.builder.tensor(argument, dimensions)
        return self.values[name]

    def _product(self, left: ast.expr, right: ast.expr, wanted: Dimensions) -> Value:
        inner = "k"
        if len(wanted) > 1:
            inner = wanted[1] if isinstance(left, ast.Name) else self.builder.dimension("k")
        one = self._value(left, (wanted[0], inner))
        columns = self.builder.dimension("n")
        other = self._value(right, (one.dimensions[-1], columns))
        if len(one.dimensions) != 2 or len(other.dimensions) != 2:
            raise unread("a product in a formula is of two matrices")
        self.builder.join(one.dimensions[-1:], other.dimensions[:1])
        self.inner = one.dimensions[1]
        left, right = (ast.parse(side.code, mode="eval").body for side in (one, other))
        code = ast.unparse(ast.BinOp(left, ast.MatMult(), right))
        return Value(code, (one.dimensions[0], other.dimensions[1]))

    def _elementwise(self, node: ast.expr, parts: list[ast.expr], wanted: Dimensions) -> Value:
        """An operation on elements that broadcast. What is more than a name says the dimensions of the others."""
        values: dict[int, Value] = {}
        found: Dimensions = ()
        for place in sorted(range(len(parts)), key=lambda one: isinstance(parts[one], (ast.Name, ast.Constant))):
            one = values[place] = self._value(parts[place], wanted)
            if len(one.dimensions) >= len(wanted):
                padded = wanted if len(one.dimensions) == len(wanted) else one.dimensions
                wanted = tuple(w if d == "1" else d for d, w in zip(one.dimensions, padded, strict=True))
            self.builder.join(found, one.dimensions)
            long, short = sorted((found, one.dimensions), key=len, reverse=True)
            short = ("1",) * (len(long) - len(short)) + short
            found = tuple(b if a == "1" else a for a, b in zip(long, short, strict=True))
        first, *others = (values[place] for place in range(len(parts)))
        sides = [ast.parse(one.code, mode="eval").body for one in (first, *others)]
        match node:
            case ast.UnaryOp(op=sign):
                return Value(ast.unparse(ast.UnaryOp(sign, *sides)), found)
            case ast.BinOp(op=sign):
                return Value(ast.unparse(ast.BinOp(sides[0], sign, sides[1])), found)
            case ast.Compare(ops=signs):
                return Value(ast.unparse(ast.Compare(sides[0], signs, sides[1:])), found)
        assert isinstance(node, ast.Call)
        function, bound = _function(node), {"maximum": "min", "minimum": "max"}.get(_function(node))
        number = next((one for one in (first, *others) if not one.dimensions), None)
        if bound and number and found:  # the greater of x and 0 is x that is clamped from below
            tensor = next(one for one in (first, *others) if one.dimensions)
            return Value(f"torch.clamp({tensor.code}, {bound}={number.code})", found)
        return Value(f"torch.{function}({', '.join(one.code for one in (first, *others))})", found)

    # -- operations of the catalogue --

    def _operation(self, node: ast.Call, wanted: Dimensions) -> Value:
        subject, *tensors = (one for one in node.args if _literal(one) is None)
        step = self._step(node)
        if len(tensors) + 1 < len(step.chosen.arguments) and "vector" in self.roles.values():
            step.options += [one.name for one in step.operation.options if one.name == "plain"]  # it has a weight
        operation, entry, axis = step.chosen, step.operation, step.axis
        own = [one.name for one in operation.arguments]
        reduces = entry.kind == "reduce"
        if axis is None and entry.goes_over:
            is_method = "." in str(_literal(node.func)) and entry.axis != "last"
            again = not self._tensors(_elements(subject))  # of what has one element per row: mean(logsumexp(x))
            whole = reduces and node is self.body and entry.name == "row_mean" and len(self._tensors(self.letters)) > 1
            axis = () if reduces and (is_method or again or whole) else self.formula.axis
        first = None
        is_new = isinstance(subject, ast.Name) and subject.id not in self.values
        if not is_new or operation.arguments[0].dimensions == ("...",) or (len(own) == 1 and wanted):
            inside = entry.goes_over and axis != ()
            self.within += inside
            first = self._value(subject, wanted)
            self.within -= inside
            if not first.dimensions:
                raise unread(f'"{_text(node)}" is a function of a number')
        if len(own) <= len(tensors) or not all(isinstance(one, ast.Name) for one in tensors):
            takes = f"{operation.says}, which takes {', '.join(own)}"
            raise unread(f'"{_text(node)}" has other tensors than {takes}')
        called = [one.id if isinstance(one, ast.Name) else "" for one in (subject, *tensors)]
        usual = [(one, vocabulary()["tensor_names"].get(name, one)) for one, name in zip(own, called, strict=False)]
        if any(meant != one and meant in own[: len(called)] for one, meant in usual):
            raise unread(f'"{self.formula.text}" has its tensors in another order than {", ".join(own)}')
        before = self.builder.renamed
        parts = {one: before.get(name, name) for one, name in zip(own, called, strict=False) if name}
        self.builder.renamed = before | parts
        keeps = reduces and axis is None and (self.keeps or bool(self.within))
        if keeps:  # a statistic that keeps its dimension, to broadcast with the tensor that it is of
            operation = replace(operation, code=operation.code.replace("{dim}", "{kept}"), gives=None, kind="row")
        others = tuple(map(self.values.get, called[1:]))
        found = self.builder.apply(operation, first, step.numbers, axis, "", others)
        self.builder.renamed = before
        for one in self.builder.tensors:
            self.values.setdefault(one.name, Value(one.name, one.dimensions))
        if reduces and axis is None:
            self.builder.assume(f"{entry.says} in the formula is that of each row, along the last dimension")
        return replace(found, dimensions=(*found.dimensions[:-1], "1")) if keeps and found.dimensions else found

    def _step(self, node: ast.Call) -> Step:
        """The operation of a call. Its numbers, dimensions and options are read as words are."""
        entry, phrase = _entry(node), _phrase(node)
        assert entry is not None
        places = [*(entry.calls or entry.bare)]
        numbers = [one for one in node.args if _literal(one) is not None]
        said = [f"{places.pop(0) if places else 'dim'}={_text(one)}" for one in numbers]
        said += [f"{str(one.arg).removeprefix('is_')}={_text(one.value)}" for one in node.keywords]
        text = f"{phrase} with {', '.join(said)}" if said else phrase
        if not said and not any(one.option for one in names()[joined(phrase)]):
            return Step(entry)
        request = read_tokens(text, tokens(text), {})
        (step,) = request.steps if len(request.steps) == 1 else (None,)
        if step is None or request.sizes or request.shapes or not isinstance(step.axis, (tuple, type(None))):
            raise unread(f'"{_text(node)}" in "{self.formula.text}" is not read')
        return step


__all__ = ["Formula", "letters", "read_formula", "write_formula"]
