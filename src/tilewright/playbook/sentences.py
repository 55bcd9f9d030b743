"""Words to steps. Whatever is not read in full, or could be read in two ways, is refused rather than guessed.

A request is a chain of steps on one value. Segments stand between `then` and commas. A segment is a formula, such as
`relu(x + bias)` or `silu times gate`, whose leaves are phrases; a phrase names an operation, or several inside out
with "of".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.playbook.convolution_words import channels_first, in_one_order, one_window, refuse_no_sizes
from tilewright.playbook.dimension_words import LAST, Axis, mark_axes, take_axes
from tilewright.playbook.errors import NotUnderstood, outside_grammar
from tilewright.playbook.formulas import read_formula
from tilewright.playbook.named_operation import NUMBER, Effect, Form, NamedOperation
from tilewright.playbook.phrases import Clause, is_activation, unordered
from tilewright.playbook.size_words import COUNTED, layers_with_names, take_named_sizes
from tilewright.playbook.vocabulary import as_said, refuse_absent, refuse_several, reworded
from tilewright.records import DType
from tilewright.tasks.errors import Remedy, RemedyKind

_DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16"), DType.BF16),
    **dict.fromkeys(("f16", "fp16", "float16", "half precision", "in half"), DType.F16),
    **dict.fromkeys(("f32", "fp32", "float32", "single precision", "float"), DType.F32),
}
_DTYPE = re.compile(rf"\b(?:in |for |with |to |as )?\b({'|'.join(_DTYPES)})(?: precision)?\b")
_SIZES = re.compile(
    r"(?:\b(?:of shape|of size|for|on|over|of|shape|size|with) )?"
    r"(?:\[ ?(\d+(?: ?, ?\d+)*) ?\]|(?<!\w)\( ?(\d+(?: ?, ?\d+)+) ?\)"
    r"|(?<![\d.])\b(\d+(?:x\d+)+)\b)"
)
_COUNT = re.compile(
    r"(?:\b(?:of|for|on|with|over) )?"
    r"(?:(?<!top )\b(\d+(?:\.\d+)?) ?(k|m|million|thousand)? (?:elements|floats|numbers|entries)\b"
    r"|\b(?:of )?(?:an? )?(?:length|size|vector of) (\d+(?:\.\d+)?) ?(k|m|million|thousand)?\b(?! ?(?:x|columns|rows))"
    r"(?: (?:elements|floats|numbers|entries))?)"
)
_MULTIPLES = {"k": 1 << 10, "thousand": 1000, "m": 1 << 20, "million": 1_000_000}
_OPERANDS = (
    r"\b(?:matrix )?(?:multiply|product of)(?: an?)? ?¤ ?(?:matrix )?(?:by|with|and|times)(?: an?)? ?¤(?: matrix)?"
)
_THEN = re.compile(r"(?:[,;|]|->|\bthen\b)(?: ?(?:[,;|]|->|\band then\b|\bthen\b|\band\b(?! [\d.-])))*")
_IN_PLACE = re.compile(r"\b(?:done |working )?in ?place\b(?: of)?")
_WINDOW = r"(?:[ (=,]|\b(?:with|of|and|using|an?|kernels?|windows?|size|filters?|strides?|padding)\b|\b\d+(?:x\d+)*\b)"
_POOLING = re.compile(
    r"(?:\b(?P<early>[123]) ?d )?(?:\b(?P<before>\d+(?:x\d+)+) )?(?<!global )(?<!adaptive )"
    r"\b(?P<kind>max(?:imum)?|av(?:era)?ge?|mean) ?pool(?:ing)? ?(?P<rank>[123](?= ?d\b))?(?: ?d\b)?"
    rf"(?P<rest>{_WINDOW}*)\)?"
)
_SETTING = re.compile(r"(strides?|padding)[ =]*(?:of |size )?((?:\d+)(?:x\d+)*)")
_ALONG = "softmax|log softmax|sum|mean|prod|var|std|argmax|argmin|logsumexp|cumsum|cumprod"
_COMMAS = re.compile(r"(?<![\[(,\d])(?<![\[(] )(?:\b|(?<=\dx))\d{1,3}(?:,\d{3})+(?:\b|(?=x\d))(?! ?[\])])")
_COUNTED = re.compile(rf" ?[x×] ?\d| (?:by \d|{COUNTED}|elements|floats|numbers|entries)")
_FACTOR = re.compile(r"\b(?:by|than|eps|alpha|beta|slope|temperature|threshold|factor|delta)(?: of| to)? ?=? ?$")
_CROSSED = re.compile(r"\d ?(?:[x×]|by) ?$")
_NO_POWER = r"(?! ?[*/@^]| squared| cubed)"  # of which nobody knows whether it comes first
_LETTERS = (  # tensors by their names, with a verb
    (r"\badd ([a-z]) (?:and|to) ([a-z])\b", r"\1 + \2"),
    (rf"\b(?:the )?sum of ([a-z]) and ([a-z])\b{_NO_POWER}", r"\1 + \2"),
    (rf"\bsubtract ([a-z]) from ([a-z])\b{_NO_POWER}", r"\2 - \1"),
    (r"\bdivide ([a-z]) by ([a-z])\b(?! ?[-+*/@^])", r"\1 / \2"),
)
_MATRICES_END = r"(?=$|[,;)]| (?:then|in|for|with|of|on|followed)\b)"
_MATRICES = (  # capital letters are matrices: of x^T x nobody knows whether x is a vector
    (rf"(?<![^ (])([A-HJ-UW-Z])(?:\^T|ᵀ) ?([A-HJ-UW-Z]){_MATRICES_END}", r"\1.T @ \2"),
    (rf"(?<![^ (])([A-HJ-UW-Z]) ([A-HJ-UW-Z])(?:\^T|ᵀ){_MATRICES_END}", r"\1 @ \2.T"),
)
_RESULTS = {"max": "largest", "min": "smallest", "sum": "total", "prod": "product"}  # not as functions are called
_STATISTICS = "sum|mean|amax|amin|max|min|prod|var|std|argmax|argmin|l2_norm"
_NESTED = r"\((?:[^(),]|\((?:[^()]|\([^()]*\))*\))+\)"  # brackets in brackets, with no comma of their own
_METHOD_OF = rf"(?<![\w.])([a-z]|(?<![a-z] )[a-z0-9_]*{_NESTED.replace(',', '', 1)})"
_METHODS = 4  # of a chain; what is longer is refused
_VERB = {"adds": "add", "multiplies": "multiply", "subtracts": "subtract", "divides": "divide", "sums": "sum"}
_VERB |= {"adding": "add", "multiplying": "multiply", "summing": "sum", "means": "mean", "maxima": "max"}
_VERBS = re.compile(rf"\b(?:{'|'.join(_VERB)})\b")
_POLITE = re.compile(r"^(?:(?:hi|hello|please|can you|could you|would you|kindly)[ ,]+)+")
_THANKS = re.compile(r"[,.!?]? ?\b(?:thanks|thank you)(?: (?:a lot|so much|very much))?$|(?<=[a-z])\?(?= |$)")
_SIGNS = (  # as people write them on paper
    (r"(?<![\w.])(\d+(?:\.\d+)?)([xyz])(?=$| ?[-+*/^)²³])", r"\1 * \2"),
    ("²", "^2"),
    ("³", "^3"),
    (r"\|([a-z](?: ?[-+] ?[a-z])?)\|", r"abs(\1)"),
    (r"(?<![\w.])e ?(?:\^|\*\*) ?(?:\(|(-?[a-z])\b)", lambda one: f"exp({one[1]})" if one[1] else "exp("),
    (r"sqrt\(d[_ ]?(?:k|head)\)", "sqrt(d)"),
)
_CLAMP = re.compile(
    r"\b(?:clamp|clip)(?: (?:x|it|to|between|from|in|range|the|values|interval))* ?"
    rf"\[? ?{NUMBER} ?(?:,|and|to|\.\.+|-(?=[\d.]))? ?{NUMBER} ?\]?"
)


@dataclass(frozen=True)
class WordsRequest:
    """What the words ask for."""

    clauses: tuple[Clause, ...]
    dtype: DType | None
    sizes: tuple[tuple[int, ...], ...]  # of the tensors in their order, as far as they were said
    named: tuple[tuple[str, int], ...] = ()  # dimensions by name
    in_place: bool = False


def parse_words(words: str) -> WordsRequest:
    """The steps, and a dtype and sizes where they are said. Raises `NotUnderstood`, quoting the word."""
    words = _with_products(words)
    text = _normal(words)
    refuse_absent(text)
    in_place = _IN_PLACE.search(text) is not None
    dtype, text = _take_dtype(_IN_PLACE.sub(" ", text))
    named, text = take_named_sizes(channels_first(text))
    text, axes = mark_axes(_windows(text))
    sizes, text = _take_sizes(text)
    clauses = _in_order(_segments(text), words, axes)
    if not clauses:
        raise outside_grammar(f'the playbook finds no operation in "{words}"')
    _check_parameters(clauses)
    clauses = tuple(_as_spelled(one, words) for one in clauses)
    return WordsRequest(clauses, dtype, sizes, named, in_place)


def _with_products(words: str) -> str:
    """Products of matrices by their signs, as long as capital letters can be told from small ones."""
    words = re.sub(r"\bQ ?K(?=\^T|ᵀ)(.*\)) ?V\b", r"Q @ K\1 @ V", words.strip())
    words = re.sub(r"\b([A-Za-z])(?:\^T|ᵀ)", r"\1.T", words) if "@" in words else words
    for pattern, product in _MATRICES:
        words = re.sub(pattern, product, words)
    return words


def _normal(words: str) -> str:
    text = _methods_as_calls(re.sub(r"\s+", " ", words.lower().strip().rstrip(".!? "))).replace("_", " ")
    text = re.sub("[§¤]", "?", text)  # marks of the grammar's own
    text = _THANKS.sub("", _POLITE.sub("", text))
    for pattern, sign in _SIGNS:
        text = re.sub(pattern, sign, text)
    text = _COMMAS.sub(_one_number, text)
    for pattern, sign in _LETTERS:
        text = re.sub(pattern, sign, text)
    text = re.sub(r"^(?:[a-z]|out|output|result) ?= ?", "", text)
    text = re.sub(r"\bfused\b|\bfuse\b", " ", text)
    text = re.sub(r"(pool ?\dd)\(x, ?", r"\1(", text)
    text = re.sub(r"(pool ?\dd\(\d+), ?(\d+)(?=[,)])", r"\1, stride=\2", text)  # MaxPool2d(3, 2, 1)
    text = re.sub(r"(pool ?\dd\(\d+, stride=\d+), ?(\d+)\)", r"\1, padding=\2)", text)
    text = re.sub(rf"\bmin ?= ?{NUMBER} ?, ?max ?= ?{NUMBER}", r"\1, \2", text)
    text = layers_with_names(text)
    text = _VERBS.sub(lambda one: _VERB[one[0]], text)
    text = re.sub(r"\bgroup ?norm ?\((\d+)\)", r"group norm with \1 groups", text)
    text = re.sub(r"\bgroup ?norm ?\((\d+), ?(\d+)\)", r"group norm with \1 groups channels=\2", text)
    text = re.sub(rf"\b({_ALONG})\(([a-z]), ?(-?\d+|\([-\d, ]+\))\)", r"\1(\2, dim=\3)", text)
    text = re.sub(r"\btop ?k\(([a-z]), ?(?:k ?= ?)?(\d+)\)", r"top \2 of \1", text)
    text = re.sub(r"(?<=[a-z] )(-?\d+)/(\d+)\b(?! ?[*/^.])", _fraction, text)
    text = re.sub(r"\blayer\b(?! ?norm)", " ", text)  # "a gelu layer"
    text = re.sub(r"\b([a-z]{2,}|l[12]|\d+)-(?=[a-z])", r"\1 ", text)  # top-k, row-wise, root-mean-square
    text = re.sub(r"\b(element|point) wise\b", r"\1wise", text)
    text = re.sub(r"\btop-(?=\d)", "top ", text)
    text = re.sub(r"\btop ?k(?:(?: with| for|,)? k)? ?=? ?(\d+)", r"top \1", text)
    text = re.sub(r"\bk largest(?: [a-z]+)?,?(?: with| for| where)? k ?=? ?(\d+)", r"top \1", text)
    text = re.sub(
        rf"\b(?:cast|convert)(?: (?:x|it|from|{'|'.join(_DTYPES)}))* to ({'|'.join(_DTYPES)}|half)\b", _cast, text
    )
    text = re.sub(r"(?<=\d) ?[x×] ?(?=\d)", "x", text)  # 4096 x 1024
    text = re.sub(r"(?<![\dx.])\b\d+(?: by \d+)+\b(?!x)", lambda one: one[0].replace(" by ", "x"), text)
    refuse_several(text)
    text = reworded(text)
    text = re.sub(r"\b(?:followed by|and then|after that|afterwards|and after that)\b", "then", text)
    text = re.sub(r"\bprior to\b", "before", text)
    text = re.sub(r"^first,? (?!dim|ax)", "", text)
    text = re.sub(r"\band (?:with )?(?:an )?(?=eps)", "with ", text)
    text = _CLAMP.sub(r"clamp \1 to \2 ", text)
    return re.sub(r"[\"'`]", "", text)


def _as_spelled(clause: Clause, words: str) -> Clause:
    """The step with its tensors as they are spelled, where the grammar reads small letters alone. Raises
    `NotUnderstood` for a name that is spelled in two ways, as in "x - X"."""
    own = (clause.operation.takes, *clause.operation.extras) if not clause.operation.pattern else ()
    called = {one.name: one.name.rstrip("_") for one in own if one is not None} | dict(clause.called)
    for name, said in called.items():
        spelled = set(re.findall(rf"(?i)(?<![\w.])(?<!\d )({said})\b(?!\.\w{{2}})", words))
        if len(spelled) > 1 and said == "a":
            spelled = set(re.findall(r"\b([aA])\b(?! +(?!and\b|to\b|by\b|from\b)[a-z]{2})", words))  # no article
        if len(spelled) > 1:
            raise NotUnderstood(f"{' and '.join(sorted(spelled))} could be one tensor or two; use different letters")
        called[name] = next(iter(spelled), said)
    return replace(clause, called=tuple(called.items()))


def _windows(text: str) -> str:
    """Poolings and convolutions with what is said of their windows in one order."""
    refuse_no_sizes(text)
    return in_one_order(_POOLING.sub(_pooling, text))


def _one_number(said: re.Match[str]) -> str:
    """50,000 as 50000: of several numbers none begins with 0, has a noun after the last of them, or a cross. Where a
    factor is said, 1,000 may be 1.0 to some."""
    number, groups = said[0].replace(",", ""), said[0].split(",")
    rest, before = said.string[said.end() :], said.string[: said.start()]
    zeros = any(group.startswith("0") for group in groups[1:]) and _FACTOR.search(before) is None
    one = zeros or _COUNTED.match(rest) or _CROSSED.search(before)
    if not one:
        other = said[0].replace(",", ".") if _FACTOR.search(before) else " and ".join(groups)
        raise NotUnderstood(f'"{said[0]}" could be {number} or {other}; write it without the comma')
    return number


def _cast(said: re.Match[str]) -> str:
    """A cast, so that its dtype is not taken for that of the elements; what it is from stays as that."""
    source = re.search("|".join(_DTYPES), said[0].partition(" to ")[0])
    return f"cast{_DTYPES.get(said[1], DType.F16)} {source[0] if source else ''}"


def _methods_as_calls(text: str) -> str:
    """x.abs().sum(dim=1) as sum(abs(x), dim=1). Statistics in PyTorch's own notation are of all elements where no
    dimension is said; those of a formula, as in x - mean(x), are of each row.
    """
    text = re.sub(
        r"(?<![\w.])f\.normalize\((?=[^()]*\bdim\b)", "l2_normalize(", text
    )  # a norm of a tensor, and no layer
    # Elsewhere max(x, 0) is the larger of two; here the number is a dimension.
    text = re.sub(rf"\btorch\.(max|min)\(((?:[^(),]|{_NESTED})+), ?(-?\d+)\)", r"\1(\2, dim=\3)", text)
    text = re.sub(r"(?<=[\w)]\.)(max|min)\((-?\d+)\)", r"\1(dim=\2)", text)
    text = re.sub(r"\bf\.cosine_similarity\(([^(),]+, ?[^(),]+)\)", r"cosine_similarity(\1, dim=1)", text)
    text = re.sub(r"(?<=\btorch\.)norm\(|(?<=\.)norm\((?=\)|dim)", "l2_norm(", text)
    text = re.sub(rf"\btorch\.({_STATISTICS})({_NESTED})", lambda one: f"{one[1]}{one[2][:-1]} of all elements)", text)
    text = re.sub(r"\b(?:torch\.nn\.functional|nn\.functional|torch\.nn|torch|nn|f)\.(?=[a-z])", "", text)
    for _ in range(_METHODS):
        text = re.sub(rf"{_METHOD_OF}\.({_STATISTICS})\(\)", r"\2(\1 of all elements)", text)
        text = re.sub(rf"{_METHOD_OF}\.(?!t\()([a-z][a-z0-9_]*)\(", r"\2(\1, ", text, count=1).replace(", )", ")")
    return text


def _fraction(said: re.Match[str]) -> str:
    """A number said as 1/8, where words come before it: of "x / 1/8" only the signs can say what is divided."""
    if int(said[2]) == 0:
        raise NotUnderstood(f"{said[0]} is no number; write another")
    return repr(int(said[1]) / int(said[2]))


def _pooling(said: re.Match[str]) -> str:
    """A pooling with its window, stride and padding in one order: maxpool2 3 2 1."""
    rest, kind = said["rest"] or "", "max" if said["kind"].startswith("max") else "avg"
    settings = {one[1].rstrip("s"): one[2] for one in _SETTING.finditer(rest)}
    sizes = [*filter(None, (said["before"],)), *re.findall(r"\d+(?:x\d+)*", _SETTING.sub("", rest))]
    window, shape = one_window(said[0], sizes, said["rank"] or said["early"])
    window = window or "2"
    for name, one in (("window", window), *settings.items()):
        if len(set(one.split("x"))) > 1:
            raise NotUnderstood(f'the playbook reads a {name} with equal sides, and "{one}" has others; say one size')
    sides = window.split("x")
    rank = said["rank"] or said["early"] or (str(len(sides)) if len(sides) > 1 else "2")
    if any(len(one.split("x")) not in (1, int(rank)) for one in (window, *settings.values())):
        raise NotUnderstood(
            f'"{said[0].strip()}" pools over {rank} dimensions, and does not say {rank} sizes; say one size'
        )
    side, stride, padding = (
        one.split("x")[0] for one in (window, settings.get("stride", window), settings.get("padding", "0"))
    )
    return f"{kind}pool{rank} {side} {stride} {padding}{shape} "


def _take_dtype(text: str) -> tuple[DType | None, str]:
    found = {_DTYPES[one[1]] for one in _DTYPE.finditer(text)}
    if len(found) > 1:
        listed = ", ".join(sorted(found))
        raise NotUnderstood(f"the words name several dtypes, {listed}; say one", Remedy(RemedyKind.GIVE_SHAPE_OF_EACH))
    numbers = DType.F32 if re.search(r"\bfloats\b", text) else None  # "1 million floats"
    return next(iter(found), numbers), _DTYPE.sub(" ", text)


def _take_sizes(text: str) -> tuple[tuple[tuple[int, ...], ...], str]:
    """Sizes of tensors: 4096x1024, (4096, 1024), 4096 by 1024; 1000000 elements."""
    text = re.sub(r"\b(\d+) (?:matrices|images|tensors|batches) of (?=\d+ ?x)", r"\1x", text)
    found = tuple(
        tuple(int(size) for size in re.findall(r"\d+", one[1] or one[2] or one[3])) for one in _SIZES.finditer(text)
    )
    text = _SIZES.sub("¤", text)
    text = re.sub(_OPERANDS, "matmul", text)
    text = re.sub(r"¤(?: ?(?:by|with|and|times|@|x)(?: an?)? ?¤)*", " ", text)
    counts = tuple(
        (int(float(one[1] or one[3]) * _MULTIPLES.get(one[2] or one[4] or "", 1)),) for one in _COUNT.finditer(text)
    )
    if found and counts:
        raise NotUnderstood("the words name several sizes", Remedy(RemedyKind.GIVE_SHAPE_OF_EACH))
    return found or counts, _COUNT.sub(" ", text)


def _segments(text: str) -> list[str]:
    """What stands between separators; "rmsnorm, eps 1e-3" is one."""
    found: list[str] = []
    for piece in filter(None, (one.strip() for one in _split(text))):
        causal = piece == "causal" and found and re.search(r"\b(?:attention|sdpa|gqa)$", found[-1])
        if causal or (found and re.match(r"(?:with )?(?:(?:an )?eps|\d+ groups)", piece)):
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
        raise NotUnderstood(f'the brackets in "{as_said(text.strip())}" do not match; mend them')
    return [*pieces, text[start:]]


# -- order --


def _in_order(segments: list[str], words: str, axes: tuple[Axis, ...]) -> tuple[Clause, ...]:
    if len(segments) == 2 and (found := re.match(r"(before|after) ", segments[0])):
        # "after layernorm, apply gelu"
        segments = [segments[0][found.end() :], segments[1]]
        segments = segments if found[1] == "after" else segments[::-1]
    clauses: tuple[Clause, ...] = ()
    pending: tuple[Axis, ...] = ()  # "over the last axis, softmax"
    for place, segment in enumerate(segments):
        segment, said = take_axes(segment, axes)
        if not segment.strip():
            pending += said
            continue
        parts = [one.strip() for one in re.split(r"\b(?:before|after)\b", segment)]
        order = re.findall(r"\b(?:before|after)\b", segment)
        if order and (place > 0 or len(order) > 1 or not all(parts)):
            raise unordered(words)
        if order == ["after"]:
            parts.reverse()
        steps: tuple[Clause, ...] = ()
        for part in parts:
            steps += _joined_by_and(part, first=not clauses and not steps)
        clauses += _along(steps, (*pending, *said))
        pending = ()
    return _along(clauses, pending)


def _along(clauses: tuple[Clause, ...], axes: tuple[Axis, ...]) -> tuple[Clause, ...]:
    """The steps with the dimensions that were said for them."""
    if not axes:
        return clauses
    can = [place for place, one in enumerate(clauses) if one.operation.goes_over or one.operation.elsewhere]
    steps = " and ".join(clauses[place].says for place in can) or " and ".join(one.says for one in clauses)
    if len(can) != 1 and _needs_no_saying(axes, clauses):
        return clauses
    if not can:
        raise outside_grammar(f'"{axes[0].said}" cannot be said of {steps} in words')
    if len(can) > 1:
        raise outside_grammar(
            f'the playbook cannot tell whether "{axes[0].said}" is said of {steps}; join them by "then"'
        )
    step = clauses[can[0]]
    axes = axes if step.axis == LAST else (step.axis, *axes)
    if len({one.dimensions for one in axes}) > 1:
        raise outside_grammar(
            f'{steps} goes "{axes[0].said}" or "{axes[1].said}"; say one, or both at once, such as "over dims 0 and 1"'
        )
    if axes[0].is_last:
        return (*clauses[: can[0]], replace(step, axis=axes[0]), *clauses[can[0] + 1 :])
    operation = step.operation if step.operation.goes_over else step.operation.elsewhere
    assert operation is not None
    one_by_one = len(axes[0].dimensions) == 1
    if not one_by_one and not operation.several:
        raise outside_grammar(f'{step.says} goes over one dimension at a time, and "{axes[0].said}" is not one')
    step = replace(step, operation=operation, axis=axes[0])
    return (*clauses[: can[0]], step, *clauses[can[0] + 1 :])


def _needs_no_saying(axes: tuple[Axis, ...], clauses: tuple[Clause, ...]) -> bool:
    """ "gelu of each row", "relu of all elements": the dimensions change nothing; of a dot product they would."""
    if all(one.is_last for one in axes):
        return any(one.operation.is_by_row for one in clauses)
    return not any(one.dimensions for one in axes) and all(one.operation.effect is Effect.ELEMENTS for one in clauses)


def _joined_by_and(part: str, first: bool) -> tuple[Clause, ...]:
    """ "add bias and relu" is a chain; "sigmoid and tanh" could be two results, and "gelu of x and bias" a sum."""
    if re.search(r"\bweights? and bias\b", part):
        return read_formula(part, first)
    pieces = [one.strip() for one in re.split(r"\band\b", part)]
    found = [read_formula(piece, first and not place) for place, piece in enumerate(pieces)]
    if len(found) > 1 and all(len(one) == 1 and one[0].operation.is_statistic for one in found):
        return (_together(tuple(one[0] for one in found)),)
    for place in range(1, len(pieces)):
        left, right = found[place - 1], found[place]
        leads = left and right and left[-1].operation.leads and is_activation(right[0])  # "batch norm and relu"
        alike = left and right and _kind(left[-1]) == _kind(right[0]) != Form.ACTION and not leads
        nothing = not right or (not left and place > 1)
        bare = right and right[0].words[0] in ("bias", "residual")  # "sum x and bias"
        if right and (pieces[place].startswith(("its ", "their ")) or _gives_one_of_all(left, right)):
            raise outside_grammar(
                f'"{as_said(part)}" could be two results, or a chain: say "then" in place of "and" where it is a chain'
            )
        if alike or nothing or bare or re.search(r"\bof\b|\(", pieces[place - 1]):
            raise unordered(part)
    return tuple(clause for chain in found for clause in chain)


def _together(statistics: tuple[Clause, ...]) -> Clause:
    """ "mean and variance of each row": a result of each, as nothing is left of a row after the first."""
    operations = [one.operation for one in statistics]
    names = tuple(one.name.removeprefix("row_") for one in operations)
    if len(set(names)) < len(names):
        raise unordered(" and ".join(one.says for one in operations))
    together = NamedOperation(
        "_and_".join(names),
        " and ".join(one.says for one in operations),
        "",
        ", ".join(one.code for one in operations),
        Effect.REDUCES,
        assumption="; ".join(one.assumption for one in operations),
        results=tuple(_RESULTS.get(one, one) for one in names),
        several=all(one.several for one in operations),
    )
    return Clause(together, (), tuple(word for one in statistics for word in one.words))


def _gives_one_of_all(left: tuple[Clause, ...], right: tuple[Clause, ...]) -> bool:
    """ "softmax and max": a second result, as it may be, or the next step."""
    return bool(left) and left[-1].operation.effect is Effect.WHOLE_ROW and right[0].operation.effect is Effect.REDUCES


def _kind(clause: Clause) -> Form | Effect:
    operation = clause.operation
    return Form.ACTION if operation.form is Form.ACTION else operation.effect


def _check_parameters(clauses: tuple[Clause, ...]) -> None:
    """A weight or bias said after a norm may be the norm's own."""
    for norm, after in pairwise(clauses):
        own = {one.name for one in norm.operation.extras} if norm.operation.leads else set()
        said = re.search(r"with (?:affine|weight)", " ".join(norm.words))
        brought = {"weight" if one.name == "scale" else one.name for one in after.operation.extras}
        if own & brought and not said and after.operation.form is Form.ACTION:
            name = norm.operation.says
            parameters = " and ".join(one.name for one in norm.operation.tensors)
            raise NotUnderstood(
                f'the playbook cannot tell whether "{after.says}" is a part of {name}; say "{name} with {parameters}" '
                f'or "{name} without parameters" before it'
            )
