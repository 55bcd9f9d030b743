"""A request as tokens: words, numbers and marks, and what says a size, a dtype, a dimension or the name of a tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tilewright.words.catalogue import operations, vocabulary
from tilewright.words.layouts import dimensions_of, marked
from tilewright.words.text import ARTICLES, joined, plain, spelled, stem, words_of

NUMBER = r"(?:\d+(?:\.(?!\.)\d*)?|\.\d+)(?:e[-+]?\d+)?"
_MULTIPLES = {"k": 1024, "m": 1 << 20, "g": 1 << 30, "million": 10**6, "billion": 10**9, "thousand": 1000, "": 1}
_SIDE = r"\d+[km]?(?![\w.])"
_TOKEN = re.compile(
    r"(?P<layout>⟦[^⟧]*⟧)|"
    rf"(?P<shape>[\[(] *{_SIDE}(?: *(?:,|x|by|\*) *{_SIDE})+ *[\])]|\d+[km]?(?: *x *\d+[km]?)+(?![\w.])"
    rf"|(?<![\w.]){_SIDE}(?: by {_SIDE})+)"
    rf"|(?P<rank>[123]d\b)|(?P<number>{NUMBER}(?: ?(?:million|billion|thousand)\b|[km](?![a-z]))?)"
    r"|(?P<word>[a-z]+\d*(?:[a-z]+\d*)*)|(?P<mark>->|\S)"
)
_JOINS = frozenset(("=", ":", "of", "is", "size", "to", "equal", "at", "are", "=="))
_LONGEST = 7  # words of a phrase


@dataclass(frozen=True)
class Token:
    """`kind`: word, number, shape, mark, or what was found in several: size, axis, dtype, layout, names."""

    kind: str
    text: str
    value: Any = None
    stem: str = ""


def tokens(words: str) -> list[Token]:
    """The tokens of a request, with sizes and the like as one token each."""
    found = list(_split(_prepared(words)))
    for turn in (_inverted, _dtypes, _layouts, _axes, _sizes, _named_tensors):
        found = turn(found)
    return found


def _prepared(words: str) -> str:
    text = re.sub(
        r"(?<!\w)(?:- ?inf(?:inity)?|(?:minus|negative|neg) inf(?:inity)?)\b", "neginf", marked(plain(words)).lower()
    )
    text = re.sub(r"(?<=x)\d{1,3}(?:,\d{3})+(?!\d)", lambda one: one[0].replace(",", ""), text)
    for pattern, instead in vocabulary()["rewrite"]:
        text = re.sub(pattern, instead, text)
    text = re.sub(
        r"(?<![\d,(\[] )(?<![\w,.(\[])\d{1,3}(?:,\d{3})+(?![\d,]|\.\d| ?[\])])",
        lambda one: one[0].replace(",", ""),
        text,
    )
    text = re.sub(r"(?<![\w.])1 ?/ ?sqrt\((\d+)\)", lambda one: repr(float(one[1]) ** -0.5), text)
    text = re.sub(rf"(?<![\w./])({NUMBER}) ?/ ?({NUMBER})(?![\w/])", _quotient, text)
    text = re.sub(r"(?<=[a-z])(?<!\de)[-_](?=[a-z0-9])|(?<=\d)-(?=[a-z])", " ", text)
    return re.sub(r"(?<=[a-z])(?=[([])|(?<=[a-z])'s\b", " ", text)


def _quotient(said: re.Match[str]) -> str:
    return (
        said[0]
        if float(said[2]) == 0 or float(said[1]) == 0 or (float(said[1]) < 1 and "." in said[1])
        else repr(float(said[1]) / float(said[2]))
    )


def _split(text: str) -> Iterator[Token]:
    before = ""
    for found in _TOKEN.finditer(text):
        kind, said = str(found.lastgroup), found[0]
        kind = "word" if kind == "rank" else kind
        if kind == "layout":
            yield Token(kind, said.replace("⟦", "(").replace("⟧", ")"), dimensions_of(said))
        elif kind == "shape" and before == "-":
            yield Token("word", f"-{said}", None, said)
        elif kind == "shape":
            yield Token(kind, said, tuple(_whole(one) for one in re.findall(r"\d+[km]?", said)))
        elif kind == "number":
            sign = before == "-" and text[found.start() - 1 : found.start()] == "-"
            yield Token(kind, f"-{said}" if sign else said, None, "#")
        elif said == "-" and re.match(r"[\d.]", text[found.end() : found.end() + 1]) and _may_sign(text, found.start()):
            before = said
            continue
        else:
            yield Token(kind, said, None, stem(said) if kind == "word" else said)
        before = said


def _may_sign(text: str, place: int) -> bool:
    return (
        place == 0
        or re.search(r"[\w)\]] ?$", text[:place]) is None
        or re.search(r"[a-z(=,] $|[=(,]$", text[:place]) is not None
    )


def _whole(text: str) -> int:
    return _multiplied(int(text.rstrip("km")), text.lstrip("0123456789"))


def _multiplied(value: float, unit: str) -> int:
    """8k is 8192, and 100k is 100000."""
    binary = unit in ("m", "g") or (value == int(value) and int(value) & (int(value) - 1) == 0)
    return int(value * (_MULTIPLES[unit] if binary or unit not in ("k", "m") else 1000))


def number_of(token: Token) -> str:
    """A number as it was said, 8k as 8192."""
    found = re.fullmatch(rf"(-?{NUMBER}) ?([a-z]*)", token.text)
    if found is None or not found[2]:
        return token.text
    return str(_multiplied(float(found[1]), found[2]))


def _inverted(some: list[Token]) -> list[Token]:
    """Words that are mistyped, as they are meant; `value` has what was typed."""
    known = known_words()
    found = []
    for one in some:
        if one.kind == "word" and one.stem not in known_stems() and len(one.text) > 4 and one.text.isalpha():
            meant = spelled(one.text, known)
            if meant is not None and one.text[0] in meant[:2]:
                one = replace(one, text=meant, stem=stem(meant), value=one.text)
        found.append(one)
    return found


@cache
def known_words() -> frozenset[str]:
    """Every word that the catalogue or the vocabulary has."""
    told = vocabulary()
    texts = [
        told["fillers"],
        told["connectors"],
        told["models"],
        *told["sizes"],
        *told["sizes"].values(),
        *told["axes"].values(),
    ]
    texts += [phrase for one in told["dtypes"].values() for phrase in [one]] + [told["tensors"], told["values"]]
    for one in operations().values():
        texts += [one.says, *one.phrases, *one.hints, *one.assume, *one.absent]
        texts += [phrase for option in one.options for phrase in (*option.phrases, *option.assume)]
    return frozenset(word for text in texts for word in words_of(text))


@cache
def known_stems() -> frozenset[str]:
    return frozenset(map(stem, known_words()))


@cache
def _lookup(table: str) -> dict[str, str]:
    found = {}
    for role, phrases in vocabulary()[table].items():
        for phrase in phrases.split(";"):
            found[joined(phrase)] = role
    return found


def _phrase_at(some: list[Token], place: int, table: dict[str, str]) -> tuple[str, int] | None:
    """What the longest phrase from a place on stands for, and where it ends."""
    key, best = "", None
    for end in range(place, min(len(some), place + _LONGEST)):
        if some[end].kind == "word" and some[end].text in ARTICLES and (end > place or table is not _lookup("sizes")):
            continue
        if some[end].kind not in ("word", "number"):
            break
        key += some[end].stem
        if key in table:
            best = (table[key], end + 1)
    return best


def _replaced(some: list[Token], kind: str, table: dict[str, str], value: Any = None) -> list[Token]:
    found: list[Token] = []
    place = 0
    while place < len(some):
        said = _phrase_at(some, place, table)
        if said is None:
            found.append(some[place])
            place += 1
            continue
        text = " ".join(one.text for one in some[place : said[1]])
        found.append(Token(kind, text, said[0] if value is None else value))
        place = said[1]
    return found


def _dtypes(some: list[Token]) -> list[Token]:
    found = _replaced(some, "dtype", _lookup("dtypes"))
    return [
        replace(one, kind="word", stem="half", value=None)
        if one.kind == "dtype" and one.text == "half" and not _is_dtype(found, place)
        else one
        for place, one in enumerate(found)
    ]


def _is_dtype(some: list[Token], place: int) -> bool:
    """Whether "half" is f16: "in half", "to half", and not the first half of a row."""
    before = some[place - 1].text if place else ""
    after = some[place + 1].text if place + 1 < len(some) else ""
    return (before in ("in", "to", "as", "into") and after not in ("of", "the")) or (
        after in ("precision", "tensor", "in", "out", "input", "inputs")
        and before not in ("first", "second", "the", "other")
    )


def _letters(some: list[Token], place: int) -> tuple[tuple[str, ...], int] | None:
    """The names of dimensions from a place on: (batch, heads, seq, dim), [B, S, D], B x H x S, b,h,s,d."""
    opened = some[place].text in ("(", "[")
    at, found = place + opened, []
    known = vocabulary()["dimensions"]
    while at < len(some) and some[at].kind in ("word", "number"):
        end = at
        parts = [some[end].text]
        while (
            end + 1 < len(some) and some[end + 1].kind in ("word", "number") and some[end + 1].text not in ("x", "by")
        ):
            if not opened and some[end + 1].kind == "word" and some[end + 1].text not in ("size", "dim", "len"):
                break
            end += 1
            parts.append(some[end].text)
        said = " ".join(parts)
        own = said if opened and " " not in said and (len(said) == 1 or said.isdigit()) else None
        name = known.get(said, own)
        if name is None:
            break
        found.append(name)
        at = end + 1
        if at < len(some) and some[at].text in (",", "x", "*") and at + 1 < len(some):
            at += 1
            continue
        break
    closed = opened and at < len(some) and some[at].text in (")", "]")
    if opened and not closed:
        return None
    enough = len(found) >= (2 if opened else 3)
    if not enough or all(one.isdigit() for one in found):
        return None
    return tuple(found), at + closed


def _layouts(some: list[Token]) -> list[Token]:
    found: list[Token] = []
    place, told = 0, vocabulary()["layouts"]
    while place < len(some):
        one = some[place]
        said = _letters(some, place) if one.text in ("(", "[") or one.kind == "word" else None
        if one.kind == "word" and one.text in told:
            said = (tuple(told[one.text].split()), place + 1)
        if said is None or not _may_be_layout(some, place, said[1]):
            found.append(one)
            place += 1
            continue
        found.append(Token("layout", " ".join(t.text for t in some[place : said[1]]), said[0]))
        place = said[1]
    return found


def _may_be_layout(some: list[Token], place: int, end: int) -> bool:
    """A call's arguments are no layout: attention(q, k, v)."""
    names_only = {one.text for one in some[place:end] if one.kind == "word"} - {"x", "by"}
    return not names_only <= set("qkv") and not (
        names_only <= set("xyzabw") and "b" in names_only and len(names_only) < 3
    )


_BEFORE_AXIS = frozenset(
    [
        "over",
        "along",
        "across",
        "on",
        "of",
        "in",
        "for",
        "per",
        "by",
        "through",
        "down",
        "wrt",
        "each",
        "every",
        "at",
        "within",
        "around",
        "among",
    ]
)


def _axes(some: list[Token]) -> list[Token]:
    """Dimensions that are said with a preposition before them, or by themselves as "rowwise"."""
    found: list[Token] = []
    place = 0
    while place < len(some):
        start = place
        while start < len(some) and (some[start].text in _BEFORE_AXIS or some[start].text in ARTICLES):
            start += 1
        before = [one.text for one in some[place:start] if one.text not in ARTICLES]
        said = _axis_at(some, start, before[-1] if before else some[place - 1].text if place else "")
        if said is None:
            found.append(some[place])
            place += 1
            continue
        text = " ".join(one.text for one in some[place : said[1]])
        found.append(Token("axis", text, said[0]))
        place = said[1]
    return found


def _axis_at(some: list[Token], place: int, before: str) -> tuple[Any, int] | None:
    if place >= len(some):
        return None
    if some[place].stem in ("dim", "axi", "ax", "axis", "dimension") and place + 1 < len(some):
        at = place + 1
        while at < len(some) and some[at].text in ("=", "(", "[", ":", "is"):
            at += 1
        if at < len(some) and some[at].kind == "shape" and some[at].text[0] in "([":
            return some[at].value, at + 1
        many: list[int] = []
        while at < len(some) and some[at].kind == "number" and re.fullmatch(r"-?\d", some[at].text):
            many.append(int(some[at].text))
            at += 1
            if (
                len(some) > at + 1
                and some[at].text in (",", "and")
                and re.fullmatch(r"-?\d", some[at + 1].text)
                and some[place].text.endswith("s")
            ):
                at += 1
        at += (
            bool(many)
            and at < len(some)
            and some[at].text == ")"
            and "(" in (some[place + 1].text, some[min(place + 2, len(some) - 1)].text)
        )
        return (tuple(many), at) if many else None
    found = _phrase_at(some, place, _lookup("axes"))
    if found is None:
        return None
    role, end = found
    word, last = some[place].text, some[end - 1].text
    alone = last.endswith("wise") or "dim" in last or "axi" in last or (role == "all" and before != "to")
    if end < len(some) and (some[end].kind == "number" or some[end].text in ("=", "of", ":")):
        return None  # "batch 32"
    if place and some[place - 1].kind in ("number", "shape"):
        return None  # "16 channels"
    if alone or before in _BEFORE_AXIS:
        if role == "row" and word.startswith("row") and before in ("over", "along", "across", "down"):
            role = "rows?"
        if role == "sequence" and some[place].stem == "token" and before not in ("over", "across", "along"):
            role = "row"
        if role == "column" and before in ("over", "along", "across") and word.endswith("s"):
            role = "columns?"
        return role, end
    return None


def _sizes(some: list[Token]) -> list[Token]:
    """Sizes and settings by their names: batch 32, 8 heads, eps=1e-6, kernel size 3."""
    table, found, place = _lookup("sizes"), [], 0
    while place < len(some):
        one = some[place]
        after = _phrase_at(some, place + 1, table) if one.kind in ("number", "shape") else None
        if (
            after
            and (one.kind == "number" or after[0] in ("window", "image"))
            and not _has_number(some, after[1], after[0])
        ) and not _is_letter(some[place + 1 : after[1]]):
            text = " ".join(t.text for t in some[place : after[1]])
            found.append(Token("size", text, (after[0], _values(one), _noun(some[place + 1 : after[1]]))))
            place = after[1]
            continue
        said = _phrase_at(some, place, table) if one.kind == "word" else None
        if said:
            value = _value_after(some, said[1], _is_letter(some[place : said[1]]), said[0])
            if value is not None:
                text = " ".join(t.text for t in some[place : value[1]])
                found.append(Token("size", text, (said[0], value[0], _noun(some[place : said[1]]))))
                place = value[1]
                continue
        found.append(one)
        place += 1
    return found


def _noun(some: list[Token]) -> str:
    return some[0].text if len(some) == 1 else ""


def _is_letter(some: list[Token]) -> bool:
    return len(some) == 1 and len(some[0].text) == 1


def _values(token: Token) -> str:
    return str(token.value) if token.kind == "shape" else number_of(token)


def _has_number(some: list[Token], place: int, role: str) -> bool:
    """Whether a number follows that belongs to the name before it: "heads 8 seq 512"."""
    at = place
    while at < len(some) and some[at].text in ("=", ":"):
        at += 1
    if at >= len(some) or some[at].kind != "number":
        return False
    following = _phrase_at(some, at + 1, _lookup("sizes"))
    return following is None or at > place


def _value_after(some: list[Token], place: int, letter: bool, role: str) -> tuple[str, int] | None:
    at = place
    while at < len(some) and some[at].text in _JOINS:
        at += 1
    if (
        at == place
        and at + 2 < len(some)
        and some[at].text == "("
        and some[at + 1].kind == "number"
        and some[at + 2].text == ")"
    ):
        return _values(some[at + 1]), at + 3
    if role == "betas" and at < len(some) and some[at].text == "(":
        at += 1
    if letter and (at == place or some[place].text not in ("=", "is", ":")):
        return None
    if at >= len(some) or some[at].kind not in ("number", "shape"):
        if at < len(some) and role == "padding" and some[at].text == "same":
            return "same", at + 1
        return None
    if some[at].kind == "shape" and role not in ("window", "stride", "padding", "dilation"):
        return None
    if role == "betas":
        more = at + 1
        while more < len(some) and some[more].text in ("/", ",", "and"):
            more += 1
        if more < len(some) and some[more].kind == "number":
            closed = more + 1 < len(some) and some[more + 1].text == ")"
            return f"{number_of(some[at])} {number_of(some[more])}", more + 1 + closed
        return None
    return _values(some[at]), at + 1


def _named_tensors(some: list[Token]) -> list[Token]:
    """Names of tensors after one another: "of a and b", "q, k, v", "between prediction and target"."""
    found: list[Token] = []
    place = 0
    while place < len(some):
        many, end = [], place
        while end < len(some) and _is_tensor(some, end):
            many.append(some[end].text)
            joins = end + 1
            while joins < len(some) and joins < end + 3 and some[joins].text in (",", "and", "&"):
                joins += 1
            if joins == end + 1 or joins >= len(some) or not _is_tensor(some, joins):
                end += 1
                break
            end = joins
        if len(many) < 2:
            found.append(some[place])
            place += 1
            continue
        found.append(Token("names", " ".join(one.text for one in some[place:end]), tuple(many)))
        place = end
    return found


def _is_tensor(some: list[Token], place: int) -> bool:
    one = some[place]
    if one.kind != "word" or (one.text in ("x",) and place + 1 < len(some) and some[place + 1].kind == "number"):
        return False
    return one.text in _tensors() or re.fullmatch(r"[a-z]\d?", one.text) is not None


@cache
def _tensors() -> frozenset[str]:
    return frozenset(vocabulary()["tensors"].split())
