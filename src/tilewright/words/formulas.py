"""Formulas of tensors by their names, read as Python reads them: `x * sigmoid(x)`, `a @ b.T`, `F.gelu(x)`.

A name is a tensor like the first one, but `bias`, `b` that is added and `w` that multiplies x are vectors, `t` and `s`
that something is divided by are numbers, and `d` and `n` in sqrt(d) and sum(x) / n are sizes; the task says so.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.words.building import Builder, Dimensions, Value
from tilewright.words.catalogue import Argument, Operation, fillers, names, operations, vocabulary
from tilewright.words.errors import unread
from tilewright.words.text import joined, plain, stem

_NAME = re.compile(
    r"[a-zA-Z]|[a-zA-Z]_?[0-9]|[wWx][a-z_]{1,2}|[WX]_?\w{1,5}|pred\w*|targets?|labels?|logits|scores|query|key|value"
    r"|img|mask|gate|residual|up|hidden"
)
_VECTORS = frozenset(("bias", "weight", "gamma"))
_NUMBERS = {"alpha": "2.0", "beta": "0.5", "eps": "1e-5", "temperature": "0.7", "tau": "0.7", "mu": "0.5"}
_NUMBERS |= {"sigma": "2.0", "scale": "0.125"}
_DIVISORS = {"t": "0.7", "T": "0.7", "s": "2.0"}
_SIZES = frozenset(("d", "n", "d_k", "dk"))
_UNCLEAR = {"*": "acdknst", "/": "cdkmn", "+": "cdknst", "-": "cdkmnst", "**": "cdknpst"}  # a number or a tensor?
_SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.MatMult: "@"}
_SIGNS |= {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<="}
_VERBS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "**": "power", "@": "matmul"}
_LEVELS = {">": 0, ">=": 0, "<": 0, "<=": 0, "+": 1, "-": 1, "*": 2, "/": 2, "@": 2, "**": 4}
_MODULES = ("torch", "F", "nn", "nn.functional", "torch.nn.functional")
_ENTRIES = {"norm": "row_norm", "max": "row_max", "min": "row_min", "amax": "row_max", "amin": "row_min"}
_ENTRIES |= {"normalize": "l2_normalize", "pow": "square", "mm": "matmul", "F.binary_cross_entropy": "bce_probs"}
_EXTREMES = {"max": "maximum", "maximum": "maximum", "min": "minimum", "minimum": "minimum"}
_PLAIN = re.compile(r"(?:[a-zA-Z]|\d+(?:\.\d+)?|squared|plus|minus|times| )+")
_IN_WORDS = ((r" squared\b", "**2"), (" plus ", " + "), (" minus ", " - "), (" times ", " * "))
_TURNED = r"\^T(?!\w)"
_TURNS = (
    (r"(?<![\w.])([A-Z])([A-Z])(?=\^T)", r"\1 @ \2"),
    (rf"(\w){_TURNED}", r"\1.T"),
    (r"(?<=[\w)]) (?=[A-Za-z](?:\.T)?$|[A-Za-z](?:\.T)? |[A-Z]\b)(?<![@*/+,-] )", " @ "),
)
_REWRITES = (
    (r"\^", "**"),
    (r"\.t\(\)|\.transpose\(-1, -2\)|\.transpose\(-2, -1\)", ".T"),
    (r"(?<![\w.])e\*\*(\w+|\((?:[^()]|\([^()]*\))*\))", r"exp(\1)"),
    (r"(?<![\w.])(\d+(?:\.\d+)?) ?(?!e[-+]?\d)([a-zA-Z](?![\w(]))", r"\1*\2"),
    (r"^([a-z0-9 ]*?[a-z0-9]) of (\([^()]*\))$", r"\1\2"),
    (r"\b([a-z][a-z0-9]*) (?=(?:[a-z0-9]+ )*[a-z0-9]+\()", r"\1_"),
)


@dataclass(frozen=True)
class Formula:
    text: str
    body: ast.expr
    axis: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        found: list[str] = []
        for node in ast.walk(self.body):
            if isinstance(node, ast.BinOp):
                found.append(_VERBS[_SIGNS[type(node.op)]])
            elif isinstance(node, ast.Call):
                found.append(_function(node).lower())
            elif isinstance(node, ast.UnaryOp):
                found.append("neg")
        return "_".join(dict.fromkeys(found[::-1][:4])) or "transpose"


def read_formula(words: str) -> Formula | None:
    """The formula that the words are, politeness before it apart; None where they are none."""
    text = " ".join(plain(words).strip(" .!").split())
    along = re.search(r" (?:over|along) (?:dim|axis) (-?\d)$", text)
    if along:
        found = read_formula(text[: along.start()])
        return replace(found, axis=(int(along[1]),)) if found and re.search(r"(?:mean|sum)\(", words) else None
    parts = text.split(" ")
    for skipped, part in enumerate(parts):
        found = _parsed(" ".join(parts[skipped:]))
        if found is not None or stem(part.lower().strip(",:")) not in fillers():
            return found
    return None


def _parsed(text: str) -> Formula | None:
    source = re.sub(r"^[a-z]\w* ?= ?(?!=)", "", text)
    rewrites = [*(_IN_WORDS if _PLAIN.fullmatch(source) else ()), (r"\|([^|]+)\|", r"abs(\1)")]
    rewrites += [*(_TURNS if re.search(_TURNED, source) else ()), *_REWRITES]
    for pattern, instead in rewrites:
        source = re.sub(pattern, instead, source)
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return Formula(text.strip(), body) if _is_formula(body) else None


def _is_formula(body: ast.expr) -> bool:
    """Whether its names may be tensors and its functions are known; there is a tensor, and no word."""
    if not isinstance(body, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Compare, ast.Attribute)):
        return False
    if not all(_entry(one)[0] for one in ast.walk(body) if isinstance(one, ast.Call)):
        return False
    letters = _letters(body)
    others = {"pi", *_VECTORS, *_NUMBERS, *_SIZES}
    if not all(_NAME.fullmatch(one) or one in others for one in letters):
        return False
    if isinstance(body, ast.Attribute) and body.attr != "T":
        return False
    return any(_NAME.fullmatch(one) for one in letters)


def _function(node: ast.Call) -> str:
    return ast.unparse(node.func).rsplit(".", 1)[-1]


def _arguments(node: ast.Call) -> list[ast.expr]:
    """The arguments of a call; a method's first one is its object."""
    is_method = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in _MODULES
    return [*([node.func.value] if is_method else []), *node.args]  # type: ignore[attr-defined]


def _entry(node: ast.Call) -> tuple[Operation | None, tuple[str, ...]]:
    """The entry that a call names, and the option."""
    name = _function(node)
    if name == "kl_div":
        raise unread("F.kl_div takes log-probabilities; write the formula, or say KL divergence of logits")
    compares = name in ("max", "min") and len(node.args) > 1 and not isinstance(node.func, ast.Attribute)
    if name in ("where", "diag", "maximum", "minimum") or compares:
        return operations()["abs"], ()  # a function of elements, which is written apart
    entry = _ENTRIES.get(ast.unparse(node.func), _ENTRIES.get(name, ""))
    if entry:
        return operations()[entry], ()
    found = names().get(joined(re.sub(r"(?<=[a-z])_", " ", name)), ())
    chosen = next((one for one in found if not one.option), found[0] if found else None)
    if chosen is None:
        return None, ()
    return operations()[chosen.operation], (chosen.option,) if chosen.option else ()


def _letters(node: ast.AST) -> set[str]:
    """The names in a part of a formula, without those of functions and modules."""
    functions: set[int] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            functions.add(id(one.func))
            if isinstance(one.func, ast.Attribute) and ast.unparse(one.func.value) in _MODULES:
                functions |= {id(part) for part in ast.walk(one.func)}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and id(one) not in functions}


def _binary(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """The signs and operands of the binary operations in a part of a formula."""
    for one in ast.walk(node):
        if isinstance(one, ast.BinOp):
            yield _SIGNS.get(type(one.op), ""), one.left, one.right
        elif isinstance(one, ast.Call) and _function(one) in ("matmul", "mm") and len(one.args) == 2:
            yield "@", one.args[0], one.args[1]


def _products(node: ast.AST) -> bool:
    return any(sign == "@" for sign, _, _ in _binary(node))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"-?\d+", text))


def write_formula(formula: Formula, builder: Builder, given: frozenset[str] = frozenset()) -> Value:
    """The value of a formula; its tensors are in the order in which they are said. `given` have known shapes."""
    try:
        return _Writer(formula, builder, given).value()
    except IndexError:
        raise unread(f'the dimensions of the tensors in "{formula.text}" cannot be told') from None


class _Writer:
    """Walks the tree once: writes PyTorch and gives every name its dimensions."""

    def __init__(self, formula: Formula, builder: Builder, given: frozenset[str]) -> None:
        self.formula, self.body, self.builder, self.given = formula, formula.body, builder, given
        turned = [one.value for one in ast.walk(self.body) if isinstance(one, ast.Attribute) and one.attr == "T"]
        self.has_product = _products(self.body)
        self.is_matrix = self.has_product or bool(turned)
        self.letters = _letters(self.body)
        if len({one.lower() for one in self.letters}) < len(self.letters) and not self.has_product:
            raise unread(f'"{formula.text}" has names that differ in case only, which could be one tensor or two')
        sides = [*turned, *(one for sign, *pair in _binary(self.body) if sign == "@" for one in pair)]
        self.operands = {one.id for one in sides if isinstance(one, ast.Name)}  # of products, or transposed
        self.numbers: dict[str, str] = {}
        self.size_names: set[str] = set()
        self.vectors: set[str] = set()
        self._assign_roles()
        self.values: dict[str, Value] = {}
        self.sizes: dict[str, str] = {}
        self.inner = ""  # the dimension that the last product sums over
        self.within = 0  # how many operations over a dimension stand around
        self.first: Dimensions = ()
        self.keeps = self._has_elements(self.body)

    def value(self) -> Value:
        builder = self.builder
        self.first = (builder.dimension("m"), builder.dimension("k")) if self.is_matrix else ()
        self.first = self.first or (() if self._is_one_call() else builder.generic())
        found = self._value(self.body, self.first)
        said = sorted((one for one in ast.walk(self.body) if isinstance(one, ast.Name)), key=lambda n: n.col_offset)
        text = [one.id for one in said]
        builder.tensors.sort(key=lambda one: text.index(one.name) if one.name in text else len(text))
        first = next(one for one in builder.tensors if one.name not in self.vectors)
        if builder.tensors[0] is not first:
            builder.tensors.sort(key=lambda one: one is not first)
            builder.assume(f"the arguments are {', '.join(one.name for one in builder.tensors)} in this order")
        for name in (one.name for one in builder.tensors if one.name in self.vectors):
            builder.assume(f"{name} is a vector with one element per column")
        for name in (one for one in builder.params if one in self.numbers):
            builder.assume(f"{name} is a number, {builder.params[name]} where none is given")
        return replace(found, code=self._with_sizes(found.code), dimensions=builder.settled(found.dimensions))

    def _is_one_call(self) -> bool:
        """Whether the formula is one call of an operation that says the dimensions of its tensors."""
        body = self.body
        operation = _entry(body)[0] if isinstance(body, ast.Call) else None
        if operation is None or operation.arguments[0].dimensions == ("...",):
            return False
        return isinstance(body, ast.Call) and all(isinstance(one, (ast.Name, ast.Constant)) for one in body.args)

    # -- what a name stands for --

    def _assign_roles(self) -> None:
        """Tells which names are numbers, sizes and vectors; the others are tensors."""
        numbers = {one: text for one, text in _NUMBERS.items() if (one, "gamma" in self.letters) != ("beta", True)}
        for sign, _, right in _binary(self.body):
            if sign == "/" and (within := _letters(right)) <= {*numbers, *_DIVISORS, *_SIZES}:
                numbers |= {one: _DIVISORS[one] for one in _DIVISORS if one in within - self.operands}
        self.numbers = {one: text for one, text in numbers.items() if one in self.letters}
        sizes: set[str] = set()
        for one in ast.walk(self.body):
            if isinstance(one, ast.Call) and ast.unparse(one.func) in ("sqrt", "rsqrt"):
                sizes |= _letters(one) if len(_letters(one)) == 1 else set()
        vectors = ({*_VECTORS, "beta"} if "gamma" in self.letters else {*_VECTORS}) - self.operands
        gains = {"w", "g"} if re.search(r"mean|var|std", self.formula.text) else {"w"}
        for sign, left, right in _binary(self.body):
            both = {one.id for one in (left, right) if isinstance(one, ast.Name)}
            if sign == "**" and ast.unparse(right) in ("0.5", "-0.5"):
                sizes |= both
            if sign == "/" and (_products(left) or not self._has_elements(left)) and _letters(right) <= _SIZES:
                sizes |= _letters(right)
            if "x" in self.letters and not self.has_product:
                vectors |= both & (
                    gains if sign == "*" else {"b"} if sign == "+" and "a" not in self.letters else set()
                )
            if sign == "+" and _products(left) and isinstance(right, ast.Name):
                vectors |= {right.id} & {"b"} - self.operands
        sizes &= _SIZES - self.operands
        self.size_names = sizes if self.letters - sizes - self.numbers.keys() else set()
        self.vectors = vectors & self.letters

    def _has_elements(self, node: ast.AST) -> bool:
        """Whether the value has elements of a tensor that were not reduced."""
        if isinstance(node, ast.Call):
            operation, _ = _entry(node)
            reduces = operation is not None and operation.kind == "reduce" and len(_arguments(node)) == 1
            return not reduces and any(map(self._has_elements, _arguments(node)))
        if isinstance(node, ast.Name):
            return node.id not in {*self.numbers, *self.size_names}
        return any(map(self._has_elements, ast.iter_child_nodes(node)))

    def _with_sizes(self, code: str) -> str:
        """The code with sizes of tensors in place of the names of sizes."""
        first = self.builder.tensors[0].name
        for name, dimension in self.sizes.items():
            (wanted,) = self.builder.settled((dimension,))
            for one in self.builder.tensors[::-1]:
                dimensions = self.builder.settled(one.dimensions)
                if wanted in dimensions:
                    size = f"{one.name}.shape[{dimensions.index(wanted) - len(dimensions)}]"
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
            case (
                ast.BinOp(op=sign, left=left, right=right) | ast.Compare(ops=[sign], left=left, comparators=[right])
            ) if type(sign) in _SIGNS:
                return self._pair(left, _SIGNS[type(sign)], right, wanted)
            case ast.Call():
                return self._call(node, wanted)
        raise unread(f'"{ast.unparse(node)}" in the formula is not read')

    def _name(self, name: str, wanted: Dimensions) -> Value:
        if name == "pi":
            return Value(repr(math.pi), ())
        if name in self.size_names:
            self.sizes.setdefault(name, self.inner or (wanted if self.is_matrix else self.first or wanted)[-1])
            return Value(name, ())
        if name in self.numbers:
            self.builder.params.setdefault(name, self.numbers[name])
            return Value(name, ())
        if name not in self.values:
            dimensions = wanted[-1:] if name in self.vectors else wanted
            self.builder.renamed.setdefault(name, name)
            self.values[name] = self.builder.tensor(Argument(name, dimensions), dimensions)
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
        self._refuse_unclear(left, sign, right)
        simple = [isinstance(one, (ast.Name, ast.Constant)) for one in (left, right)]
        turned = simple == [True, False]  # what is more than a name says the dimensions of both
        first, second = (right, left) if turned else (left, right)
        one = self._value(first, wanted)
        if len(one.dimensions) == len(wanted):
            wanted = tuple(w if d == "1" else d for d, w in zip(one.dimensions, wanted, strict=True))
        other = self._value(second, wanted if len(wanted) >= len(one.dimensions) else one.dimensions)
        self.builder.join(one.dimensions, other.dimensions)
        long, short = sorted((one.dimensions, other.dimensions), key=len, reverse=True)
        padded = ("1",) * (len(long) - len(short)) + short
        dimensions = tuple(two if one == "1" else one for one, two in zip(long, padded, strict=True))
        return _infix(other, sign, one, dimensions) if turned else _infix(one, sign, other, dimensions)

    def _refuse_unclear(self, left: ast.expr, sign: str, right: ast.expr) -> None:
        """Refuses a letter that may be a number or a tensor."""
        left, right = (one.operand if isinstance(one, ast.UnaryOp) else one for one in (left, right))
        both = {one.id for one in (left, right) if isinstance(one, ast.Name)}
        found = {one.id for one in ((left, right) if sign in "+*" else (right,)) if isinstance(one, ast.Name)}
        found &= set(_UNCLEAR.get(sign, "cdknst"))
        if "x" not in both:
            found -= found if sign in "+-" else set("abc")
        found -= {*self.numbers, *self.size_names, *self.vectors, *self.operands}
        found -= {*self.builder.renamed.values(), *self.given}
        if found and ("x" in self.letters or self.has_product):
            raise unread(
                f'whether {min(found)} in "{self.formula.text}" is a number or a tensor cannot be told; '
                "write alpha for a number, or y and z for tensors"
            )

    # -- calls --

    def _call(self, node: ast.Call, wanted: Dimensions) -> Value:
        name, arguments = _function(node), _arguments(node)
        match name, arguments:
            case "max" | "min" | "maximum" | "minimum", [one, other] if not (
                isinstance(node.func, ast.Attribute) and isinstance(other, (ast.Constant, ast.UnaryOp))
            ):
                return self._extreme(_EXTREMES[name], one, other, wanted)
            case "where", [condition, _, _]:
                written = [self._value(one, wanted) for one in arguments]
                if not isinstance(condition, ast.Compare):
                    raise unread(f'"{self.formula.text}" has a condition that is no comparison')
                return Value(f"torch.where({', '.join(one.code for one in written)})", written[0].dimensions)
            case "diag", [one, *_]:
                found = self._value(one, wanted[:1])
                return Value(f"torch.diag({found.code})", found.dimensions * 2)
            case "matmul" | "mm", [one, other]:
                return self._product(one, other, wanted)
            case "pow", [one, other]:
                return self._pair(one, "**", other, wanted)
            case "sqrt" | "rsqrt", [one] if _letters(one) <= {*self.numbers, *self.size_names, "pi"}:
                exponent = 0.5 if name == "sqrt" else -0.5
                if _letters(one) <= {"pi"}:
                    inside = ast.unparse(one).replace("pi", repr(math.pi))
                    return Value(repr(float(eval(inside, {"__builtins__": {}})) ** exponent), ())
                return _infix(self._value(one, wanted), "**", Value(repr(exponent), ()), ())
        return self._operation(node, arguments, wanted)

    def _extreme(self, function: str, left: ast.expr, right: ast.expr, wanted: Dimensions) -> Value:
        self._refuse_unclear(left, ">", right)
        written = [self._value(one, wanted) for one in (left, right)]
        numbers = [one.code for one in written if not one.dimensions]
        tensor = next((one for one in written if one.dimensions), None)
        if tensor is None:
            raise unread(f'"{self.formula.text}" has no tensor')
        if numbers:
            bound = "min" if function == "maximum" else "max"
            return Value(f"torch.clamp({tensor.code}, {bound}={numbers[0]})", tensor.dimensions)
        return Value(f"torch.{function}({', '.join(one.code for one in written)})", tensor.dimensions)

    def _operation(self, node: ast.Call, arguments: list[ast.expr], wanted: Dimensions) -> Value:
        entry, named = _entry(node)
        assert entry is not None
        numbers, axis, tensors, options = self._settings(node, entry, arguments[1:])
        operation = entry.with_options((*named, *options))
        own = [one.name for one in operation.arguments]
        reduces = entry.kind == "reduce"
        if axis is None and reduces and isinstance(node.func, ast.Attribute) and entry.axis != "last":
            axis = ()
        axis = self.formula.axis if axis is None and entry.goes_over else axis
        first, subject = None, arguments[0]
        fixed = operation.arguments[0].dimensions != ("...",)
        is_new = fixed and isinstance(subject, ast.Name) and subject.id not in self.values
        if not is_new or (len(own) == 1 and wanted):
            self.within += entry.goes_over
            first = self._value(subject, wanted)
            self.within -= entry.goes_over
            if not first.dimensions:
                raise unread(f'"{ast.unparse(node)}" is a function of a number')
        own = own[: 1 + len(tensors)]
        if len(own) <= len(tensors):
            takes = f"{operation.says}, which takes {', '.join(own)}"
            raise unread(f'"{ast.unparse(node)}" has more tensors than {takes}')
        parts = {name: one.id for name, one in zip(own, [subject, *tensors], strict=True) if isinstance(one, ast.Name)}
        usual = {one: vocabulary()["tensor_names"].get(name, one) for one, name in parts.items()}
        if any(meant != one and meant in own for one, meant in usual.items()):
            raise unread(f'"{self.formula.text}" has its tensors in another order than {", ".join(own)}')
        before = self.builder.renamed
        self.builder.renamed = {**before, **{one: before.get(name, name) for one, name in parts.items()}}
        keeps = reduces and axis is None and (self.keeps or bool(self.within))
        if keeps:  # a statistic that keeps its dimension, to broadcast with the tensor that it is of
            operation = replace(operation, code=operation.code.replace("{dim}", "{kept}"), gives=None, kind="row")
        others = tuple(self.values.get(one.id) for one in tensors)
        found = self.builder.apply(operation, first, numbers, axis, "", others)
        self.builder.renamed = before
        for one in self.builder.tensors:
            self.values.setdefault(one.name, Value(one.name, one.dimensions))
        if reduces and axis is None:
            self.builder.assume(f"{entry.says} in the formula is that of each row, along the last dimension")
        return replace(found, dimensions=(*found.dimensions[:-1], "1")) if keeps and found.dimensions else found

    def _settings(
        self, node: ast.Call, operation: Operation, rest: list[ast.expr]
    ) -> tuple[dict[str, str], tuple[int, ...] | None, list[ast.Name], list[str]]:
        """What a call says beside its first argument: numbers, dimensions, tensors and options."""
        numbers: dict[str, str] = {}
        axis: tuple[int, ...] | None = None
        tensors: list[ast.Name] = []
        options: list[str] = []
        bare = [*operation.bare]
        for one in rest:
            text = ast.unparse(one)
            if isinstance(one, ast.Name):
                tensors.append(one)
            elif re.fullmatch(r"-?[\d.e-]+", text) and bare:
                numbers[bare.pop(0)] = text
            elif operation.goes_over and re.fullmatch(r"\(?-?\d+(?:, -?\d+)*\)?", text):
                axis = _integers(text)
            else:
                raise unread(f'"{text}" in "{self.formula.text}" is not read as a setting of {operation.says}')
        usual = {*operation.numbers, *operation.params}
        for keyword in node.keywords:
            text, key = ast.unparse(keyword.value), str(keyword.arg)
            role = next((role for role, said in vocabulary()["sizes"].items() if _is_among(key, said)), key)
            takes = usual.union(*({*one.numbers, *one.params} for one in operation.options))
            known = next((n for n in (key, role, *vocabulary()["settings"].get(role, ())) if n in takes), "")
            if key in ("dim", "axis"):
                axis = _integers(text)
            elif known and re.fullmatch(r"-?[\d.e-]+", text):
                numbers[known] = text
                options += [
                    o.name for o in operation.options if known in {**o.numbers, **o.params} and known not in usual
                ]
            else:
                option = _keyword_option(operation, key, text.strip("'\""))
                if option is None:
                    raise unread(f'"{key}={text}" in "{self.formula.text}" is not read')
                options += filter(None, [option])
        return numbers, axis, tensors, options


def _infix(left: Value, sign: str, right: Value, dimensions: Dimensions) -> Value:
    level = _LEVELS[sign]
    return Value(f"{left.operand(level + (sign == '**'))} {sign} {right.operand(level + 1)}", dimensions, level)


def _is_among(name: str, phrases: str) -> bool:
    return joined(name) in map(joined, phrases.split(";"))


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
