"""Expressions of tensors by their names: `x + y`, `x * sigmoid(x)`, `relu(x @ w + b)`.

They are read as Python is, from symbols alone: words such as "plus" have no precedence that people agree on. A name of
one letter is a tensor like the first one, but `bias`, `b` that is added and `w` that multiplies x are vectors, `t` and
`s` that something is divided by are numbers, and `d` and `n` in sqrt(d) and sum(x) / n are sizes. What has a name that
is not known, or that could be a number as well as a tensor, is no expression.
"""

from __future__ import annotations

import ast
import math
import re
import warnings

from tilewright.playbook.errors import NotUnderstood
from tilewright.playbook.named_operation import Effect, Extra, Form, NamedOperation, Number, Tensor
from tilewright.playbook.phrases import AT_START, Clause, match

_TENSOR = re.compile(r"[a-hj-uw-z]|v_|[xyabw][12]|w[dgkoquv]")  # i is an index, and v stands as v_: {v} is the value
_LIKE_VALUE = frozenset(("gate", "residual", "mask"))
_VECTORS = frozenset(("bias", "weight", "gamma"))
_NUMBERS = {"alpha": "2.0", "beta": "0.5", "eps": "1e-5", "temperature": "0.7", "tau": "0.7", "mu": "0.5"}
_NUMBERS |= {"sigma": "2.0"}
_DIVISORS = {"t": "0.7", "s": "2.0"}  # numbers where something is divided by them
_SIZES = frozenset(("d", "n"))
_ASKED = {"*": "abcdknst", "/": "cdkn", "+": "cdknst", "-": "cdkmnst", "**": "cdknpst"}  # a number or a tensor?
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
_COMPARED: dict[type[ast.cmpop], str] = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<="}
_PAIRS = {"max": "maximum", "maximum": "maximum", "min": "minimum", "minimum": "minimum"}
_VERBS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "**": "power", "@": "matmul"}
_LEVELS = {">": 0, ">=": 0, "<": 0, "<=": 0, "+": 1, "-": 1, "*": 2, "/": 2, "@": 2, "**": 4}
_MINUS, _ATOM = 3, 5
_CALL = re.compile(r"(?:torch|F)\.[\w.(]+\{v\}[^()]*\)+")  # code that is one call, its value an argument
_FRESH = ("n", "p", "q", "r")  # what the columns of a product are called, the first product's first

Dimensions = tuple[str, ...]


class _NoExpression(Exception):
    pass


def read_expression(text: str) -> Clause | None:
    """The expression as one step; None where it is none."""
    words = tuple(text.split())
    while True:  # "a kernel that computes x + y": the politeness goes word by word, as "a" may be a tensor too
        found = _read(" ".join(words))
        if found is not None or not words or words[0] not in AT_START:
            return found
        words = words[1:]


def _read(text: str) -> Clause | None:
    source = re.sub(r"^([a-z0-9 ]*?) +of +\(([^()]*)\)$", r"\1(\2)", text.strip())  # "l2 norm of (a - b)"
    source = re.sub(r"\b([a-z][a-z0-9]*) ([a-z0-9]+)\(", r"\1_\2(", source).replace("^", "**")
    source = re.sub(r"\bpi\b", repr(math.pi), re.sub(r"\bv\b", "v_", source))
    try:
        with warnings.catch_warnings(action="ignore"):  # "2x" is no business of anybody's log
            tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError):
        return None
    if not isinstance(tree.body, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Compare)):
        return None
    try:
        return _Writer(tree.body).clause(re.sub(r"\bv\b", "v_", text))
    except _NoExpression:
        return None


class _Writer:
    """Walks the tree once: writes PyTorch, gives every name its dimensions and collects what the step is called."""

    def __init__(self, body: ast.expr) -> None:
        self.body = body
        self.products = len(_products(body))
        self.turns = self.products or any(isinstance(one, ast.Attribute) for one in ast.walk(body))
        self.dimensions: dict[str, Dimensions] = {}
        self.same: dict[str, str] = {}  # dimensions that are others, as their tensors meet element by element
        self.inner = ""  # what the last product sums over
        self.sizes: dict[str, str] = {}  # names of sizes, and the dimension of each
        self.numbers: dict[str, str] = {}
        self.names = {one.id for one in ast.walk(body) if isinstance(one, ast.Name)}
        self.matrices = _operands(body)
        self.known_numbers = self._known_numbers()
        self.known_sizes = _SIZES
        self.known_sizes = self._known_sizes()
        self.vectors = self._known_vectors()
        self.named: list[str] = []
        self.made = 0
        self.levels: dict[str, int] = {}  # of what was written, how tightly it holds together
        self.along: list[NamedOperation] = []  # what goes over a dimension
        self.keeps = self._is_met(body)  # a statistic keeps its dimensions where it meets a tensor
        self.within = 0  # so many calls that go over a dimension

    def clause(self, text: str) -> Clause:
        wanted = ("m", "k") if self.products else ("rows", "cols")
        code, dimensions = self._written(self.body, wanted)
        said = [one for one in dict.fromkeys(re.findall(r"\w+", text)) if one in self.dimensions]
        whole = [one for one in said if not self._is_vector(one)]  # those of as many dimensions as the value at hand
        if not any(map(_TENSOR.fullmatch, said)) or not whole or not self.named:
            raise _NoExpression
        first = whole[0]
        others = [one for one in said if one != first]
        extras: list[Extra] = [self._tensor(one) for one in others]
        extras += [Number(one, place) for place, one in enumerate(self.numbers)]
        code = self._with_sizes(code, (first, *others))
        escaped = re.sub(rf"\b{first}\b", "{v}", _in_braces(code, (*others, *self.numbers)))
        dimensions, of_first = self._settled(dimensions), self._settled(self.dimensions[first])
        reshapes = dimensions != of_first
        effect = Effect.RESHAPES if reshapes else Effect.WHOLE_ROW if self.along else Effect.ELEMENTS
        reduces = not self.keeps and any(one.effect is Effect.REDUCES for one in self.along)
        operation = NamedOperation(
            "_".join(dict.fromkeys(self.named[:4])),
            f"the value of {re.sub('v_', 'v', text.strip())}",
            "",
            escaped,
            Effect.REDUCES if reduces else effect,
            tuple(extras),
            self._assumption(first, [first, *others] if first != said[0] else []),
            several=all(one.several for one in self.along),
            takes=Tensor(first, of_first if self.turns else None),
            gives=dimensions if reshapes else None,
        )
        return Clause(operation, tuple(self.numbers.values()), tuple(text.split()))

    def _assumption(self, first: str, turned: list[str]) -> str:
        """What is gone over where nobody says it, what names stand for, and the order of arguments where it is not that
        of the words."""
        said = " and ".join(dict.fromkeys(one.says for one in self.along if one.effect is Effect.REDUCES))
        found = [f"{said} in the formula {'are those' if ' and ' in said else 'is that'} {{along}}"] if said else []
        if any(one.name in ("row_var", "row_std") for one in self.along):
            found.append("its sum of squares is divided by the count less 1, as PyTorch has it")
        found += [
            f"{{{one}}} is a vector with one element per column" for one in self.dimensions if self._is_vector(one)
        ]
        found += [f"{{{one}}} is a number, {{{at}}} where none is given" for at, one in enumerate(self.numbers)]
        for one, size in self.sizes.items():
            summed = _in_braces(f"{size}, which the product sums over", (size.partition(".")[0],))
            found.append(f"{one} is {summed if self.products else 'the number of elements {along}'}")
        found += [f"the arguments are {', '.join(f'{{{one}}}' for one in turned)} in this order"] if turned else []
        return "; ".join(re.sub(rf"\{{{first}\}}", "{v}", one) for one in found)

    # -- what a name stands for: a tensor, unless it is known to be another thing --

    def _known_numbers(self) -> dict[str, str]:
        """Numbers by their names, and letters in what something is divided by; beta beside gamma is no number."""
        found = {**_NUMBERS, **({"scale": "0.125"} if self.products else {})}
        if "gamma" in self.names:
            del found["beta"]
        for node in ast.walk(self.body):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                within = _letters(node.right)
                if within <= {*found, *_DIVISORS, *_SIZES}:
                    found |= {one: value for one, value in _DIVISORS.items() if one in within - self.matrices}
        return found

    def _known_sizes(self) -> frozenset[str]:
        """Letters that are sizes: d in sqrt(d) and d**-0.5, n in sum(x) / n, both in what divides a product."""
        found: set[str] = set()
        for node in ast.walk(self.body):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("sqrt", "rsqrt"):
                found |= _letters(node) if len(_letters(node)) == 1 else set()
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.left, ast.Name):
                found |= {node.left.id} if ast.unparse(node.right) in ("0.5", "-0.5") else set()
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _letters(node.right) <= _SIZES:
                product = _products(node.left)
                found |= _letters(node.right) if product or not self._is_met(node.left) else set()
        found &= _SIZES - self.matrices
        return frozenset(found) if _letters(self.body) - found - self.known_numbers.keys() else frozenset()

    @property
    def _no_tensors(self) -> set[str]:
        return {*self.known_numbers, *self.known_sizes}

    def _known_vectors(self) -> frozenset[str]:
        """Vectors by their names; w that multiplies x, and b that is added to it, unless they are matrices."""
        found = {*_VECTORS, *({"beta"} if "gamma" in self.names else ())} - self.matrices
        for node in ast.walk(self.body):
            if isinstance(node, ast.BinOp) and not self.products and "x" in self.names:
                sides = {one.id for one in (node.left, node.right) if isinstance(one, ast.Name)}
                gains = {"w", "g"} if self.names & {"mean", "var", "std"} else {"w"}  # without a norm g may be a gate
                found |= sides & gains if isinstance(node.op, ast.Mult) else set()
                found |= sides & {"b"} if isinstance(node.op, ast.Add) and "a" not in self.names else set()
        return frozenset(found)

    def _is_met(self, node: ast.AST) -> bool:
        """Whether the value has a tensor in it that no statistic was made of."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found = match(tuple(_called(node.func.id).split("_"))) if len(node.args) == 1 else None
            reduces = found is not None and found.operation.effect is Effect.REDUCES
            return not reduces and any(map(self._is_met, node.args))
        if isinstance(node, ast.Name):
            return node.id not in self._no_tensors
        return any(map(self._is_met, ast.iter_child_nodes(node)))

    def _with_sizes(self, code: str, tensors: tuple[str, ...]) -> str:
        """The code with sizes in place of their names."""
        for name, dimension in self.sizes.items():
            held = [(one, self._settled(self.dimensions[one])) for one in tensors]
            (wanted,) = self._settled((dimension,))
            places = [f"{one}.shape[{of.index(wanted) - len(of)}]" for one, of in held if wanted in of]
            self.sizes[name] = places[0]
            code = re.sub(rf"\b{name}\b", places[0] if self.products else "{count}", code)
        return code

    def _settled(self, dimensions: Dimensions) -> Dimensions:
        found = []
        for one in dimensions:
            while one in self.same:
                one = self.same[one]
            found.append(one)
        return tuple(found)

    def _meet(self, left: Dimensions, right: Dimensions) -> None:
        """Two values element by element have the same dimensions, the last first."""
        for pair in zip(left[::-1], right[::-1], strict=False):
            one, other = self._settled(pair)  # each after the pair before it, which may have made them one
            if one != other:
                kept, gone = sorted((one, other), key=lambda name: ("mk" + "".join(_FRESH)).find(name))
                self.same[gone] = kept

    def _is_vector(self, name: str) -> bool:
        """Whether it has an element per column, as a bias has; the diagonal of a matrix has one per row."""
        return len(self.dimensions[name]) == 1 and self.dimensions[name] != ("m",)

    def _tensor(self, name: str) -> Tensor:
        if self.turns:
            return Tensor(name, self._settled(self.dimensions[name]))
        return Tensor(name, (-1,) if name in self.vectors else None)

    # -- nodes: the code, and the dimensions of the value --

    def _written(self, node: ast.expr, wanted: Dimensions) -> tuple[str, Dimensions]:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return repr(node.value), ()
        if isinstance(node, ast.Name):
            return self._name(node.id, wanted)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            code, dimensions = self._written(node.operand, wanted)
            self.named.append("neg")
            return self._held(f"-{self._operand(code, _MINUS)}", _MINUS), dimensions
        if isinstance(node, ast.Attribute) and node.attr == "t":
            code, dimensions = self._written(node.value, wanted[::-1])
            return f"{self._operand(code, _ATOM)}.T", dimensions[::-1]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return self._product(node, wanted)
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            return self._pair(node.left, _SIGNS[type(node.op)], node.right, wanted)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
            return self._pair(node.left, _COMPARED[type(node.ops[0])], node.comparators[0], wanted)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node, node.func.id, node.args, wanted)
        raise _NoExpression

    def _name(self, name: str, wanted: Dimensions) -> tuple[str, Dimensions]:
        if name in self.known_sizes:
            self.sizes.setdefault(name, self._settled((self.inner or wanted[-1],))[0])
            return name, ()
        if name in self.known_numbers:
            self.numbers[name] = self.known_numbers[name]
            return name, ()
        if not (_TENSOR.fullmatch(name) or name in _LIKE_VALUE | _VECTORS | self.vectors):
            raise _NoExpression
        found = self.dimensions.setdefault(name, wanted[-1:] if name in self.vectors else wanted)
        return name, found

    def _product(self, node: ast.BinOp, wanted: Dimensions) -> tuple[str, Dimensions]:
        left, of_left = self._written(node.left, (wanted[0], "k") if len(wanted) == 2 else wanted)
        if len(of_left) != 2:
            raise _NoExpression
        self.made += 1
        columns = _FRESH[min(self.made, len(_FRESH)) - 1]
        right, of_right = self._written(node.right, (of_left[1], columns))
        self.named.append("matmul")
        if len(of_right) != 2 or self._settled(of_right[:1]) != self._settled(of_left[1:]):
            raise _NoExpression
        self.inner = of_left[1]
        return self._joined(left, "@", right), (of_left[0], of_right[1])

    def _pair(self, left: ast.expr, sign: str, right: ast.expr, wanted: Dimensions) -> tuple[str, Dimensions]:
        self._refuse_number_or_tensor(left, sign, right)
        first, second = (right, left) if self._is_plain(left) and not self._is_plain(right) else (left, right)
        one, dimensions = self._written(first, wanted)
        added = sign == "+" and isinstance(second, ast.Name) and second.id == "b"
        bias = added and _products(first) and "b" not in self.matrices  # (a + b) @ c has none
        held = max(dimensions, wanted, key=len)  # what stands beside a vector has the columns of it, and rows
        other, of_other = self._written(second, held[-1:] if bias and "b" not in self.dimensions else held)
        self.named.append(_VERBS.get(sign, "compare"))
        self._meet(dimensions, of_other)
        code = self._joined(*((one, sign, other) if first is left else (other, sign, one)))
        return code, max(dimensions, of_other, key=len)

    def _joined(self, left: str, sign: str, right: str) -> str:
        level = _LEVELS[sign]
        before = self._operand(left, level + (sign == "**"))  # which goes from the right
        return self._held(f"{before} {sign} {self._operand(right, level + 1)}", level)

    def _held(self, code: str, level: int) -> str:
        self.levels[code] = level
        return code

    def _operand(self, code: str, level: int) -> str:
        """The code as an operand of what holds together as tightly as that."""
        return code if self.levels.get(code, _ATOM) >= level else f"({code})"

    def _is_plain(self, node: ast.expr) -> bool:
        """A name or number, whose dimensions follow from what it stands beside."""
        return isinstance(node, (ast.Name, ast.Constant))

    def _refuse_number_or_tensor(self, left: ast.expr, sign: str, right: ast.expr) -> None:
        left, right = (one.operand if isinstance(one, ast.UnaryOp) else one for one in (left, right))
        sides = (left, right) if sign in "+*" else (right,)
        known = self._no_tensors | self.vectors | self.matrices
        beside = {one.id for one in (left, right) if isinstance(one, ast.Name)}
        names = {one.id for one in sides if isinstance(one, ast.Name)} & set(_ASKED.get(sign, "cdknst")) - known
        if "x" not in beside:
            names -= names if sign in "+-" else set("abc")  # which are tensors elsewhere
        if names and ("x" in self.names or self.products):
            raise NotUnderstood(
                f'the playbook cannot tell whether {min(names)} in "{ast.unparse(self.body).replace("v_", "v")}" is a '
                f"number or a tensor; write alpha for a number, or y and z for tensors"
            )

    def _call(self, call: ast.Call, name: str, arguments: list[ast.expr], wanted: Dimensions) -> tuple[str, Dimensions]:
        if name in _PAIRS and len(arguments) == 2:
            return self._larger(_PAIRS[name], arguments, wanted)
        if name == "diag" and len(arguments) == 1 and len(wanted) == 2:
            code, dimensions = self._written(arguments[0], wanted[:1])
            self.named.append("diag")
            return f"torch.diag({code})", (*dimensions, *dimensions)
        if name == "where" and len(arguments) == 3 and isinstance(arguments[0], ast.Compare):
            written = [self._written(one, wanted) for one in arguments]
            self.named.append("where")
            return f"torch.where({', '.join(code for code, _ in written)})", written[0][1]
        if name == "sqrt" and len(arguments) == 1 and isinstance(arguments[0], ast.Constant):
            return repr(math.sqrt(float(_number(arguments[0])))), ()  # x / sqrt(64)
        if name in ("sqrt", "rsqrt") and len(arguments) == 1 and not _letters(arguments[0]) - self._no_tensors:
            code, _ = self._written(arguments[0], wanted)  # x / sqrt(d)
            return self._joined(code, "**", "0.5" if name == "sqrt" else "-0.5"), ()
        if name in ("exp", "log") and arguments:
            self._refuse_number_or_tensor(call, name, arguments[0])
        name = _called(name) if self.body is not call else name  # norm(x) by itself may be a layer
        settings = [_number(one) for one in arguments[1:]]
        found = match((*name.split("_"), *" to ".join(settings).split()))
        if found is None or found.operation.form is not Form.FUNCTION or not arguments:
            raise _NoExpression
        operation = found.operation
        if operation.extras or operation.results or operation.takes or operation.effect is Effect.RESHAPES:
            raise _NoExpression
        self.within += operation.goes_over
        code, dimensions = self._written(arguments[0], wanted)
        self.within -= operation.goes_over
        if not dimensions:
            raise _NoExpression  # PyTorch's functions take no numbers
        self.named.append(operation.name)
        self.along += [operation] if operation.goes_over else []
        reduced = operation.effect is Effect.REDUCES and (self.keeps or self.within)
        over = "{over_kept}" if reduced else "{over}"
        value = code if _CALL.fullmatch(operation.code) else self._operand(code, _ATOM)
        applied = operation.code.format(*found.numbers, v=value, over=over, over_kept="{over_kept}")
        whole = _CALL.fullmatch(operation.code) or operation.code.startswith("{v}.")
        return self._held(applied, _ATOM if whole else 0), dimensions

    def _larger(self, function: str, arguments: list[ast.expr], wanted: Dimensions) -> tuple[str, Dimensions]:
        self.named.append(function)
        self._refuse_number_or_tensor(arguments[0], ">", arguments[1])
        written = [self._written(one, wanted) for one in arguments]
        numbers = [code for code, dimensions in written if not dimensions]
        if len(numbers) == len(written):
            raise _NoExpression
        if numbers:  # which PyTorch's functions of two tensors do not take
            code, dimensions = next(one for one in written if one[1])
            bound = "min" if function == "maximum" else "max"
            return f"torch.clamp({code}, {bound}={numbers[0]})", dimensions
        return f"torch.{function}({', '.join(code for code, _ in written)})", written[0][1]


def _called(name: str) -> str:
    """The norm of a formula is a number of each row, and no layer."""
    return "l2_norm" if name == "norm" else name


def _letters(node: ast.AST) -> set[str]:
    """The names in a part of the formula, without those of functions."""
    functions = {id(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and id(one) not in functions}


def _products(node: ast.AST) -> list[ast.BinOp]:
    return [one for one in ast.walk(node) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult)]


def _operands(body: ast.expr) -> set[str]:
    """The names that are operands of products, or transposed."""
    found = [one.value for one in ast.walk(body) if isinstance(one, ast.Attribute)]
    found += [side for one in _products(body) for side in (one.left, one.right)]
    return {one.id for one in found if isinstance(one, ast.Name)}


def _number(node: ast.expr) -> str:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return f"-{_number(node.operand)}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return repr(node.value)
    raise _NoExpression


def _in_braces(code: str, names: tuple[str, ...]) -> str:
    """Names as the places that a reference's own names go to."""
    return re.sub(r"\b(\w+)\b(?!\()", lambda one: f"{{{one[1]}}}" if one[1] in names else one[1], code)
