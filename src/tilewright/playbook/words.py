"""Words to a specification: clauses joined by "then", each an operation of the vocabulary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.playbook.problems import NotUnderstood
from tilewright.playbook.vocabulary import KNOWN, OPERATIONS, Effect, Operation, Shape
from tilewright.records import DType, Specification, TensorSpec

_DTYPES = {
    "bf16": DType.BF16,
    "bfloat16": DType.BF16,
    "f16": DType.F16,
    "fp16": DType.F16,
    "float16": DType.F16,
    "half": DType.F16,
    "f32": DType.F32,
    "fp32": DType.F32,
    "float32": DType.F32,
    "float": DType.F32,
}
_SEPARATOR = re.compile(r"\s*(?:,|;|->|\+|\bfollowed by\b|\band then\b|\bthen\b|\bafter that\b|\band\b)\s*")
_SIZES = re.compile(r"(?:\b(?:of shape|for|on) )?(?:\[(\d+(?:, ?\d+)*)\]|\b(\d+(?: ?(?:x|by) ?\d+)+)\b)")
_ALONG = re.compile(
    r"\b(?:over|along|across|of|on|for)? ?(?:the )?(?:last|innermost|final) (?:dim(?:ension)?|axis)\b"
    r"|\b(?:over|along|across|of|for) (?:each |every |the )?rows?\b|\brow[- ]?wise\b|\bper row\b"
)
_FILLER_WORDS = """
a an the of to it its result results value values x input tensor kernel kernels fused fuse please compute
computes calculate apply applied do take make write give me i want need would like op operation function
activation for on by in with using use over that this is elementwise pointwise cuda gpu fast first and
which each every element elements row rows
"""
_FILLER = frozenset(_FILLER_WORDS.split())
_FUNCTIONS = frozenset(("exp", "log", "sqrt", "abs", "tanh"))  # of C++: no op is called so
_DEFAULT_ROWS, _DEFAULT_COLS = 4096, 1024


@dataclass(frozen=True)
class Clause:
    """One step: its operation and the numbers that were said."""

    operation: Operation
    numbers: tuple[str, ...]

    @property
    def says(self) -> str:
        return self.operation.says.format(*self.numbers)


@dataclass(frozen=True)
class Request:
    """What the words ask for."""

    clauses: tuple[Clause, ...]
    dtype: DType | None
    sizes: tuple[int, ...]


def parse_words(words: str) -> Request:
    """The steps, and a dtype and sizes where they are said. Raises `NotUnderstood`, quoting the word."""
    text = re.sub(r"\s+", " ", words.lower().strip().rstrip(".!")).replace("_", " ")
    text = re.sub(r"\blayer\b(?! ?norm)", " ", text)  # "a gelu layer"
    text = re.sub(r"\b(log|l2|hard|soft|leaky|layer|rms|unit|row)-", r"\1 ", text)
    text = re.sub(r"\bswiglu\b|\bsilu and multiply\b", "silu then multiply by gate", text)
    dtype, text = _take_dtype(text)
    sizes, text = _take_sizes(text)
    text = re.sub(r"(\d) and (-?[\d.])", r"\1 to \2", text)  # clamp between 0 and 1
    text = re.sub(r"(\d), ?(-?[\d.])", r"\1 to \2", text)  # clamp(0, 1)
    text = re.sub(r"[()\[\]=:\"'*]", " ", _ALONG.sub(" ", text))
    clauses: list[Clause] = []
    for piece in _SEPARATOR.split(text):
        if piece.split() and not set(piece.split()) <= _FILLER:
            clauses += _clauses(piece)
    if not clauses:
        raise NotUnderstood(
            f'the playbook finds no operation in "{words}"; it knows {KNOWN}; a model reads more: --model'
        )
    return Request(tuple(clauses), dtype, sizes)


def _take_dtype(text: str) -> tuple[DType | None, str]:
    found = re.search(rf"\b(?:in |for |with )?({'|'.join(_DTYPES)})(?: precision)?\b", text)
    if found is None:
        return None, text
    return _DTYPES[found[1]], f"{text[: found.start()]} {text[found.end() :]}"


def _take_sizes(text: str) -> tuple[tuple[int, ...], str]:
    found = _SIZES.search(text)
    if found is None:
        return (), text
    sizes = tuple(int(one) for one in re.findall(r"\d+", found[1] or found[2]))
    return sizes, f"{text[: found.start()]} {text[found.end() :]}"


def _clauses(piece: str) -> list[Clause]:
    """A piece of text as one operation, or as operations said one after another."""
    words = piece.split()
    if matched := _matched(words):
        return [matched]
    # "gelu of layernorm" is said from the outside in; "layernorm gelu" in order.
    if "of" in words[1:]:
        place = words.index("of", 1)
        outer, inner = _matched(words[:place]), words[place + 1 :]
        if outer is not None and not set(inner) <= _FILLER:
            return [*_clauses(" ".join(inner)), outer]
    for end in range(len(words) - 1, 0, -1):
        first = _matched(words[:end])
        if first is not None:
            return [first, *_clauses(" ".join(words[end:]))]
    unknown = next((word for word in words if word not in _FILLER and not _is_known(word)), words[0])
    raise NotUnderstood(
        f'the playbook does not understand "{unknown}" in "{piece.strip()}"; it knows {KNOWN}, joined by "then"; '
        "a model reads more: --model"
    )


def _matched(words: list[str]) -> Clause | None:
    """The operation these words name; words that say nothing are dropped, first those at the ends, then all."""
    for kept in (words, _trimmed(words), [word for word in words if word not in _FILLER]):
        clause = " ".join(kept)
        for operation in OPERATIONS:
            found = operation.match(clause)
            if found is not None:
                said = tuple(one for one in found.groups() if one is not None)
                return Clause(operation, tuple(_number(one) for one in said + operation.defaults[len(said) :]))
    return None


def _trimmed(words: list[str]) -> list[str]:
    first = next((place for place, word in enumerate(words) if word not in _FILLER), len(words))
    last = next((place for place in range(len(words), first, -1) if words[place - 1] not in _FILLER), first)
    return words[first:last]


def _is_known(word: str) -> bool:
    return any(re.search(rf"\b{re.escape(word)}\b", one.pattern.replace(" ?", " ")) for one in OPERATIONS)


def _number(text: str) -> str:
    return repr(float(text))


# -- the specification --


def specification(words: str, shapes: Mapping[str, str]) -> Specification:
    """The reference in PyTorch and the task's description. Shapes given for `x` win over sizes in the words."""
    request = parse_words(words)
    given = {name: _parsed_shape(name, text) for name, text in shapes.items()}
    return _Writer(request, given).specification()


def _parsed_shape(name: str, text: str) -> TensorSpec:
    try:
        return TensorSpec.parse(text)
    except ValueError as error:
        raise NotUnderstood(f"--shape {name}: {error}") from None


class _Writer:
    def __init__(self, request: Request, given: Mapping[str, TensorSpec]) -> None:
        self.request = request
        self.given = given
        self.dtype = given["x"].dtype if "x" in given else request.dtype or DType.BF16
        sizes = given["x"].shape if "x" in given else request.sizes or (_DEFAULT_ROWS, _DEFAULT_COLS)
        if not sizes:
            raise NotUnderstood("x needs at least one dimension, such as --shape x=4096x1024:bf16")
        self.dimensions = dict(zip(_dimension_names(len(sizes)), sizes, strict=True))
        self.inputs: dict[str, str] = {"x": self._tensor("x", tuple(self.dimensions))}
        self.numbers: dict[str, float] = {}
        self.assumptions: list[str] = []

    def specification(self) -> Specification:
        self._check_order()
        if self._wants_positive():
            self._assume("x is positive")
        self._assume(f"elements are {self.dtype}" + ("" if self._dtype_said() else ", as no dtype was said"))
        lines = [
            f"    y = {self._code(clause, 'y' if place else 'x')}" for place, clause in enumerate(self.request.clauses)
        ]
        name = self._name()
        parameters = [*self.inputs, *(f"{number}: float = {value!r}" for number, value in self.numbers.items())]
        says = ", then ".join(clause.says for clause in self.request.clauses)
        reference = "\n".join(
            [
                *_imports(lines),
                "",
                "",
                f"def {name}({', '.join(parameters)}):",
                f'    """{says[0].upper()}{says[1:]}{self._over()}."""',
                *lines,
                "    return y",
                "",
            ]
        )
        return Specification(reference, self._description(name), tuple(self.assumptions))

    def _over(self) -> str:
        along = any(one.operation.effect is not Effect.ELEMENTS for one in self.request.clauses)
        return ", over the last dimension" if along else ""

    def _dtype_said(self) -> bool:
        return "x" in self.given or self.request.dtype is not None

    def _assume(self, text: str) -> None:
        if text and text not in self.assumptions:
            self.assumptions.append(text)

    def _check_order(self) -> None:
        reduced: Clause | None = None
        for clause in self.request.clauses:
            operation = clause.operation
            if reduced is not None and (operation.effect is not Effect.ELEMENTS or operation.extras):
                raise NotUnderstood(
                    f'"{clause.says}" cannot follow "{reduced.says}", which leaves one element per row; '
                    "put it first, or let a model read the request: --model"
                )
            reduced = clause if operation.effect is Effect.REDUCES else reduced

    def _code(self, clause: Clause, value: str) -> str:
        names = {}
        for extra in clause.operation.extras:
            name, number = extra.name, 2
            while name in self.inputs or name in self.numbers:
                name, number = f"{extra.name}_{number}", number + 1
            names[extra.name] = name
            if extra.shape is None:
                self.numbers[name] = extra.default
            else:
                dimensions = tuple(self.dimensions) if extra.shape is Shape.WHOLE else tuple(self.dimensions)[-1:]
                self.inputs[name] = self._tensor(name, dimensions)
        self._assume(clause.operation.assumption.format(*clause.numbers))
        return clause.operation.code.format(*clause.numbers, v=value, **names)

    def _tensor(self, name: str, dimensions: tuple[str, ...]) -> str:
        dtype = self.given[name].dtype if name in self.given else self.dtype
        return f"{dtype}[{', '.join(dimensions)}]"

    def _name(self) -> str:
        names = [clause.operation.name for clause in self.request.clauses]
        unique = [one for place, one in enumerate(names) if place == 0 or names[place - 1] != one]
        name = "_".join(unique[:5])
        return f"{name}_op" if name in {*_FUNCTIONS, *self.inputs, *self.numbers} else name

    def _description(self, name: str) -> str:
        lines = [f'name = "{name}"', f'function = "{name}"', "assumptions = ["]
        lines += [f'    "{one}",' for one in self.assumptions]
        lines += ["]", "", "[dimensions]", *(f"{one} = {size}" for one, size in self.dimensions.items())]
        lines += ["", "[inputs]", *(f'{one} = "{text}"' for one, text in self.inputs.items())]
        lines += [f"{one} = {value!r}" for one, value in self.numbers.items()]
        if self._wants_positive():
            lines += ["", "[values]", 'x = "uniform 0.1 4"']
        return "\n".join(lines) + "\n"

    def _wants_positive(self) -> bool:
        """Whether a root or a logarithm meets x before anything has made it positive."""
        for clause in self.request.clauses:
            if clause.operation.needs_positive or clause.operation.makes_positive:
                return clause.operation.needs_positive
        return False


def _dimension_names(rank: int) -> tuple[str, ...]:
    known = {1: ("cols",), 2: ("rows", "cols"), 3: ("batch", "rows", "cols")}
    return known.get(rank) or (*(f"batch_{place}" for place in range(1, rank - 1)), "rows", "cols")


def _imports(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    return ["import torch"] * ("torch." in text) + ["import torch.nn.functional as F"] * ("F." in text)
