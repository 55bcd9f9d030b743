"""A request in words, from its text to its specification."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from tilewright.records import Specification
from tilewright.words.catalogue import names, operations, vocabulary
from tilewright.words.errors import NotUnderstood, SeveralReadings, unread
from tilewright.words.formulas import Formula, letters, read_formula
from tilewright.words.reading import read_rest, read_tokens
from tilewright.words.specification import written
from tilewright.words.steps import Request, Step
from tilewright.words.text import joined, plain
from tilewright.words.tokens import tokens

_MOST_WORDS = 120
_NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?|\.\d+"
_UNITS = {"": (1,), "k": (1000, 1024), "m": (10**6, 1 << 20)}
_UNITS |= {"thousand": (1000,), "million": (10**6,), "billion": (10**9,)}
_PARTS = re.compile(r"(?:[^,;:()\[\].]|\.(?!\s|$)|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\[[^\]]*\])+")
_LINKS = re.compile(r"(\s(?:where|then|and|with|so|but|ie|i\.e\.|given|is|on|over|in|for)\s| - (?=[a-z]{2,}\b))")
_OPERATOR = re.compile(r"[a-zA-Z\])] ?(?:\*\*?|/|@|\+|-|\^) ?[\w(]|\w\(|\.T\b|\d ?\* ?[a-zA-Z(]")
_TARGET = re.compile(r"(?<![\w.])([A-Za-z]\w*) ?= ?(?!=)")
_SOME = r"(\w{1,6}(?:(?:,| and|, and) \w{1,6})*)"
_SCALARS = re.compile(rf"(?:with )?(?:scalars? {_SOME}|{_SOME},? (?:are |is )?(?:both |all )?(?:a )?scalars?)\b")
_CALL = re.compile(r"(?:\b(?:torch\.)?(?:nn|F|torch|nn\.functional)\.)?\b([A-Za-z_]\w*) ?\(([^()]*)\)")


def read(words: str, shapes: Mapping[str, str]) -> Specification:
    """The reference for a request in words; raises `NotUnderstood`, and `SeveralReadings` where it may mean several."""
    text = re.sub(r"\s+", " ", words).strip()
    for pattern, instead in vocabulary()["first"]:
        text = re.sub(pattern, instead, text)
    if text.count(" ") > _MOST_WORDS:
        raise unread(f"the request has more than {_MOST_WORDS} words")
    if re.search(r"\b\d+x (?:faster|quicker|speed)", text):
        raise unread(f'"{text}" names no operation')
    made = _specification(text, shapes)
    lost = lost_numbers(text, made, bool(shapes))
    if lost:
        raise unread(f'it is not understood what {", ".join(lost)} means in "{text}"')
    return made


def lost_numbers(text: str, made: Specification, given: bool) -> list[str]:
    """Numbers of a request that nothing of its specification says again, as they are, in k and m, or as a quotient."""
    told = f"{made.reference} {made.description} {' '.join(made.assumptions)}".replace("_", " ")
    values = {float(one) for one in re.findall(_NUMBER, told)}
    for one in [one for one in values if 1e-30 < one < 1e30]:
        values |= {1 - one, 1 / one, one**0.5, one**-0.5, one * one, one**-2}
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
    """By the formula that the whole text is, else by its words, else by the formula within it."""
    numbers = _scalars(text)
    known = {*shapes, *numbers, *_TARGET.findall(text)}
    formula, rest, label = read_formula(text, known), "", ""
    problem: NotUnderstood | None = None
    if formula is None:
        said = _called(text)
        if re.fullmatch(r"[\w.]+\(.*", said) and not re.search(r"\) \w|\), ", said):
            raise unread(f'"{text}" is not read as a formula; its names may be letters such as x, y and weight')
        try:
            return written(text, read_tokens(text, tokens(said), shapes), None, shapes)
        except SeveralReadings:
            raise
        except NotUnderstood as error:
            named = _by_name(text, shapes)
            if named:
                return named
            found = _formula_inside(text, known)
            if found is None:
                raise
            problem, (formula, rest, label) = error, found
    numbers = {one: value for one, value in numbers.items() if one in letters(formula.body)}
    for name in numbers:
        rest = _SCALARS.sub("", re.sub(rf"\b{name} ?= ?-?[\d.]+", "", rest))
    try:
        request = read_rest(text, tokens(_called(rest)), shapes) if rest.strip(" ,;.") or label else Request()
        request = _labelled(text, label, request) if label else request
        if any("@" in one.operation.code for one in request.steps) and not re.search(r"\bthen\b|\bfollowed\b", rest):
            raise unread(f'whether "{rest.strip(" ,")}" is the product of the formula or another one is not clear')
        return written(text, request, replace(formula, numbers=numbers), shapes)
    except NotUnderstood as error:
        raise (problem if label and problem else error) from None


def _by_name(text: str, shapes: Mapping[str, str]) -> Specification | None:
    """What a request names, where it writes out a formula too that is not read: numbers of both must agree."""
    chunks = text.split(" ")
    wrote = [bool(re.search(r"[*/^=@{]|\w\(|\w[-+]\w*\(|\)[-+]|^[-+]$", one)) for one in chunks]
    if sum(len(re.findall(r"[*/^@+(]| - ", one)) for one, is_one in zip(chunks, wrote, strict=True) if is_one) < 3:
        return None
    start, end = wrote.index(True), len(wrote) - wrote[::-1].index(True)
    while end < len(chunks) and " ".join(chunks[start:end]).count("(") > " ".join(chunks[start:end]).count(")"):
        end += 1
    said, name = " ".join(chunks[start:end]), " ".join(chunks[:start]).rstrip(" :=,(")
    if not name or re.search(r"\bthen\b|\bwhere\b|[;:]", said):
        return None
    rest = " ".join(chunks[end:]).lstrip(" ,;.)")
    try:
        short = f"{name}, {rest}".strip(" ,")
        request = read_tokens(short, tokens(_called(short)), shapes)
        if len(request.steps) != 1 or not request.steps[0].operation.describes or len(request.notes) > 2:
            return None
        made = written(text, request, None, shapes)
    except NotUnderstood:
        return None
    if lost_numbers(re.sub(r"(?<![\w.])[012](?![\w.])", "", said), made, bool(shapes)):
        return None
    return replace(
        made, assumptions=(f"taken by its name; this is not checked: {said.rstrip(' ,.')}", *made.assumptions)
    )


def _scalars(text: str) -> dict[str, str]:
    """Names that are said to be numbers, each with its value or a usual one of its own."""
    said = [name for found in _SCALARS.finditer(text) for name in re.findall(r"\w+", found[1] or found[2])]
    usual = ("2.0", "3.0", "0.5", "-1.5", "0.25", "1.5")
    given = re.findall(rf"\b([A-Za-z]\w*) ?= ?(-?(?:{_NUMBER}))(?![\w.]| ?[*/+@^(-])", text)
    return {**dict(zip((one for one in dict.fromkeys(said) if one != "and"), usual, strict=False)), **dict(given)}


def _formula_inside(text: str, known: set[str]) -> tuple[Formula, str, str] | None:
    """The one formula in a sentence, with its definitions substituted; the text after and before it."""
    said: list[tuple[int, int, Formula]] = []
    for part in _PARTS.finditer(text):
        at = part.start()
        for piece in re.split(_LINKS, part[0]):
            if found := _formula_at(piece, known):
                said.append((at + found[0], at + len(piece.rstrip(" .!?")), found[1]))
            at += len(piece)
    used = [letters(one.body) - {one.target} for _, _, one in said]
    last = [one for _, _, one in said if not any(one.target in some for some in used)]
    defined = {one.target: one.body for _, _, one in said if one is not last[0]} if len(last) == 1 else {}
    formula = last[0].substituted(defined) if len(last) == 1 and len(defined) == len(said) - 1 else None
    alone = len(said) == 1 and not last[0].target and re.match(r"[a-z]{2,} ", last[0].text)  # negate x, x + y
    if formula is None or formula.target in defined or alone:
        return None
    before, after = text[: min(one[0] for one in said)], text[max(one[1] for one in said) :]
    between = text[len(before) : len(text) - len(after)]
    for start, end, _ in said:
        between = between.replace(text[start:end], " ")
    return formula, after.strip(" ,;.!").lstrip(" ,;.!)"), f"{before} {between}".strip(" ,;:.=(-)")


def _formula_at(piece: str, known: set[str]) -> tuple[int, Formula] | None:
    """The formula at the end of a piece, and where it begins."""
    whole = piece.rstrip(" .!?")
    for start in (one.start() for one in re.finditer(r"(?<!\S)\S", whole)):
        target = _TARGET.match(whole, start)
        body = whole[target.end() if target else start :]
        after_word = start and not target and re.match(r"[a-z]+ ", body)  # subtract y from x * 3
        if after_word or re.search(r"[-+*/@^=<>]\s*$", whole[:start]) or not _OPERATOR.search(body):
            continue
        try:
            formula = read_formula(body, known)
        except NotUnderstood:
            return None
        if formula is not None:
            return start, replace(formula, target=target[1] if target else "")
    return None


def _labelled(text: str, label: str, request: Request) -> Request:
    """What stands before a formula is its name, and may say numbers of it."""
    if re.search(r"\w\(|[=*^@]", label):
        raise unread(f'"{text}" has several formulas, and which one is meant is not clear')
    some = tokens(label)
    loose = [one.text for one in some if one.kind in ("number", "shape", "layout", "axis")]
    loose += [one.text for one in some if one.text in ("not", "no", "without", "except", "then", "->", "+")]
    loose += [one.text for one in some[-1:] if one.text in ("of", "to", "by", "from")]
    if loose:
        raise unread(f'it is not understood what {", ".join(loose)} means in "{text}"')
    named = tuple((one.value[2], one.value[1]) for one in some if one.kind == "size")
    note = f'it is read from the formula; "{label}" is taken for its name'
    return replace(request, settings=(*request.settings, *named), notes=(*request.notes, note))


def _called(text: str) -> str:
    """The numbers of a call without tensors, by their names: nn.Conv2d(64, 128, 3)."""

    def named(said: re.Match[str]) -> str:
        inside = [one.strip() for one in said[2].split(",") if one.strip()]
        numbers = [one for one in inside if re.fullmatch(r"-?[\d.]+(?:e-?\d+)?", one)]
        name = re.sub(r"(?<=[a-z])(?=[123]d\b)", " ", said[1].lower().replace("_", " "))
        inside = [one for one in inside if not re.fullmatch("[A-Z]", one)]
        found = [one for one in names().get(joined(name), ()) if one.whole]
        settings = [one for one in inside if "=" in one]
        if not found or not inside or len(numbers) + len(settings) != len(inside):
            return said[0]
        calls = operations()[found[0].operation].calls or operations()[found[0].operation].bare
        if len(numbers) > len(calls):
            return said[0]
        pairs = [f"{key}={value}" for key, value in zip(calls, numbers, strict=False)]
        return f"{said[1]} with {', '.join([*pairs, *settings])}"

    return _CALL.sub(named, plain(text))


def reference(name: str, understood: Request | None = None, shapes: Mapping[str, str] | None = None) -> Specification:
    """The reference of what was understood of a request, else of an entry as it stands in the catalogue."""
    operation = operations()[name]
    for request, given in ((understood, shapes), (understood, {}), (Request((Step(operation),)), shapes)):
        with suppress(NotUnderstood):
            if request is not None and request.steps and given is not None:
                return written(operation.request, request, None, given)
    return written(operation.request, Request((Step(operation),)), None, {})
