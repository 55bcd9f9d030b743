"""A request as tokens: words, numbers and marks, and what says a size, a dtype, a dimension or the name of a tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tilewright.words.catalogue import names, operations, vocabulary
from tilewright.words.text import ARTICLES, joined, listed, plain, spelled, stem, words_of

NUMBER = r"(?:\d+(?:\.(?!\.)\d*)?|\.\d+)(?:e[-+]?\d+)?"
_UNITS = {"k": 1024, "m": 1 << 20, "million": 10**6, "billion": 10**9, "thousand": 1000, "": 1}
_SIDE = r"\d+[km]?(?![\w.])"
_TOKEN = re.compile(
    r"(?P<layout>⟦[^⟧]*⟧)|"
    rf"(?P<shape>[\[(] *{_SIDE}(?: *(?:,|x|by|\*) *{_SIDE})+ *[\])]|\d+[km]?(?: *x *\d+[km]?)+(?![\w.])"
    rf"|(?<![\w.]){_SIDE}(?: by {_SIDE})+)"
    rf"|(?P<rank>[123]d\b)|(?P<number>{NUMBER}(?: ?(?:million|billion|thousand)\b|[km](?![a-z]))?)"
    r"|(?P<word>[a-z]+\d*(?:[a-z]+\d*)*)|(?P<mark>->|\S)"
)
_ONE = r"(?:[A-Za-z]\w*|\d+)(?: ?[*/+] ?(?:[A-Za-z]\w*|\d+))*"
_GROUP = re.compile(rf"[\[(] ?({_ONE}(?: ?, ?{_ONE})*) ?,? ?[\])]")
_JOINS = listed("= : of is size to equal at are ==")
_BEFORE_AXIS = listed("over along across on of in for per by through down wrt each every at within around among")
_LONGEST = 7  # words of a phrase


@dataclass(frozen=True)
class Token:
    """`kind`: word, number, shape, mark, or what was found in several: size, axis, dtype, layout, names."""

    kind: str
    text: str
    value: Any = None
    stem: str = ""


Find = Callable[[list[Token], int], tuple[list[Token], int] | None]


def tokens(words: str) -> list[Token]:
    """The tokens of a request, with sizes and the like as one token each."""
    found = list(_split(_prepared(words)))
    for find in (_correction, _dtype, _layout, _axis, _size, _named_tensors):
        found = list(_scanned(found, find))
    return found


def _scanned(some: list[Token], find: Find) -> Iterator[Token]:
    """The tokens, with what is found from a place on instead of what it is found in."""
    place = 0
    while place < len(some):
        found, place = find(some, place) or ([some[place]], place + 1)
        yield from found


# -- text --


def _prepared(words: str) -> str:
    infinite = r"(?<!\w)(?:- ?inf(?:inity)?|(?:minus|negative|neg) inf(?:inity)?)\b"
    text = re.sub(
        r"\b[BCDEHKLMNSTW](?: [BCDEHKLMNSTW]){2,4}\b", lambda one: f"[{one[0].replace(' ', ', ')}]", plain(words)
    )
    text = re.sub(r"\b[A-Z](?:x[A-Z])+\b", lambda one: f"[{one[0].replace('x', ', ')}]", text)
    window = r"\bitself and (?:the )?(\d+) (?:keys|tokens|positions) before(?: it)?\b"
    text = re.sub(window, lambda one: f"window {int(one[1]) + 1}", text)
    text = re.sub(infinite, "neginf", _GROUP.sub(_marked, text).lower())
    text = re.sub(r"(?<=x)\d{1,3}(?:,\d{3})+(?!\d)", lambda one: one[0].replace(",", ""), text)
    for pattern, instead in vocabulary()["rewrite"]:
        text = re.sub(pattern, instead, text)
    thousands = r"(?<![\d,(\[] )(?<![\w,.(\[])\d{1,3}(?:,\d{3})+(?![\d,]|\.\d| ?[\])])"
    text = re.sub(thousands, lambda one: one[0].replace(",", ""), text)
    text = re.sub(r"(?<![\w.])1 ?/ ?sqrt\((\d+)\)", lambda one: repr(float(one[1]) ** -0.5), text)
    text = re.sub(rf"(?<![\w./])({NUMBER}) ?/ ?({NUMBER})(?![\w/])", _quotient, text)
    text = re.sub(r"(?<=[a-z])(?<!\de)[-_](?=[a-z0-9])|(?<=\d)-(?=[a-z])", " ", text)
    return re.sub(r"(?<=[a-z])(?=[(\[])|(?<=[a-z])'s\b", " ", text)


def _quotient(said: re.Match[str]) -> str:
    one, other = float(said[1]), float(said[2])
    return said[0] if not one or not other or (one < 1 and "." in said[1]) else repr(one / other)


def _marked(found: re.Match[str]) -> str:
    """A shape by letters between ⟦ and ⟧: of capitals, and of names of dimensions."""
    parts = [one.strip() for one in found[1].split(",")]
    known = vocabulary()["dimensions"]
    letters = all(re.match(r"[A-Z]|\d", one) or one.lower() in known for one in parts)
    named = len(parts) > 1 and all(one in known and one.isalpha() for one in parts) and not {*parts} <= {*"qkvabxyzw"}
    long = len(parts) == 1 and len(parts[0]) > 2 and "," not in found[0]
    entry = any(len(one) > 1 and joined(one) in names() for one in parts)
    if not letters or long or entry or not (named or any(re.match(r"[A-Z]", one) for one in parts)):
        return found[0]
    return f" ⟦{','.join(one.replace(' ', '') for one in parts)}⟧ "


def _dimensions(text: str) -> tuple[str, ...]:
    """The names of the dimensions between ⟦ and ⟧."""
    known, some = vocabulary()["dimensions"], text.strip("⟦⟧").lower().split(",")
    heads = "w" not in some and len(some) > 2
    return tuple("heads" if one == "h" and heads else known.get(one, one) for one in some)


def _split(text: str) -> Iterator[Token]:
    before = ""
    for found in _TOKEN.finditer(text):
        kind, said = str(found.lastgroup), found[0]
        if kind == "layout":
            yield Token(kind, said.replace("⟦", "(").replace("⟧", ")"), _dimensions(said))
        elif kind == "shape" and before == "-":
            yield Token("word", f"-{said}", None, said)
        elif kind == "shape":
            yield Token(kind, said, tuple(int(_whole(one)) for one in re.findall(r"\d+[km]?", said)))
        elif kind == "number":
            sign = before == "-" and text[found.start() - 1 : found.start()] == "-"
            yield Token(kind, f"-{said}" if sign else said, None, "#")
        elif said != "-" or not re.match(r"[\d.]", text[found.end() :][:1]) or not _may_sign(text, found.start()):
            word = kind in ("word", "rank")
            yield Token("word" if word else kind, said, None, stem(said) if word else said)
        before = said


def _may_sign(text: str, place: int) -> bool:
    first = re.search(r"[\w)\]] ?$", text[:place]) is None
    return first or re.search(r"[a-z(=,] $|[=(,]$", text[:place]) is not None


def _whole(text: str) -> str:
    """A number as it was said, 8k as 8192 and 100k as 100000."""
    found = re.fullmatch(rf"(-?{NUMBER}) ?([a-z]*)", text)
    if found is None or not found[2]:
        return text
    value = float(found[1])
    binary = found[2] in ("k", "m") and value == int(value) and int(value) & (int(value) - 1) == 0
    return str(int(value * (_UNITS[found[2]] if binary or len(found[2]) > 1 else {"k": 10**3, "m": 10**6}[found[2]])))


def number_of(token: Token) -> str:
    return _whole(token.text)


def _correction(some: list[Token], place: int) -> tuple[list[Token], int] | None:
    """A word that is mistyped, as it is meant; `value` has what was typed."""
    one, (known, right) = some[place], _known()
    mistyped = one.kind == "word" and one.stem not in right and len(one.text) > 4 and one.text.isalpha()
    meant = spelled(one.text, known) if mistyped else None
    return ([replace(one, text=meant, stem=stem(meant), value=one.text)], place + 1) if meant else None


@cache
def _known() -> tuple[frozenset[str], frozenset[str]]:
    """Every word that the catalogue or the vocabulary has, and their stems."""
    told = vocabulary()
    texts = [told[one] for one in ("fillers", "connectors", "models", "tensors", "values", "asides")]
    texts += [*told["sizes"], *told["sizes"].values(), *told["axes"].values(), *told["dtypes"].values()]
    for one in operations().values():
        texts += [one.says, *one.phrases, *one.hints, *one.assume, *one.absent]
        texts += [phrase for option in one.options for phrase in (*option.phrases, *option.assume)]
    words = frozenset(word for text in texts for word in words_of(text))
    return words, frozenset(map(stem, words))


# -- phrases of the vocabulary --


@cache
def _lookup(table: str) -> dict[str, str]:
    listed = ((role, phrases.split(";")) for role, phrases in vocabulary()[table].items())
    return {joined(phrase): role for role, phrases in listed for phrase in phrases}


def _phrase_at(some: list[Token], place: int, table: str) -> tuple[str, int] | None:
    """What the longest phrase from a place on stands for, and where it ends."""
    key, best, known = "", None, _lookup(table)
    for end in range(place, min(len(some), place + _LONGEST)):
        if some[end].kind == "word" and some[end].text in ARTICLES and (end > place or table != "sizes"):
            continue
        if some[end].kind not in ("word", "number"):
            break
        key += some[end].stem
        if key in known:
            best = (known[key], end + 1)
    return best


def _texts(some: list[Token]) -> str:
    return " ".join(one.text for one in some)


def _dtype(some: list[Token], place: int) -> tuple[list[Token], int] | None:
    said = _phrase_at(some, place, "dtypes")
    if said is None or (some[place].text == "half" and said[1] == place + 1 and not _is_dtype(some, place)):
        return None
    return [Token("dtype", _texts(some[place : said[1]]), said[0])], said[1]


def _is_dtype(some: list[Token], place: int) -> bool:
    """Whether "half" is f16: "in half", "to half", "4096x4096 half", and not the first half of a row."""
    before = some[place - 1] if place else Token("", "")
    after = some[place + 1].text if place + 1 < len(some) else ""
    if before.kind == "shape" or (before.text in ("in", "to", "as", "into") and after not in ("of", "the")):
        return True
    of = before.text not in ("first", "second", "the", "other", "each", "one")
    return after in ("precision", "tensor", "in", "out", "input", "inputs") and of


# -- layouts --


def _layout(some: list[Token], place: int) -> tuple[list[Token], int] | None:
    one, told = some[place], vocabulary()["layouts"]
    said = _letters(some, place) if one.text in ("(", "[") or one.kind == "word" else None
    if one.kind == "word" and one.text in told:
        said = (tuple(told[one.text].split()), place + 1)
    if said is None or _is_call(some, place, said[1]):
        return None
    return [Token("layout", _texts(some[place : said[1]]), said[0])], said[1]


def _letters(some: list[Token], place: int) -> tuple[tuple[str, ...], int] | None:
    """The names of dimensions from a place on: (batch, heads, seq, dim), [B, S, D], B x H x S, b,h,s,d."""
    opened, known = some[place].text in ("(", "["), vocabulary()["dimensions"]
    at, found = place + opened, []
    while at < len(some) and some[at].kind in ("word", "number"):
        end = at + 1
        while end < len(some) and some[end].kind in ("word", "number") and some[end].text not in ("x", "by"):
            if not opened and some[end].text not in ("size", "dim", "len"):
                break
            end += 1
        said = _texts(some[at:end])
        own = said if opened and " " not in said and (len(said) == 1 or said.isdigit()) else None
        if known.get(said, own) is None:
            break
        found.append(str(known.get(said, own)))
        at = end
        if not (at + 1 < len(some) and some[at].text in (",", "x", "*")):
            break
        at += 1
    closed = opened and at < len(some) and some[at].text in (")", "]")
    if (opened and not closed) or len(found) < (2 if opened else 3) or all(one.isdigit() for one in found):
        return None
    heads = "width" not in found and len(found) > 2
    return tuple("heads" if one == "h" and heads else one for one in found), at + closed


def _is_call(some: list[Token], place: int, end: int) -> bool:
    """A call's arguments are no layout: attention(q, k, v)."""
    letters = {one.text for one in some[place:end] if one.kind == "word"} - {"x", "by"}
    return letters <= set("qkv") or (letters <= set("xyzabw") and "b" in letters and len(letters) < 3)


# -- dimensions --


def _axis(some: list[Token], place: int) -> tuple[list[Token], int] | None:
    """A dimension that is said with a preposition before it, or by itself as "rowwise"."""
    start = place
    while start < len(some) and (some[start].text in _BEFORE_AXIS or some[start].text in ARTICLES):
        start += 1
    before = [one.text for one in some[place:start] if one.text not in ARTICLES]
    said = _axis_at(some, start, before[-1] if before else some[place - 1].text if place else "")
    if said is None:
        return None
    axis, end = said
    found, sized = [Token("axis", _texts(some[place:end]), axis)], some[end : end + 3]
    role = _phrase_at(some, start, "sizes")  # "over the hidden dim (1024)"
    if role and [one.text for one in sized[::2]] == ["(", ")"] and sized[1].kind == "number":
        return [*found, Token("size", _texts(some[start : end + 3]), (role[0], number_of(sized[1]), ""))], end + 3
    return found, end


def _axis_at(some: list[Token], place: int, before: str) -> tuple[Any, int] | None:
    if place >= len(some):
        return None
    if some[place].stem in ("dim", "axi", "ax", "axis", "dimension"):
        return _numbered(some, place)
    named = _named_axis(some, place, before)
    found = _phrase_at(some, place, "axes")
    if found is None or (named and named[1] > found[1]):
        return named
    role, end = found
    word, last = some[place].text, some[end - 1].text
    alone = last.endswith("wise") or "dim" in last or "axi" in last or (role == "all" and before != "to")
    after = [one.kind if one.kind == "number" else one.text for one in some[end : end + 2]]
    if after[:1] in (["number"], ["="], [":"]) or after == ["of", "number"]:
        return None  # "batch 32"
    if (place and some[place - 1].kind in ("number", "shape")) or not (alone or before in _BEFORE_AXIS):
        return None  # "16 channels"
    if role == "row" and word.startswith("row") and before in ("over", "along", "across", "down"):
        role = "rows?"
    if role == "sequence" and some[place].stem == "token" and before not in ("over", "across", "along"):
        role = "row"
    if role == "column" and before in ("over", "along", "across") and word.endswith("s"):
        role = "columns?"
    return role, end


def _numbered(some: list[Token], place: int) -> tuple[Any, int] | None:
    """The dimensions of "dim 1", "dims 1 and 2", "axis=(2, 3)"."""
    at = place + 1
    while at < len(some) and some[at].text in ("=", "(", "[", ":", "is"):
        at += 1
    if at < len(some) and some[at].kind == "shape" and some[at].text[0] in "([":
        return some[at].value, at + 1
    many: list[int] = []
    while at < len(some) and some[at].kind == "number" and re.fullmatch(r"-?\d", some[at].text):
        many.append(int(some[at].text))
        at += 1
        more = some[place].text.endswith("s") and len(some) > at + 1 and some[at].text in (",", "and")
        at += more and re.fullmatch(r"-?\d", some[at + 1].text) is not None
    opened = "(" in [one.text for one in some[place + 1 : place + 3]]
    return (tuple(many), at + (opened and at < len(some) and some[at].text == ")")) if many else None


def _named_axis(some: list[Token], place: int, before: str) -> tuple[str, int] | None:
    """A dimension by its name or its letter: "over the depth dim", "over T" of a tensor (B, T, D)."""
    name = vocabulary()["dimensions"].get(some[place].text, some[place].text)
    if before not in ("over", "along", "across", "down") or some[place].kind != "word":
        return None
    if place + 1 < len(some) and some[place + 1].stem in ("dim", "dimension", "axi", "axis"):
        return f"={name}", place + 2
    if any(one.kind == "layout" and some[place].text in re.findall(r"\w+", one.text) for one in some):
        return f"={name}", place + 1
    return None


# -- sizes --


def _size(some: list[Token], place: int) -> tuple[list[Token], int] | None:
    """A size or a setting by its name: batch 32, 8 heads, eps=1e-6, kernel size 3."""
    said = _size_before(some, place) or _size_after(some, place)
    return ([Token("size", _texts(some[place : said[1]]), said[0])], said[1]) if said else None


def _size_before(some: list[Token], place: int) -> tuple[tuple[str, str, str], int] | None:
    """A number before its name: "8 heads"."""
    one = some[place]
    after = _phrase_at(some, place + 1, "sizes") if one.kind in ("number", "shape") else None
    if place and some[place - 1].text in ("top", "largest", "smallest", "bottom"):
        return None  # "top 10 logits"
    if after is None or (one.kind == "shape" and after[0] not in ("window", "image")):
        return None
    if _is_letter(some[place + 1 : after[1]]) or _has_number(some, after[1]):
        return None
    return (after[0], _values(one), _noun(some[place + 1 : after[1]])), after[1]


def _size_after(some: list[Token], place: int) -> tuple[tuple[str, str, str], int] | None:
    """A number after its name: "eps=1e-6", "betas 0.9, 0.999"."""
    said = _phrase_at(some, place, "sizes") if some[place].kind == "word" else None
    inner = _phrase_at(some, place + 1, "sizes") if said and said[1] > place + 1 else None
    named = any(one.whole for one in names().get(some[place].stem, ()))
    if said is None or (inner is not None and inner[1] == said[1] and named):
        return None  # "rope theta 500000": the first word is an operation
    role, at = said
    own, letter = some[place:at], _is_letter(some[place:at])
    while at < len(some) and some[at].text in _JOINS:
        at += 1
    rest = some[at : at + 4]
    noun = _noun(own)
    if [one.text for one in rest[::2]][:2] == ["(", ")"] and rest[1].kind == "number" and at == said[1]:
        return (role, _values(rest[1]), noun), at + 3
    if letter and (at == said[1] or some[said[1]].text not in ("=", "is", ":")):
        return None
    if role == "betas" and sum(one.kind == "number" for one in some[at : at + 3]) < 2:
        role = "beta"
    if role == "betas":
        numbers = [one for one in some[at : at + 5] if one.kind == "number"][:2]
        last = next((n for n in range(at, len(some)) if some[n] is numbers[-1]), at) if numbers else at
        texts = {one.text for one in some[at:last]} - {one.text for one in numbers}
        if len(numbers) < 2 or not texts <= {"(", "/", ",", "and"}:
            return None
        closed = last + 1 < len(some) and some[last + 1].text == ")" and "(" in texts
        return (role, " ".join(map(number_of, numbers)), noun), last + 1 + closed
    if role == "padding" and rest and rest[0].text == "same":
        return (role, "same", noun), at + 1
    if not rest or rest[0].kind not in ("number", "shape"):
        return None
    if rest[0].kind == "shape" and role not in ("window", "stride", "padding", "dilation"):
        return None
    return (role, _values(rest[0]), noun), at + 1


def _noun(some: list[Token]) -> str:
    return some[0].text if len(some) == 1 else ""


def _is_letter(some: list[Token]) -> bool:
    return len(some) == 1 and len(some[0].text) == 1


def _values(token: Token) -> str:
    return str(token.value) if token.kind == "shape" else number_of(token)


def _has_number(some: list[Token], place: int) -> bool:
    """Whether a number follows that belongs to the name before it: "heads 8 seq 512"."""
    at = place
    while at < len(some) and some[at].text in ("=", ":"):
        at += 1
    if at >= len(some) or some[at].kind != "number":
        return False
    return at > place or _phrase_at(some, at + 1, "sizes") is None


# -- tensors --


def _named_tensors(some: list[Token], place: int) -> tuple[list[Token], int] | None:
    """Names of tensors after one another: "of a and b", "q, k, v", "between prediction and target"."""
    many, end, at = [], place, place
    while _is_tensor(some, at):
        many.append(some[at].text)
        end = at = at + 1
        while at < min(len(some), end + 2) and some[at].text in (",", "and", "&", "/", "vs", "versus"):
            at += 1
        beside = {one.text for one in (some[end - 1], *some[at : at + 1])} <= set("qkvpgm")
        if at == end and not beside:
            break
    return ([Token("names", _texts(some[place:end]), tuple(many))], end) if len(many) > 1 else None


def _is_tensor(some: list[Token], place: int) -> bool:
    one = some[place] if place < len(some) else Token("", "")
    if one.kind != "word" or (one.text == "x" and place + 1 < len(some) and some[place + 1].kind == "number"):
        return False
    return one.text in vocabulary()["tensors"].split() or re.fullmatch(r"[a-z]\d?", one.text) is not None
