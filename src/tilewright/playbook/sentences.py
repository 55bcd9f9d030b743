"""Words to steps. Whatever is not read in full, or could be read in two ways, is refused rather than guessed.

A request is a chain of steps on one value. Segments stand between `then` and commas. A segment is a formula, such as
`relu(x + bias)` or `silu times gate`, whose leaves are phrases; a phrase names an operation, or several inside out
with "of".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from tilewright.playbook.errors import NotUnderstood, outside_grammar
from tilewright.playbook.phrases import Clause, read_formula, unordered
from tilewright.playbook.vocabulary import NUMBER, Effect, Form
from tilewright.records import DType
from tilewright.tasks.errors import Remedy, RemedyKind

_DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16"), DType.BF16),
    **dict.fromkeys(("f16", "fp16", "float16", "half precision"), DType.F16),
    **dict.fromkeys(("f32", "fp32", "float32", "single precision", "float"), DType.F32),
}
_DTYPE = re.compile(rf"\b(?:in |for |with )?\b({'|'.join(_DTYPES)})(?: precision)?\b")
_SIZES = re.compile(
    r"(?:\b(?:of shape|of size|for|on) )?(?:\[ ?(\d+(?: ?, ?\d+)*) ?\]|(?<![\d.])\b(\d+(?: ?(?:x|by) ?\d+)+)\b)"
)

_DIMENSION = r"(?:dim(?:ension)?s?|ax[ie]s)"
_LAST = re.compile(
    r"(?:\b(?:over|along|across|of|on|for|in) )?(?:the )?\b(?:last|innermost|final) (?:dim|dimension|axis)\b"
    r"|,? ?(?:\b(?:over|along|across|on) )?(?:the )?\b(?:dim|dimension|axis) ?=? ?-1\b"
    r"|\b(?:over|along|across|of|for|in) (?:each|every|the|a) row\b|\b(?:each|every) row\b|\brow ?wise\b|\bper row\b"
)
_OTHER_AXES = re.compile(
    r"\b(?:(?:first|second|third|leading|middle|outer|batch|channel|sequence|feature|all|both|every|other|two|three) )"
    rf"+{_DIMENSION}\b|\b{_DIMENSION} ?=? ?\(?-?\d[^a-z]*"
    r"|\bcolumn ?wise\b|\b(?:each|every|per|over|along|across) columns?\b"
    r"|\b(?:over|along|across|of|for) (?:the |all |all the )?rows\b"
)
_THEN = re.compile(r"(?:[,;|]|->|\bthen\b)(?: ?(?:[,;|]|->|\band then\b|\bthen\b|\band\b(?! [\d.-])))*")
_POLITE = re.compile(r"^(?:hi|hello|please|can you|could you|kindly)[ ,]+")
_CLAMP = re.compile(
    r"\b(?:clamp|clip)(?: (?:x|it|to|between|from|in|range|the|values|interval))* ?"
    rf"\[? ?{NUMBER} ?(?:,|and|to)? ?{NUMBER} ?\]?"
)


@dataclass(frozen=True)
class WordsRequest:
    """What the words ask for."""

    clauses: tuple[Clause, ...]
    dtype: DType | None
    sizes: tuple[int, ...]


def parse_words(words: str) -> WordsRequest:
    """The steps, and a dtype and sizes where they are said. Raises `NotUnderstood`, quoting the word."""
    text = _normal(words)
    dtype, text = _take_dtype(text)
    sizes, text = _take_sizes(text)
    text = _without_axes(text)
    clauses = _in_order(_segments(text), words)
    if not clauses:
        raise outside_grammar(f'the playbook finds no operation in "{words}"')
    _check_parameters(clauses)
    return WordsRequest(clauses, dtype, sizes)


def _normal(words: str) -> str:
    text = re.sub(r"\s+", " ", words.lower().strip().rstrip(".!? ")).replace("_", " ")
    text = _POLITE.sub("", text)
    text = re.sub(r"^(?:y|out|output|result) ?= ?", "", text)
    text = re.sub(r"\b(?:torch\.nn\.functional|nn\.functional|torch|f)\.(?=[a-z])", "", text)
    text = re.sub(r"\blayer\b(?! ?norm)", " ", text)  # "a gelu layer"
    text = re.sub(
        r"\b(log|l2|hard|soft|leaky|layer|rms|unit|row|column|element|point|half|single)-(?=[a-z])", r"\1 ", text
    )
    text = re.sub(r"\broot-mean-square\b", "root mean square", text)
    text = re.sub(r"\b(?:followed by|and then|after that|afterwards|and after that)\b", "then", text)
    text = re.sub(r"\bprior to\b", "before", text)
    text = re.sub(r"^first,? (?!dim|ax)", "", text)
    text = re.sub(r"\band (?:with )?(?:an )?(?=eps)", "with ", text)
    text = _CLAMP.sub(r"clamp \1 to \2 ", text)
    return re.sub(r"[\"'`]", "", text)


def _take_dtype(text: str) -> tuple[DType | None, str]:
    found = {_DTYPES[one[1]] for one in _DTYPE.finditer(text)}
    if len(found) > 1:
        listed = ", ".join(sorted(found))
        raise NotUnderstood(f"the words name several dtypes, {listed}; say one", Remedy(RemedyKind.GIVE_SHAPE_OF_EACH))
    return next(iter(found), None), _DTYPE.sub(" ", text)


def _take_sizes(text: str) -> tuple[tuple[int, ...], str]:
    found = {tuple(int(size) for size in re.findall(r"\d+", one[1] or one[2])) for one in _SIZES.finditer(text)}
    if len(found) > 1:
        raise NotUnderstood("the words name several sizes", Remedy(RemedyKind.GIVE_SHAPE_OF_EACH))
    return next(iter(found), ()), _SIZES.sub(" ", text)


def _without_axes(text: str) -> str:
    """The text without "over the last dimension"; any other dimension is refused."""
    text = re.sub(r"\( *,? *\)", " ", _LAST.sub(" ", text))  # softmax(dim=-1)
    if other := _OTHER_AXES.search(text):
        said = other[0].strip()
        raise outside_grammar(
            f'the playbook does not understand "{said}": its steps go along each row, over the last dimension'
        )
    return text


def _segments(text: str) -> list[str]:
    """What stands between separators; "rmsnorm, eps 1e-3" is one."""
    found: list[str] = []
    for piece in filter(None, (one.strip() for one in _split(text))):
        if found and re.match(r"(?:with )?(?:an )?eps", piece):
            found[-1] += f" {piece}"
        else:
            found.append(piece)
    return found


def _split(text: str) -> list[str]:
    """Segments between separators that stand outside brackets."""
    pieces, depth, start, place = [], 0, 0, 0
    while place < len(text):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        found = _THEN.match(text, place) if depth == 0 else None
        if found and (not text[place].isalpha() or place == 0 or not text[place - 1].isalnum()):
            pieces.append(text[start:place])
            place = start = found.end()
            continue
        place += 1
    if depth != 0:
        raise NotUnderstood(f'the brackets in "{text.strip()}" do not match; mend them')
    return [*pieces, text[start:]]


# -- order --


def _in_order(segments: list[str], words: str) -> tuple[Clause, ...]:
    if len(segments) == 2 and (found := re.match(r"(before|after) ", segments[0])):
        # "after layernorm, apply gelu"
        segments = [segments[0][found.end() :], segments[1]]
        segments = segments if found[1] == "after" else segments[::-1]
    clauses: tuple[Clause, ...] = ()
    for place, segment in enumerate(segments):
        parts = [one.strip() for one in re.split(r"\b(?:before|after)\b", segment)]
        order = re.findall(r"\b(?:before|after)\b", segment)
        if order and (place > 0 or len(order) > 1 or not all(parts)):
            raise unordered(words)
        if order == ["after"]:
            parts.reverse()
        for part in parts:
            clauses += _joined_by_and(part, first=not clauses)
    return clauses


def _joined_by_and(part: str, first: bool) -> tuple[Clause, ...]:
    """ "add bias and relu" is a chain; "sigmoid and tanh" could be two results, and "gelu of x and bias" a sum."""
    if re.search(r"\bweights? and bias\b", part):
        return read_formula(part, first)
    pieces = [one.strip() for one in re.split(r"\band\b", part)]
    found = [read_formula(piece, first and not place) for place, piece in enumerate(pieces)]
    for place in range(1, len(pieces)):
        left, right = found[place - 1], found[place]
        alike = left and right and _kind(left[-1]) == _kind(right[0]) != Form.ACTION
        nothing = not right or (not left and place > 1)
        bare = right and right[0].words[0] in ("bias", "residual")  # "sum x and bias"
        if alike or nothing or bare or re.search(r"\bof\b|\(", pieces[place - 1]):
            raise unordered(part)
    return tuple(clause for chain in found for clause in chain)


def _kind(clause: Clause) -> Form | Effect:
    operation = clause.operation
    return Form.ACTION if operation.form is Form.ACTION else operation.effect


def _check_parameters(clauses: tuple[Clause, ...]) -> None:
    """A weight or bias said after a norm may be the norm's own."""
    for norm, after in pairwise(clauses):
        own = {one.name for one in norm.operation.extras} if norm.operation.name in ("layernorm", "rmsnorm") else set()
        said = re.search(r"with (?:affine|weight)", " ".join(norm.words))
        brought = {"weight" if one.name == "scale" else one.name for one in after.operation.extras}
        if own & brought and not said and after.operation.form is Form.ACTION:
            name = norm.operation.says
            parameters = " and ".join(one.name for one in norm.operation.extras if one.shape)
            raise NotUnderstood(
                f'the playbook cannot tell whether "{after.says}" is a part of {name}; say "{name} with {parameters}" '
                f'or "{name} without parameters" before it'
            )
