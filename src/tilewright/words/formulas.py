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
from tilewright.words.text import joined, plain, stem, stems

_NUMBERS = {"alpha": "2.0", "beta": "0.5", "eps": "1e-5", "temperature": "0.7", "tau": "0.7", "mu": "0.5"}
_NUMBERS |= {"sigma": "2.0", "scale": "0.125"}
_DIVISORS = {"t": "0.7", "T": "0.7", "s": "2.0"}
_SIZES = frozenset(("d", "n", "d_k", "dk"))
_VECTORS = frozenset(("bias", "weight", "gamma"))
_UNCLEAR = {"*": "acdknst", "/": "cdkmn", "+": "cdknst", "-": "cdkmnst", "**": "cdknpst", ">": "cdknst"}
_SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.MatMult: "@"}
_SIGNS |= {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<="}
_LEVELS = {">": 0, ">=": 0, "<": 0, "<=": 0, "+": 1, "-": 1, "*": 2, "/": 2, "@": 2, "**": 4}
_MODULES = ("torch", "F", "nn", "nn.functional", "torch.nn.functional")
_BOUNDS = {"max": "min", "maximum": "min", "min": "max", "minimum": "max"}  # max(x, 0) is a clamp with min=0
_PAIRED = {"matmul": "@", "mm": "@", "pow": "**", **dict.fromkeys(_BOUNDS, ">")}  # calls of two operands
_ENTRIES = {"norm": "row_norm", "F.binary_cross_entropy": "bce_probs"}  # as PyTorch means them
_SHORT = re.compile(r"[a-zA-Z]{1,2}(_?\d)?|[wWx][a-z_]{1,2}|[WX]_?\w{1,5}|pred\w*|[a-z]+(_[a-z\d]+)+")
_TARGET = re.compile(r"([A-Za-z]\w*) ?= ?(?!=)")
_REWRITES = (
    *((r" squared\b", "**2"), (" plus ", " + "), (" minus ", " - "), (" times ", " * ")),
    (r"\|([^|]+)\|", r"abs(\1)"),
    (r"(?<![\w.])([A-Z])([A-Z])(?=\^T)", r"\1 @ \2"),
    (r"(\^T\b(?:[^@]*[\w)])?) (?=[A-Za-z](?:\^T)?$|[A-Za-z](?:\^T)? |[A-Z]\b)(?<![@*/+,-] )", r"\1 @ "),
    (r"(?<=[\w)]) (?=[A-Za-z]\^T\b)(?<![@*/+,-] )", " @ "),
    (r"(?<=[\w)])\^T\b|\.t\(\)|\.transpose\(-1, -2\)|\.transpose\(-2, -1\)", ".T"),
    (r"\^", "**"),
    (r"(?<![\w.])e\*\*(\w+|\((?:[^()]|\([^()]*\))*\))", r"exp(\1)"),
    (r"(?<![\w.])(\d+(?:\.\d+)?) ?(?!e[-+]?\d)([a-zA-Z](?![\w(]))", r"\1*\2"),
    (r"^([a-z0-9 ]*?[a-z0-9]) of (\([^()]*\))$", r"\1\2"),
    (r"\b([a-z][a-z0-9]*) (?=(?:[a-z0-9]+ )*[a-z0-9]+\()", r"\1_"),
)


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
        found = [type(getattr(one, "op", None)).__name__.lower() for one in ast.walk(self.body)]
        calls = [_function(one).lower() if isinstance(one, ast.Call) else "" for one in ast.walk(self.body)]
        both = [call or sign for call, sign in zip(calls, found, strict=True) if call or sign != "nonetype"]
        return "_".join(dict.fromkeys(both[::-1][:4])) or "transpose"

    @property
    def letters(self) -> set[str]:
        return _letters(self.body)

    def substituted(self, defined: Mapping[str, Formula]) -> Formula | None:
        """The formula with definitions in place of their names; None where one needs itself."""

        class Instead(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.AST:
                return copy.deepcopy(defined[node.id].body) if node.id in defined else node

        body = copy.deepcopy(self.body)
        for _ in defined:
            body = Instead().visit(body)
        changed = self.letters & defined.keys()
        text = ast.unparse(body) if changed else self.text
        return None if _letters(body) & defined.keys() else replace(self, text=text, body=body)


# -- reading --


def read_formula(words: str, known: Collection[str] = ()) -> Formula | None:
    """The formula that the words are, politeness around it apart; None where they are none. `known` are its names."""
    text = " ".join(plain(words).strip(" .!,").split())
    along = re.search(r" (?:over|along) (?:dim|axis) (-?\d)$", text)
    if along:
        found = read_formula(text[: along.start()], known)
        return replace(found, axis=(int(along[1]),)) if found and re.search(r"(?:mean|sum)\(", words) else None
    parts = text.split(" ")
    last = len(parts)
    while last and len(parts[last - 1]) > 1 and stem(parts[last - 1].lower()) in fillers():
        last -= 1
    for skipped, part in enumerate(parts[:last]):
        found = _parsed(" ".join(parts[skipped:last]), known)
        if found is not None or stem(part.lower().strip(",:")) not in fillers():
            return found
    return None


def _parsed(text: str, known: Collection[str]) -> Formula | None:
    target = _TARGET.match(text)
    source = text[target.end() :] if target else text
    for pattern, instead in _REWRITES:
        source = re.sub(pattern, instead, source)
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    tight = set(re.findall(r"[a-z]{2,}(?=[-/][a-z]{2})|(?<=[a-z][-/])[a-z]{2,}", source)) - {*known}  # compound words
    is_formula = not tight & _letters(body) and _is_formula(body, known)
    return Formula(text.strip(), body, target[1] if target else "") if is_formula else None


def _is_formula(body: ast.expr, known: Collection[str]) -> bool:
    """Whether its functions are known and its names may be tensors, numbers and sizes."""
    if not isinstance(body, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Compare, ast.Attribute)):
        return False
    if isinstance(body, ast.Attribute) and body.attr != "T":
        return False
    if not all(_entry(one)[0] for one in ast.walk(body) if isinstance(one, ast.Call)):
        return False
    tensors = {one for one in _letters(body) if one in known or _may_be_tensor(one)}
    return bool(tensors) and _letters(body) - tensors <= {"pi", *_VECTORS, *_NUMBERS, *_SIZES}


@cache
def _may_be_tensor(name: str) -> bool:
    """Whether a name stands for a tensor: the catalogue has such tensors, or it is short and no word."""
    if name in _NUMBERS or any(len(operations()[one.operation].arguments) < 2 for one in names().get(joined(name), ())):
        return len(name) == 1
    told = vocabulary()
    own = {one.name for operation in operations().values() for one in operation.arguments}
    if name in own | {*told["tensors"].split(), *told["tensor_names"]}:
        return True
    words = {stem(part) for part in name.lower().split("_") if len(part) > 1}
    said = fillers() | operative() | stems(*told["sizes"].values()) | {*told["whole"]}
    return _SHORT.fullmatch(name) is not None and not words & said


def _function(node: ast.Call) -> str:
    return ast.unparse(node.func).rsplit(".", 1)[-1]


def _is_method(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in _MODULES


def _arguments(node: ast.Call) -> list[ast.expr]:
    """The arguments of a call; a method's first one is its object."""
    return [*([node.func.value] if _is_method(node) else []), *node.args]  # type: ignore[attr-defined]


def _entry(node: ast.Call) -> tuple[Operation | None, tuple[str, ...]]:
    """The entry that a call names, and the option."""
    name, called = _function(node), ast.unparse(node.func)
    if name == "kl_div":
        raise unread("F.kl_div takes log-probabilities; write the formula, or say KL divergence of logits")
    if name in ("where", "diag", "maximum", "minimum"):
        return operations()["abs"], ()  # a function of elements, which is written apart
    if entry := _ENTRIES.get(called, _ENTRIES.get(name)):
        return operations()[entry], ()
    said = re.sub(r"(?<=[a-z])_", " ", name)
    along = [f"torch {said}"] if any(isinstance(_literal(one), int) for one in node.args) else []  # gather(x, 1, i)
    found = next((names()[key] for key in map(joined, (*along, said)) if key in names()), ())
    chosen = next((one for one in found if not one.option), found[0] if found else None)
    if chosen is None:
        return None, ()
    return operations()[chosen.operation], (chosen.option,) if chosen.option else ()


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _letters(node: ast.AST) -> set[str]:
    """The names in a part of a formula, without those of functions and modules."""
    functions: set[int] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            functions |= {id(part) for part in ([one.func] if _is_method(one) else ast.walk(one.func))}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and id(one) not in functions}


def _pairs(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """The signs and operands of the operations on two operands in a part of a formula; every comparison is ">"."""
    for one in ast.walk(node):
        if isinstance(one, ast.BinOp):
            yield _SIGNS.get(type(one.op), ""), one.left, one.right
        elif isinstance(one, ast.Compare):
            yield ">", one.left, one.comparators[0]
        elif isinstance(one, ast.Call) and _function(one) in _PAIRED and len(_arguments(one)) == 2:
            if _function(one) not in _BOUNDS or not _is_reduced(one):
                yield _PAIRED[_function(one)], *_arguments(one)  # type: ignore[misc]


def _is_reduced(node: ast.Call) -> bool:
    """Whether max and min with a second argument are of one tensor over a dimension: x.max(1), torch.max(x, 0)."""
    return isinstance(node.func, ast.Attribute) and _literal(_arguments(node)[1]) is not None


def _names(*nodes: ast.expr) -> set[str]:
    plain = (one.operand if isinstance(one, ast.UnaryOp) else one for one in nodes)
    return {one.id for one in plain if isinstance(one, ast.Name)}


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
        self.letters, self.pairs = formula.letters, list(_pairs(formula.body))
        turned = [one.value for one in ast.walk(self.body) if isinstance(one, ast.Attribute) and one.attr == "T"]
        self.has_product = any(sign == "@" for sign, _, _ in self.pairs)
        self.is_matrix = self.has_product or bool(turned)
        if len({one.lower() for one in self.letters}) < len(self.letters) and not self.has_product:
            raise unread(f'"{formula.text}" has names that differ in case only, which could be one tensor or two')
        self.operands = _names(*turned, *(one for sign, *both in self.pairs if sign == "@" for one in both))
        self.numbers = formula.numbers | {
            one: _NUMBERS[one] for one in _NUMBERS if one != "beta" or "gamma" not in self.letters
        }
        self.numbers = {one: text for one, text in self.numbers.items() if one in self.letters - given.keys()}
        self.roles = {one: self._role(one) for one in self.letters - {"pi"}}
        self.numbers |= {one: _DIVISORS[one] for one, role in self.roles.items() if role == "divisor"}
        for sign, left, right in self.pairs:
            self._refuse_unclear(sign, left, right)
        self.values: dict[str, Value] = {}
        self.sizes: dict[str, str] = {}
        self.inner = ""  # the dimension that the last product sums over
        self.within = 0  # how many operations over a dimension stand around
        self.first: Dimensions = ()
        self.keeps = self._has_elements(self.body)

    def value(self) -> Value:
        builder, body = self.builder, self.body
        entry = _entry(body)[0] if isinstance(body, ast.Call) else None
        names_only = isinstance(body, ast.Call) and all(isinstance(one, (ast.Name, ast.Constant)) for one in body.args)
        if self.is_matrix:
            self.first = (builder.dimension("m"), builder.dimension("k"))
        elif not (entry and names_only and entry.arguments[0].dimensions != ("...",)):
            self.first = builder.generic()
        found = self._value(body, self.first)
        nodes = sorted((one for one in ast.walk(body) if isinstance(one, ast.Name)), key=lambda n: n.col_offset)
        text = [one.id for one in nodes]
        builder.tensors.sort(key=lambda one: text.index(one.name) if one.name in text else len(text))
        first = next((one for one in builder.tensors if self.roles.get(one.name) != "vector"), None)
        if first is None:
            raise unread(f'"{self.formula.text}" has no tensor')
        if builder.tensors[0] is not first:
            builder.tensors.sort(key=lambda one: one is not first)
            builder.assume(f"the arguments are {', '.join(one.name for one in builder.tensors)} in this order")
        for one in builder.tensors:
            builder.assume(f"{one.name} is a vector with one element per column" * (self.roles.get(one.name) == "vector"))
        for name in (one for one in builder.params if one in self.numbers):
            builder.assume(f"{name} is a number, {builder.params[name]} where none is given")
        return replace(found, code=self._with_sizes(found.code), dimensions=builder.settled(found.dimensions))

    # -- what a name stands for --

    def _role(self, name: str) -> str:
        """Whether a name is a number, a divisor (a number too), a size, a vector, or a tensor like the first one."""
        if name in self.given:
            ranks = [len(one.shape) for key, one in self.given.items() if key in self.letters]
            return "vector" if len(self.given[name].shape) == 1 < max(ranks) else "tensor"
        if name in self.numbers:
            return "number"
        if name not in self.operands:
            divisors = [_letters(right) for sign, _, right in self.pairs if sign == "/"]
            if name in _DIVISORS and any(name in one <= {*self.numbers, *_DIVISORS, *_SIZES} for one in divisors):
                return "divisor"
            if name in _SIZES and self._is_size(name):
                return "size"
            if name in _VECTORS or (name == "beta" and "gamma" in self.letters) or self._is_vector(name):
                return "vector"
        return "tensor"

    def _is_size(self, name: str) -> bool:
        """Whether a root is taken of it, or a product or a sum is divided by it."""
        calls = [one for one in ast.walk(self.body) if isinstance(one, ast.Call)]
        if any(_function(one) in ("sqrt", "rsqrt") and _letters(one) == {name} for one in calls):
            return True
        for sign, left, right in self.pairs:
            if sign == "**" and ast.unparse(right) in ("0.5", "-0.5") and _names(left) == {name}:
                return True
            summed = any(one == "@" for one, _, _ in _pairs(left)) or not self._has_elements(left)
            if sign == "/" and name in _letters(right) <= _SIZES and summed:
                return True
        return False

    def _is_vector(self, name: str) -> bool:
        """Whether it is w that multiplies x, g that does so in a normalisation, or b that is added."""
        gains = "wg" if re.search(r"mean|var|std|norm", self.formula.text) else "w"
        for sign, left, right in self.pairs:
            if sign == "+" and name == "b" and name in _names(right) and any(one == "@" for one, _, _ in _pairs(left)):
                return True
            usual = gains if sign == "*" else "b" if sign == "+" and "a" not in self.letters else ""
            if "x" in self.letters and not self.has_product and name in usual and name in _names(left, right):
                return True
        return False

    def _refuse_unclear(self, sign: str, left: ast.expr, right: ast.expr) -> None:
        """Refuses a letter that may be a number or a tensor."""
        found = _names(left, right) if sign in "+*" else _names(right)
        found = {one for one in found if one in _UNCLEAR.get(sign, "") and self.roles.get(one) == "tensor"}
        if "x" not in _names(left, right):
            found -= found if sign in "+-" else set("abc")
        found -= {*self.operands, *self.builder.renamed.values(), *self.given}
        if found and ("x" in self.letters or self.has_product):
            raise unread(
                f'whether {min(found)} in "{self.formula.text}" is a number or a tensor cannot be told; '
                "write alpha for a number, or y and z for tensors"
            )

    def _has_elements(self, node: ast.AST) -> bool:
        """Whether the value has elements of a tensor that were not reduced."""
        if isinstance(node, ast.Call):
            operation, _ = _entry(node)
            reduces = operation is not None and operation.kind == "reduce" and len(_arguments(node)) == 1
            return not reduces and any(map(self._has_elements, _arguments(node)))
        if isinstance(node, ast.Name):
            return node.id not in self.numbers and getattr(self, "roles", {}).get(node.id) != "size"
        return any(map(self._has_elements, ast.iter_child_nodes(node)))

    def _with_sizes(self, code: str) -> str:
        """The code with sizes of tensors in place of the names of sizes."""
        first = self.builder.tensors[0].name
        for name, dimension in self.sizes.items():
            (wanted,) = self.builder.settled((dimension,))
            have = [(one.name, self.builder.settled(one.dimensions)) for one in self.builder.tensors]
            owner, dimensions = next((one for one in have if wanted in one[1]))
            size = f"{owner}.shape[{dimensions.index(wanted) - len(dimensions)}]"
            what = "the number of elements of each row, along the last dimension"
            if self.has_product:
                what = f"{size}, which the product sums over"
            elif self.formula.axis is not None:
                size, what = f"{first}.shape[{self.formula.axis[0]}]", f"the size of dimension {self.formula.axis[0]}"
            elif name == "n" and re.search(r"\.(?:sum|mean)\(\)", self.formula.text):
                size, what = f"{first}.numel()", "the number of all elements"
            code = re.sub(rf"(?<![\w.]){name}(?!\w)", size, code)
            self.builder.assume(f"{name} is {what}")
        return code

    # -- nodes --

    def _value(self, node: ast.expr, wanted: Dimensions) -> Value:
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return Value(repr(value), ())
            case ast.Name(id=name):
                return self._name(name, wanted)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found = self._value(operand, wanted)
                return Value(f"-{found.operand(3)}", found.dimensions, 3)
            case ast.Attribute(attr="T", value=inside):
                found = self._value(inside, wanted[::-1])
                return Value(f"{found.atom}.T{'.contiguous()' * (node is self.body)}", found.dimensions[::-1])
            case ast.BinOp(op=ast.MatMult(), left=left, right=right):
                return self._product(left, right, wanted)
            case ast.BinOp(op=op, left=left, right=right) | ast.Compare(ops=[op], left=left, comparators=[right]) if (
                sign := _SIGNS.get(type(op))
            ):
                return self._pair(left, sign, right, wanted)
            case ast.Call():
                return self._call(node, wanted)
        raise unread(f'"{ast.unparse(node)}" in the formula is not read')

    def _name(self, name: str, wanted: Dimensions, dtype: DType | None = None) -> Value:
        role = self.roles.get(name)
        if name == "pi":
            return Value(repr(math.pi), ())
        if role == "size":
            self.sizes.setdefault(name, self.inner or (wanted if self.is_matrix else self.first or wanted)[-1])
            return Value(name, ())
        if role in ("number", "divisor"):
            self.builder.params.setdefault(name, self.numbers[name])
            return Value(name, ())
        if name not in self.values:
            dimensions = wanted[-1:] if role == "vector" else wanted
            self.builder.renamed.setdefault(name, name)
            self.values[name] = self.builder.tensor(Argument(name, dimensions, dtype), dimensions)
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
        return _infix(one, "@", other, (one.dimensions[0], other.dimensions[1]))

    def _pair(self, left: ast.expr, sign: str, right: ast.expr, wanted: Dimensions) -> Value:
        simple = [isinstance(one, (ast.Name, ast.Constant)) for one in (left, right)]
        turned = simple == [True, False]  # what is more than a name says the dimensions of both
        first, second = (right, left) if turned else (left, right)
        one = self._value(first, wanted)
        if len(one.dimensions) == len(wanted):
            wanted = tuple(w if d == "1" else d for d, w in zip(one.dimensions, wanted, strict=True))
        other = self._value(second, wanted if len(wanted) >= len(one.dimensions) else one.dimensions)
        dimensions = self._joined(one, other)
        return _infix(other, sign, one, dimensions) if turned else _infix(one, sign, other, dimensions)

    def _joined(self, *values: Value) -> Dimensions:
        """The dimensions of values that broadcast."""
        found: Dimensions = ()
        for one in values:
            self.builder.join(found, one.dimensions)
            long, short = sorted((found, one.dimensions), key=len, reverse=True)
            padded = ("1",) * (len(long) - len(short)) + short
            found = tuple(two if one == "1" else one for one, two in zip(long, padded, strict=True))
        return found

    # -- calls --

    def _call(self, node: ast.Call, wanted: Dimensions) -> Value:
        name, arguments = _function(node), _arguments(node)
        if name in _BOUNDS and len(arguments) == 2 and not _is_reduced(node):
            return self._extreme(name, *(self._value(one, wanted) for one in arguments))
        match name, arguments:
            case "where", [condition, *results]:
                return self._where(condition, results, wanted)
            case "diag", [one]:
                found = self._value(one, wanted[:1])
                return Value(f"torch.diag({found.code})", found.dimensions * 2)
            case "matmul" | "mm", [one, other]:
                return self._product(one, other, wanted)
            case "pow", [one, other]:
                return self._pair(one, "**", other, wanted)
            case "sqrt" | "rsqrt", [one] if all(self.roles.get(n) not in ("tensor", "vector") for n in _letters(one)):
                return _infix(self._value(one, wanted), "**", Value("0.5" if name == "sqrt" else "-0.5", ()), ())
        return self._operation(node, arguments, wanted)

    def _extreme(self, name: str, one: Value, other: Value) -> Value:
        number, tensor = sorted((one, other), key=lambda value: len(value.dimensions))
        if not tensor.dimensions:
            raise unread(f'"{self.formula.text}" has no tensor')
        if not number.dimensions:
            return Value(f"torch.clamp({tensor.code}, {_BOUNDS[name]}={number.code})", tensor.dimensions)
        function = {"min": "maximum", "max": "minimum"}[_BOUNDS[name]]
        return Value(f"torch.{function}({one.code}, {other.code})", self._joined(one, other))

    def _where(self, condition: ast.expr, results: list[ast.expr], wanted: Dimensions) -> Value:
        if isinstance(condition, ast.Name):
            made = self.given.get(condition.id)
            if made.dtype != DType.BOOL if made else condition.id not in ("mask", "cond", "condition"):
                raise unread(f'"{self.formula.text}" has a condition that is no comparison')
            test = self._name(condition.id, wanted, DType.BOOL)
        elif isinstance(condition, ast.Compare):
            test = self._value(condition, wanted)
        else:
            raise unread(f'"{self.formula.text}" has a condition that is no comparison')
        written = [test, *(self._value(one, wanted) for one in results)]
        return Value(f"torch.where({', '.join(one.code for one in written)})", self._joined(*written))

    def _operation(self, node: ast.Call, arguments: list[ast.expr], wanted: Dimensions) -> Value:
        entry, named = _entry(node)
        assert entry is not None
        subject, *rest = arguments
        numbers, axis, tensors, options = self._settings(node, entry, rest)
        operation = entry.with_options((*named, *options))
        own = [one.name for one in operation.arguments]
        reduces = entry.kind == "reduce"
        if axis is None and entry.goes_over:
            over_all = reduces and isinstance(node.func, ast.Attribute) and entry.axis != "last"
            axis = () if over_all else self.formula.axis
        first = None
        is_new = isinstance(subject, ast.Name) and subject.id not in self.values
        if not (is_new and operation.arguments[0].dimensions != ("...",)) or (len(own) == 1 and wanted):
            self.within += entry.goes_over
            first = self._value(subject, wanted)
            self.within -= entry.goes_over
            if not first.dimensions:
                raise unread(f'"{ast.unparse(node)}" is a function of a number')
        if len(own) <= len(tensors):
            takes = f"{operation.says}, which takes {', '.join(own)}"
            raise unread(f'"{ast.unparse(node)}" has more tensors than {takes}')
        parts = {name: one.id for name, one in zip(own, [subject, *tensors], strict=False) if isinstance(one, ast.Name)}
        usual = {one: vocabulary()["tensor_names"].get(name, one) for one, name in parts.items()}
        if any(meant != one and meant in own[: len(parts)] for one, meant in usual.items()):
            raise unread(f'"{self.formula.text}" has its tensors in another order than {", ".join(own)}')
        before = self.builder.renamed
        self.builder.renamed = {**before, **{one: before.get(name, name) for one, name in parts.items()}}
        keeps = reduces and axis is None and (self.keeps or bool(self.within))
        if keeps:  # a statistic that keeps its dimension, to broadcast with the tensor that it is of
            operation = replace(operation, code=operation.code.replace("{dim}", "{kept}"), gives=None, kind="row")
        found = self.builder.apply(operation, first, numbers, axis, "", tuple(self.values.get(one.id) for one in tensors))
        self.builder.renamed = before
        for one in self.builder.tensors:
            self.values.setdefault(one.name, Value(one.name, one.dimensions))
        if reduces and axis is None:
            self.builder.assume(f"{entry.says} in the formula is that of each row, along the last dimension")
        return replace(found, dimensions=(*found.dimensions[:-1], "1")) if keeps and found.dimensions else found

    def _settings(
        self, node: ast.Call, entry: Operation, rest: list[ast.expr]
    ) -> tuple[dict[str, str], tuple[int, ...] | None, list[ast.Name], list[str]]:
        """What a call says beside its first argument: numbers, dimensions, tensors and options."""
        numbers: dict[str, str] = {}
        axis: tuple[int, ...] | None = None
        tensors: list[ast.Name] = []
        options: list[str] = []
        bare = [*entry.bare]
        said = [("", one) for one in rest] + [(str(one.arg), one.value) for one in node.keywords]
        for key, one in said:
            text, value = ast.unparse(one), _literal(one)
            if isinstance(one, ast.Name) and not key:
                tensors.append(one)
            elif bare and not key and type(value) in (int, float):
                numbers[bare.pop(0)] = text
            elif key in ("dim", "axis") or (not key and (entry.goes_over or entry.axis == "last")):
                axis = (value,) if type(value) is int else value if isinstance(value, tuple) else None
            elif (known := _number_named(entry, key)) and type(value) in (int, float):
                numbers[known] = text
                own = {*entry.numbers, *entry.params}
                options += [o.name for o in entry.options if known in {**o.numbers, **o.params} and known not in own]
            elif (option := _keyword_option(entry, key, text.strip("'\""))) is not None:
                options += filter(None, [option])
            else:
                what = f"{key}={text}" if key else text
                raise unread(f'"{what}" in "{self.formula.text}" is not read as a setting of {entry.says}')
            
        return numbers, axis, tensors, options


def _infix(left: Value, sign: str, right: Value, dimensions: Dimensions) -> Value:
    level = _LEVELS[sign]
    return Value(f"{left.operand(level + (sign == '**'))} {sign} {right.operand(level + 1)}", dimensions, level)


def _number_named(entry: Operation, key: str) -> str:
    """The number of an entry or of its options that a keyword names, or ""."""
    takes = {*entry.numbers, *entry.params}.union(*({*one.numbers, *one.params} for one in entry.options))
    sizes = vocabulary()["sizes"].items()
    role = next((role for role, said in sizes if joined(key) in map(joined, said.split(";"))), key)
    return next((one for one in (key, role, *vocabulary()["settings"].get(role, ())) if one in takes), "")


def _keyword_option(operation: Operation, key: str, text: str) -> str | None:
    """The option that a keyword asks for; "" where it asks for what is done anyway, None where it is not known."""
    if text in ("False", "none", "mean") and key in ("is_causal", "approximate", "reduction", "keepdim"):
        return ""
    wanted = {joined(key.removeprefix("is_")) if text == "True" else joined(text), joined(f"{text} {key}")}
    wanted.add(joined(f"{key} {text}"))
    if key in ("unbiased", "correction"):
        wanted = {"biased"} if text in ("False", "0") else {"unbiased"}
    for one in operation.options:
        if wanted & set(map(joined, one.phrases)) or one.name == text:
            return one.name
    return "" if wanted == {"unbiased"} else None


__all__ = ["Formula", "read_formula", "write_formula"]
