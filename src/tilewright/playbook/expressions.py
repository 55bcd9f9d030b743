"""Expressions of tensors by their names: `x + y`, `x * sigmoid(x)`, `relu(x @ w + b)`.

They are read as Python is, from symbols alone: words such as "plus" have no precedence that people agree on. A name of
one letter is a tensor like the first one; `bias`, and `b` beside a product, is a vector. What has a name that is not
known, or that could be a number as well as a tensor, is no expression.
"""

from __future__ import annotations

import ast
import math
import re
import warnings

from tilewright.playbook.errors import NotUnderstood
from tilewright.playbook.named_operation import Effect, Extra, Form, NamedOperation, Number, Tensor
from tilewright.playbook.phrases import AT_START, Clause, match

_TENSOR = re.compile(r"[a-hj-uw-z]|[xyab][12]")  # i is an index, and v the value at hand
_LIKE_VALUE = frozenset(("gate", "residual", "mask"))
_VECTORS = frozenset(("bias",))
_NUMBERS = {"alpha": "2.0", "beta": "0.5"}
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
    try:
        with warnings.catch_warnings(action="ignore"):  # "2x" is no business of anybody's log
            tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError):
        return None
    if not isinstance(tree.body, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Compare)):
        return None
    try:
        return _Writer(tree.body).clause(text)
    except _NoExpression:
        return None


class _Writer:
    """Walks the tree once: writes PyTorch, gives every name its dimensions and collects what the step is called."""

    def __init__(self, body: ast.expr) -> None:
        self.body = body
        self.products = sum(isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult) for one in ast.walk(body))
        self.dimensions: dict[str, Dimensions] = {}
        self.numbers: dict[str, str] = {}
        self.named: list[str] = []
        self.made = 0
        self.levels: dict[str, int] = {}  # of what was written, how tightly it holds together
        self.along: list[NamedOperation] = []  # what goes over a dimension
        self.keeps = _is_met(body)  # a statistic keeps its dimensions where it meets a tensor
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
        escaped = re.sub(rf"\b{first}\b", "{v}", _in_braces(code, (*others, *self.numbers)))
        reshapes = dimensions != self.dimensions[first]
        effect = Effect.RESHAPES if reshapes else Effect.WHOLE_ROW if self.along else Effect.ELEMENTS
        reduces = not self.keeps and any(one.effect is Effect.REDUCES for one in self.along)
        operation = NamedOperation(
            "_".join(dict.fromkeys(self.named[:4])),
            f"the value of {text.strip()}",
            "",
            escaped,
            Effect.REDUCES if reduces else effect,
            tuple(extras),
            self._assumption([first, *others] if first != said[0] else []),
            several=all(one.several for one in self.along),
            takes=Tensor(first, self.dimensions[first] if self.products else None),
            gives=dimensions if reshapes else None,
        )
        return Clause(operation, tuple(self.numbers.values()), tuple(text.split()))

    def _assumption(self, turned: list[str]) -> str:
        """What is gone over where nobody says it, and the order of arguments where it is not that of the words."""
        said = " and ".join(dict.fromkeys(one.says for one in self.along if one.effect is Effect.REDUCES))
        statistics = (
            [f"{said} in the formula {'are those' if ' and ' in said else 'is that'} {{along}}"] if said else []
        )
        return "; ".join([*statistics, *([f"the arguments are {', '.join(turned)} in this order"] if turned else [])])

    def _is_vector(self, name: str) -> bool:
        """Whether it has an element per column, as a bias has; the diagonal of a matrix has one per row."""
        return len(self.dimensions[name]) == 1 and self.dimensions[name] != ("m",)

    def _tensor(self, name: str) -> Tensor:
        if self.products:
            return Tensor(name, self.dimensions[name])
        return Tensor(name, (-1,) if name in _VECTORS else None)

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
            return self._call(node.func.id, node.args, wanted)
        raise _NoExpression

    def _name(self, name: str, wanted: Dimensions) -> tuple[str, Dimensions]:
        if name in _NUMBERS:
            self.numbers[name] = _NUMBERS[name]
            return name, ()
        if not (_TENSOR.fullmatch(name) or name in _LIKE_VALUE | _VECTORS):
            raise _NoExpression
        vector = name in _VECTORS
        found = self.dimensions.setdefault(name, wanted[-1:] if vector else wanted)
        return name, found

    def _product(self, node: ast.BinOp, wanted: Dimensions) -> tuple[str, Dimensions]:
        left, of_left = self._written(node.left, (wanted[0], "k") if len(wanted) == 2 else wanted)
        if len(of_left) != 2:
            raise _NoExpression
        self.made += 1
        columns = _FRESH[min(self.made, len(_FRESH)) - 1]
        right, of_right = self._written(node.right, (of_left[1], columns))
        self.named.append("matmul")
        if len(of_right) != 2 or of_right[0] != of_left[1]:
            raise _NoExpression
        return self._joined(left, "@", right), (of_left[0], of_right[1])

    def _pair(self, left: ast.expr, sign: str, right: ast.expr, wanted: Dimensions) -> tuple[str, Dimensions]:
        self._refuse_number_or_tensor(left, sign, right)
        first, second = (right, left) if self._is_plain(left) and not self._is_plain(right) else (left, right)
        one, dimensions = self._written(first, wanted)
        bias = self.products and sign == "+" and isinstance(second, ast.Name) and second.id == "b"
        held = max(dimensions, wanted, key=len)  # what stands beside a vector has the columns of it, and rows
        other, of_other = self._written(second, held[-1:] if bias and "b" not in self.dimensions else held)
        self.named.append(_VERBS.get(sign, "compare"))
        code = self._joined(*((one, sign, other) if first is left else (other, sign, one)))
        return code, max(dimensions, of_other, key=len)

    def _joined(self, left: str, sign: str, right: str) -> str:
        level = _LEVELS[sign]
        return self._held(f"{self._operand(left, level)} {sign} {self._operand(right, level + 1)}", level)

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
        names = {one.id for one in (left, right) if isinstance(one, ast.Name)}
        if sign == "*" and "x" in names and names & {"a", "b", "c"}:
            letter = min(names & {"a", "b", "c"})
            raise NotUnderstood(
                f'the playbook cannot tell whether {letter} in "{ast.unparse(self.body)}" is a number or a tensor; '
                f"write alpha for a number, or y and z for tensors"
            )

    def _call(self, name: str, arguments: list[ast.expr], wanted: Dimensions) -> tuple[str, Dimensions]:
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
        written = [self._written(one, wanted) for one in arguments]
        numbers = [code for code, dimensions in written if not dimensions]
        if len(numbers) == len(written):
            raise _NoExpression
        if numbers:  # which PyTorch's functions of two tensors do not take
            code, dimensions = next(one for one in written if one[1])
            bound = "min" if function == "maximum" else "max"
            return f"torch.clamp({code}, {bound}={numbers[0]})", dimensions
        return f"torch.{function}({', '.join(code for code, _ in written)})", written[0][1]


def _is_met(node: ast.AST) -> bool:
    """Whether the value has a tensor in it that no statistic was made of."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        found = match(tuple(node.func.id.split("_"))) if len(node.args) == 1 else None
        reduces = found is not None and found.operation.effect is Effect.REDUCES
        return not reduces and any(map(_is_met, node.args))
    if isinstance(node, ast.Name):
        return node.id not in _NUMBERS
    return any(map(_is_met, ast.iter_child_nodes(node)))


def _number(node: ast.expr) -> str:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return f"-{_number(node.operand)}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return repr(node.value)
    raise _NoExpression


def _in_braces(code: str, names: tuple[str, ...]) -> str:
    """Names as the places that a reference's own names go to."""
    return re.sub(r"\b(\w+)\b(?!\()", lambda one: f"{{{one[1]}}}" if one[1] in names else one[1], code)
