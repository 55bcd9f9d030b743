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
from tilewright.words.reading import Step, read_tokens
from tilewright.words.text import joined, plain, stem, stems
from tilewright.words.tokens import tokens

_USUAL = {"alpha": "2.0", "beta": "0.5", "eps": "1e-5", "temperature": "0.7", "tau": "0.7", "mu": "0.5"}
_USUAL |= {"sigma": "2.0", "scale": "0.125", "t": "0.7", "T": "0.7", "s": "2.0"}  # numbers, where none is given
_ROLES = {  # what a name is, by how it is used; "" is anyhow
    "number": {"": "alpha beta eps temperature tau mu sigma scale", "divides": "t T s"},
    "size": {"root": "d n d_k dk", "counts": "d n d_k dk"},
    "vector": {"": "bias weight gamma", "scales": "w", "gains": "g", "shifts": "b"},
    "unclear": {"*": "d k n s t", "* x": "a c", "/": "d k m n", "/ x": "c", "+ x": "c d k n s t", "- x": "c d k m n s t"}
    | {"**": "d k n p s t", "** x": "c", ">": "d k n s t", "> x": "c"},  # a number or a tensor
}
_SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.MatMult: "@"}
_SIGNS |= {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<="}
_LEVELS = {">": 0, ">=": 0, "<": 0, "<=": 0, "+": 1, "-": 1, "*": 2, "/": 2, "@": 2, "**": 4}
_MODULES = ("torch", "F", "nn", "nn.functional", "torch.nn.functional")
_AS_SIGNS = {"matmul": ast.MatMult, "mm": ast.MatMult, "pow": ast.Pow}
_EXTREMES = {"max": "maximum", "maximum": "maximum", "min": "minimum", "minimum": "minimum"}
_MEANT = {"norm": "l2 norm", "gather": "torch gather", "F.binary_cross_entropy": "bce on probabilities"}
_SHORT = re.compile(r"[a-zA-Z]{1,2}(_?\d)?|[wWx][a-z_]{1,2}|[WX]_?\w{1,5}|pred\w*|[a-z]+(_[a-z\d]+)+")
_TARGET = re.compile(r"([A-Za-z]\w*) ?= ?(?!=)")
_TURNED = r"\^T(?!\w)"
_TURNS = (
    (r"(?<![\w.])([A-Z])([A-Z])(?=\^T)", r"\1 @ \2"),
    (rf"(\w){_TURNED}", r"\1.T"),
    (r"(?<=[\w)]) (?=[A-Za-z](?:\.T)?$|[A-Za-z](?:\.T)? |[A-Z]\b)(?<![@*/+,-] )", " @ "),
)
_REWRITES = (
    *((r" squared\b", "**2"), (" plus ", " + "), (" minus ", " - "), (" times ", " * ")),
    (r"\|([^|]+)\|", r"abs(\1)"),
    (r"\^", "**"),
    (r"\.t\(\)|\.transpose\(-1, -2\)|\.transpose\(-2, -1\)", ".T"),
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
        nodes = [one for one in ast.walk(self.body) if isinstance(one, (ast.Call, ast.BinOp, ast.UnaryOp))]
        found = [_function(one) if isinstance(one, ast.Call) else type(one.op).__name__ for one in nodes[::-1]]
        return "_".join(dict.fromkeys(found[:4])).lower() or "transpose"

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
    while len(parts[-1]) > 1 and stem(parts[-1].lower()) in fillers():
        parts.pop()
        parts = parts or [""]
    for skipped, part in enumerate(parts):
        found = _parsed(" ".join(parts[skipped:]), known)
        if found is not None or stem(part.lower().strip(",:")) not in fillers():
            return found
    return None


def _parsed(text: str, known: Collection[str]) -> Formula | None:
    target = _TARGET.match(text)
    source = text[target.end() :] if target else text
    for pattern, instead in (*(_TURNS if re.search(_TURNED, source) else ()), *_REWRITES):
        source = re.sub(pattern, instead, source)
    try:
        with warnings.catch_warnings(action="ignore"):
            body = _Plain().visit(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return None
    compound = set(re.findall(r"[a-z]{2,}(?=[-/][a-z]{2})|(?<=[a-z][-/])[a-z]{2,}", source)) - {*known}
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
    if not isinstance(body, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Compare, ast.Attribute)):
        return False
    if isinstance(body, ast.Attribute) and body.attr != "T":
        return False
    if not all(_entry(one) for one in ast.walk(body) if isinstance(one, ast.Call)):
        return False
    tensors = {one for one in letters(body) if one in known or _may_be_tensor(one)}
    others = " ".join((*_ROLES["number"].values(), *_ROLES["size"].values(), *_ROLES["vector"].values(), "pi"))
    return bool(tensors) and letters(body) - tensors <= {*others.split()}


@cache
def _may_be_tensor(name: str) -> bool:
    """Whether a name stands for a tensor: the catalogue has such tensors, or it is short and no word."""
    functions = (operations()[one.operation] for one in names().get(joined(name), ()))
    if name in _ROLES["number"][""].split() or any(len(one.arguments) < 2 for one in functions):
        return len(name) == 1
    told = vocabulary()
    own = {one.name for operation in operations().values() for one in operation.arguments}
    if name in own | {*told["tensors"].split(), *told["tensor_names"]}:
        return True
    words = {stem(part) for part in name.lower().split("_") if len(part) > 1}
    said = fillers() | operative() | stems(*told["sizes"].values()) | {*told["whole"]}
    return _SHORT.fullmatch(name) is not None and not words & said


def _phrase(node: ast.Call) -> str:
    name = _function(node)
    if name == "kl_div":
        raise unread("F.kl_div takes log-probabilities; write the formula, or say KL divergence of logits")
    return _MEANT.get(str(_literal(node.func)), _MEANT.get(name, re.sub(r"(?<=[a-z])_", " ", name)))


def _entry(node: ast.Call) -> Operation | None:
    """The entry that a call names."""
    if _function(node) in ("where", "diag", *_EXTREMES.values()):
        return operations()["abs"]  # a function of elements, which is written apart
    found = names().get(joined(_phrase(node)), ())
    return next((operations()[one.operation] for one in sorted(found, key=lambda one: one.option != "")), None)


def _reduces(node: ast.AST) -> bool:
    entry = _entry(node) if isinstance(node, ast.Call) and len(node.args) == 1 else None
    return entry is not None and entry.kind == "reduce"


def _elements(node: ast.AST) -> set[str]:
    """The names of which elements are left, not reduced, in a part of a formula."""
    if isinstance(node, ast.Name):
        return {node.id}
    return set() if _reduces(node) else set().union(*map(_elements, ast.iter_child_nodes(node)))


def _pairs(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """The signs and operands of the operations on two operands in a part of a formula; every comparison is ">"."""
    for one in ast.walk(node):
        if isinstance(one, ast.BinOp):
            yield _SIGNS.get(type(one.op), ""), one.left, one.right
        elif isinstance(one, ast.Compare):
            yield ">", one.left, one.comparators[0]
        elif isinstance(one, ast.Call) and _function(one) in _EXTREMES.values():
            yield ">", one.args[0], one.args[1]


def _names(*nodes: ast.expr) -> set[str]:
    bare = (one.operand if isinstance(one, ast.UnaryOp) else one for one in nodes)
    return {one.id for one in bare if isinstance(one, ast.Name)}


def _has_product(node: ast.AST) -> bool:
    return any(sign == "@" for sign, _, _ in _pairs(node))


def _uses(body: ast.expr) -> Iterator[tuple[str, str]]:
    """Names and how each is used: as an operand, beside x, in a product, under a root, dividing."""
    said = letters(body)
    elementwise = "x" in said and not _has_product(body)
    for sign, left, right in _pairs(body):
        both = _names(left, right)
        for name in both if sign in "+*@" else _names(right):
            yield from ((name, sign), *([(name, f"{sign} x")] if "x" in both - {name} else ()))
            if sign == "*" and elementwise:
                yield from ((name, "scales"), *([(name, "gains")] if re.search("mean|var|std", _text(body)) else ()))
            if sign == "+" and ((elementwise and "a" not in said) or (name in _names(right) and _has_product(left))):
                yield name, "shifts"
        if sign == "/" and all(one in _USUAL or one in _ROLES["size"]["root"].split() for one in letters(right)):
            yield from ((name, "divides") for name in letters(right))
            if _has_product(left) or not _elements(left) - _USUAL.keys():
                yield from ((name, "counts") for name in letters(right))
        if sign == "**" and _literal(right) in (0.5, -0.5):
            yield from ((name, "root") for name in _names(left))
    for one in ast.walk(body):
        if isinstance(one, ast.Attribute):
            yield from ((name, "@") for name in _names(one.value))
        if isinstance(one, ast.Call) and _function(one) in ("sqrt", "rsqrt") and len(letters(one)) == 1:
            yield min(letters(one)), "root"


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
        self.numbers = {one: text for one, text in (_USUAL | formula.numbers).items() if one not in given}
        uses = list(_uses(self.body))
        self.roles = {one: self._role(one, {"", *(use for name, use in uses if name == one)}) for one in self.letters}
        self.values: dict[str, Value] = {}
        self.sizes: dict[str, str] = {}
        self.inner = ""  # the dimension that the last product sums over
        self.within = 0  # how many operations over a dimension stand around
        self.first: Dimensions = ()
        self.keeps = any(self.roles[one] not in ("number", "size") for one in _elements(self.body))

    def _role(self, name: str, uses: set[str]) -> str:
        """Whether a name is a number, a size, a vector, or a tensor like the first one."""
        if name in self.given:
            ranks = [len(one.shape) for key, one in self.given.items() if key in self.letters]
            return "vector" if len(self.given[name].shape) == 1 < max(ranks) else "tensor"
        if name == "pi" or name in self.formula.numbers:
            return "number"
        for role, known in _ROLES.items() if "@" not in uses else ():
            if not any(name in known.get(use, "").split() for use in uses) or (name == "beta" and "gamma" in self.letters):
                continue
            if role != "unclear":
                return role
            if name not in self.builder.renamed.values() and ("x" in self.letters or self.has_product):
                raise unread(
                    f'whether {name} in "{self.formula.text}" is a number or a tensor cannot be told; '
                    "write alpha for a number, or y and z for tensors"
                )
        return "vector" if name == "beta" else "tensor"

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
        first = next((one for one in builder.tensors if self.roles.get(one.name) != "vector"), None)
        if first is None:
            raise unread(f'"{self.formula.text}" has no tensor')
        if builder.tensors[0] is not first:
            builder.tensors.sort(key=lambda one: one is not first)
            builder.assume(f"the arguments are {', '.join(one.name for one in builder.tensors)} in this order")
        for one in builder.tensors:
            builder.assume(f"{one.name} is a vector with one element per column" * (self.roles.get(one.name) == "vector"))
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
                type(op) in _SIGNS
            ):
                return self._pair(left, _SIGNS[type(op)], right, wanted)
            case ast.Call(args=[condition, _, _]) if _function(node) == "where":
                return self._where(condition, [self._value(one, wanted) for one in node.args[1:]], wanted)
            case ast.Call(args=[one]) if _function(node) == "diag":
                found = self._value(one, wanted[:1])
                return Value(f"torch.diag({found.code})", found.dimensions * 2)
            case ast.Call(args=[one, other]) if _function(node) in _EXTREMES.values():
                return self._extreme(_function(node), self._value(one, wanted), self._value(other, wanted))
            case ast.Call(args=[one]) if _function(node) in ("sqrt", "rsqrt") and not self._tensors(one):
                exponent = "0.5" if _function(node) == "sqrt" else "-0.5"
                return _infix(self._value(one, wanted), "**", Value(exponent, ()), ())
            case ast.Call(args=[_, *_]):
                return self._operation(node, wanted)
        raise unread(f'"{_text(node)}" in the formula is not read')

    def _tensors(self, node: ast.AST) -> set[str]:
        return {one for one in letters(node) if self.roles[one] in ("tensor", "vector")}

    def _name(self, name: str, wanted: Dimensions, dtype: DType | None = None) -> Value:
        role = self.roles[name]
        if name == "pi":
            return Value(repr(math.pi), ())
        if role == "size":
            self.sizes.setdefault(name, self.inner or (wanted if self.is_matrix else self.first or wanted)[-1])
            return Value(name, ())
        if role == "number":
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
        one, other = (other, one) if turned else (one, other)
        return _infix(one, sign, other, self._broadcast(one, other))

    def _broadcast(self, *values: Value) -> Dimensions:
        found: Dimensions = ()
        for one in values:
            self.builder.join(found, one.dimensions)
            long, short = sorted((found, one.dimensions), key=len, reverse=True)
            padded = ("1",) * (len(long) - len(short)) + short
            found = tuple(two if one == "1" else one for one, two in zip(long, padded, strict=True))
        return found

    def _extreme(self, function: str, one: Value, other: Value) -> Value:
        number, tensor = sorted((one, other), key=lambda value: len(value.dimensions))
        if not tensor.dimensions:
            raise unread(f'"{self.formula.text}" has no tensor')
        if not number.dimensions:
            bound = "min" if function == "maximum" else "max"
            return Value(f"torch.clamp({tensor.code}, {bound}={number.code})", tensor.dimensions)
        return Value(f"torch.{function}({one.code}, {other.code})", self._broadcast(one, other))

    def _where(self, condition: ast.expr, results: list[Value], wanted: Dimensions) -> Value:
        name = condition.id if isinstance(condition, ast.Name) else ""
        is_bool = self.given[name].dtype is DType.BOOL if name in self.given else name in ("mask", "cond", "condition")
        if not is_bool and not isinstance(condition, ast.Compare):
            raise unread(f'"{self.formula.text}" has a condition that is no comparison')
        test = self._name(name, wanted, DType.BOOL) if name else self._value(condition, wanted)
        written = (test, *results)
        return Value(f"torch.where({', '.join(one.code for one in written)})", self._broadcast(*written))

    # -- operations of the catalogue --

    def _operation(self, node: ast.Call, wanted: Dimensions) -> Value:
        subject, *tensors = (one for one in node.args if _literal(one) is None)
        step = self._step(node)
        operation, entry, axis = step.chosen, step.operation, step.axis
        own = [one.name for one in operation.arguments]
        reduces = entry.kind == "reduce"
        if axis is None and entry.goes_over:
            over_all = reduces and "." in str(_literal(node.func)) and entry.axis != "last"
            axis = () if over_all else self.formula.axis
        first = None
        is_new = isinstance(subject, ast.Name) and subject.id not in self.values
        if not is_new or operation.arguments[0].dimensions == ("...",) or (len(own) == 1 and wanted):
            self.within += entry.goes_over
            first = self._value(subject, wanted)
            self.within -= entry.goes_over
            if not first.dimensions:
                raise unread(f'"{_text(node)}" is a function of a number')
        if len(own) <= len(tensors) or not all(isinstance(one, ast.Name) for one in tensors):
            takes = f"{operation.says}, which takes {', '.join(own)}"
            raise unread(f'"{_text(node)}" has other tensors than {takes}')
        called = [one.id if isinstance(one, ast.Name) else "" for one in (subject, *tensors)]
        if any(vocabulary()["tensor_names"].get(name, one) in {*own[: len(called)]} - {one} for one, name in zip(own, called, strict=False)):
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


def _infix(left: Value, sign: str, right: Value, dimensions: Dimensions) -> Value:
    level = _LEVELS[sign]
    return Value(f"{left.operand(level + (sign == '**'))} {sign} {right.operand(level + 1)}", dimensions, level)


__all__ = ["Formula", "letters", "read_formula", "write_formula"]
