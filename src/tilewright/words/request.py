"""A request in words, from its text to its specification."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from tilewright.records import Specification
from tilewright.words.catalogue import names, operations
from tilewright.words.errors import NotUnderstood, SeveralReadings, unread
from tilewright.words.formulas import Formula, read_formula
from tilewright.words.reading import read_rest, read_tokens
from tilewright.words.specification import written
from tilewright.words.steps import Request, Step
from tilewright.words.text import joined, plain
from tilewright.words.tokens import tokens

_MOST_WORDS = 120
_NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?|\.\d+"
_UNITS = {
    "": (1,),
    "k": (1000, 1024),
    "m": (10**6, 1 << 20),
    "thousand": (1000,),
    "million": (10**6,),
    "billion": (10**9,),
}
_DERIVED: tuple[Callable[[float], float], ...] = (
    lambda v: 1 - v,
    lambda v: 1 / v,
    lambda v: v**0.5,
    lambda v: v**-0.5,
    lambda v: v * v,
    lambda v: v**-2,
)
_PARTS = re.compile(r"(?:[^,;:()\[\].]|\.(?!\s|$)|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\[[^\]]*\])+")
_CALL = re.compile(r"(?:\b(?:torch\.)?(?:nn|F|torch|nn\.functional)\.)?\b([A-Za-z_]\w*) ?\(([^()]*)\)")


def read(words: str, shapes: Mapping[str, str]) -> Specification:
    """The reference for a request in words; raises `NotUnderstood`, and `SeveralReadings` where it may mean several."""
    text = re.sub(r"\s+", " ", words).strip()
    if text.count(" ") > _MOST_WORDS:
        raise unread(f"the request has more than {_MOST_WORDS} words")
    made = _specification(text, shapes)
    lost = lost_numbers(text, made, bool(shapes))
    if lost:
        raise unread(f'it is not understood what {", ".join(lost)} means in "{text}"')
    return made


def lost_numbers(text: str, made: Specification, given: bool) -> list[str]:
    """Numbers of a request that nothing of its specification says again, as they are, in k and m, or as a quotient."""
    told = f"{made.reference} {made.description} {' '.join(made.assumptions)}".replace("_", " ")
    values = {float(one) for one in re.findall(_NUMBER, told)}
    values |= {f(one) for one in values if 1e-30 < one < 1e30 for f in _DERIVED}
    text = re.sub(r"(?<![\d.,\[(-])(\d{1,3}(?:,\d{3})+)(?![\d\])])", lambda one: one[1].replace(",", ""), text.lower())
    text = re.sub(r"\[0, ?1\]|\b0 (?:to|and) 1\b", "", text)  # the range of an entry
    if given:  # sizes in the words give way to given shapes
        text = re.sub(r"\(\d+(?:, ?\d+)+\)|\d+(?: ?x ?\d+)+", "", text)

    def quotient(said: re.Match[str]) -> str:
        divisor = float(said[3]) ** (0.5 if said[2] else 1) or 1.0
        return "" if _is_among(float(said[1]) / divisor, (1,), values) else said[0]

    text = re.sub(rf"({_NUMBER}) ?/ ?(sqrt\()?({_NUMBER})\)?", quotient, text)
    found = re.finditer(rf"(?<![\w.])({_NUMBER})(?:([km])\b| ?(million|thousand|billion)\b)?(?!\w|\.\d)", text)
    return [one[0] for one in found if not _is_among(float(one[1]), _UNITS[one[2] or one[3] or ""], values)]


def _is_among(number: float, units: tuple[int, ...], values: set[float]) -> bool:
    return any(abs(number * unit - value) <= 1e-3 * abs(value) for unit in units for value in values)


def _specification(text: str, shapes: Mapping[str, str]) -> Specification:
    problem: NotUnderstood | None = None
    formula, rest, label = _formula_of(text)
    if formula is None:
        said = _called(text)
        if re.fullmatch(r"[\w.]+\(.*", said) and not re.search(r"\) \w|\), ", said):
            raise unread(
                f'"{text}" is not read as a formula; its names may be letters such as x and y, gate, weight and bias'
            )
        try:
            request = read_tokens(text, tokens(said), shapes)
            return written(text, request, None, shapes)
        except SeveralReadings:
            raise
        except NotUnderstood as error:
            problem, inside = error, _formula_inside(text)
            if inside is None:
                raise
            formula, rest, label = inside
    try:
        request = Request()
        if rest or label:
            request = read_rest(text, tokens(_called(rest)), shapes)
            request = _labelled(text, label, request) if label else request
        return written(text, request, formula, shapes)
    except NotUnderstood as error:
        raise problem or error from None


def _formula_of(text: str) -> tuple[Formula | None, str, str]:
    """The formula that a request begins with, what is said after it, and what it is called before it."""
    found = read_formula(text)
    if found is not None:
        return found, "", ""
    label, _colon, rest = text.partition(": ")
    sized = re.sub(r",? (?:in|for|on|with|over|along|of) .*$", "", rest or text)
    ends = list(
        re.finditer(r",? (?:in|for|on|over|along|with) |, |;|\. |,? (?:and )?then | followed by | -> ", rest or text)
    )
    for said, before in ((rest, label), (text, "")):
        for end in [None, *reversed(ends)] if said else ():
            if end is not None and (said is text) == bool(rest):
                continue
            part = said if end is None else said[: end.start()]
            formula = read_formula(part) if re.search(r"[()*/@^+=-]", part) and _has_operator(part) else None
            if formula is not None:
                after = "" if end is None else said[end.start() :]
                return formula, after, before
    return None, sized, ""


def _formula_inside(text: str) -> tuple[Formula, str, str] | None:
    """The one formula in a sentence, with its definitions substituted; the text after and before it."""
    said: list[tuple[int, int, str, str]] = []
    for part in _PARTS.finditer(text):
        at = part.start()
        for piece in re.split(r"(\s(?:where|then|and|with|so|but|ie|i\.e\.|given|is|on|over|in|for|-)\s)", part[0]):
            found = _formula_at(piece)
            if found is not None:
                said.append((at + found[0], at + found[1], found[2], found[3]))
            at += len(piece)
    named = {name: f"({body})" for _, _, name, body in said if name}
    whole = [
        one
        for one in said
        if not any(re.search(rf"\b{one[2]}\b", other[3]) for other in said if one[2] and other is not one)
    ]
    if len(whole) != 1 or len({one[2] for one in said}) < len(said):
        return None
    body = whole[0][3]
    for _ in said:
        for name, value in named.items():
            if name != whole[0][2]:
                body = re.sub(rf"\b{name}\b", value.replace("\\", r"\\"), body)
    formula = read_formula(body)
    if formula is None or (named.keys() - {whole[0][2]}) & set(re.findall(r"\w+", body)):
        return None
    before, after = text[: min(one[0] for one in said)], text[max(one[1] for one in said) :]
    between = text[len(before) : len(text) - len(after)]
    for one in said:
        between = between.replace(text[one[0] : one[1]], " ")
    return formula, after.strip(" ,;.!)"), f"{before} {between}".strip(" ,;:.=(-)")


def _formula_at(piece: str) -> tuple[int, int, str, str] | None:
    """Where the formula at the end of a piece is, the name that it gives a value, and what it is."""
    whole = piece.rstrip(" .!?")
    starts = [one.start() for one in re.finditer(r"(?<!\S)\S", whole)]
    for start in starts:
        found = re.fullmatch(r"(?:([A-Za-z]\w*) ?= ?(?!=))?(.+)", whole[start:])
        if found is None or re.search(r"[-+*/@^=<>]\s*$", whole[:start]) or not _has_operator(found[2]):
            continue
        try:
            if read_formula(found[2]) is not None and not re.match(r"[a-z]+ ", found[2]):
                return start, len(whole), found[1] or "", found[2]
        except NotUnderstood:
            return None
    return None


def _labelled(text: str, label: str, request: Request) -> Request:
    """What stands before a formula is its name, and may say numbers of it."""
    some = tokens(label)
    loose = [one.text for one in some if one.kind in ("number", "shape", "layout", "axis")]
    loose += [one.text for one in some if one.text in ("not", "no", "without", "except", "then", "->", "+")]
    if loose:
        raise unread(f'it is not understood what {", ".join(loose)} means in "{text}"')
    named = tuple((one.value[2], one.value[1]) for one in some if one.kind == "size")
    note = f'it is read from the formula; "{label}" is taken for its name'
    return replace(request, settings=(*request.settings, *named), notes=(*request.notes, note))


def _has_operator(part: str) -> bool:
    return re.search(r"[a-zA-Z\])] ?(?:\*\*?|/|@|\+|-|\^) ?[\w(]|\w\(|\.T\b|\d ?\* ?[a-zA-Z(]", part) is not None


def _called(text: str) -> str:
    """The numbers of a call without tensors, by their names: nn.Conv2d(64, 128, 3)."""

    def named(said: re.Match[str]) -> str:
        inside = [one.strip() for one in said[2].split(",") if one.strip()]
        numbers = [one for one in inside if re.fullmatch(r"-?[\d.]+(?:e-?\d+)?", one)]
        name = re.sub(r"(?<=[a-z])(?=[123]d\b)", " ", said[1].lower().replace("_", " "))
        inside = [one for one in inside if not re.fullmatch("[A-Z]", one)]
        found = [one for one in names().get(joined(name), ()) if one.whole]
        settings = [one for one in inside if "=" in one]
        if not found or len(numbers) + len(settings) != len(inside):
            return said[0]
        calls = operations()[found[0].operation].calls or operations()[found[0].operation].bare
        if len(numbers) > len(calls):
            return said[0]
        pairs = [f"{key}={value}" for key, value in zip(calls, numbers, strict=False)]
        return f"{said[1]} with {', '.join([*pairs, *settings])}"

    return _CALL.sub(named, plain(text))


def reference(name: str) -> Specification:
    """The reference of an entry as it stands in the catalogue, with everything that it assumes."""
    operation = operations()[name]
    return written(operation.request, Request((Step(operation),)), None, {})
