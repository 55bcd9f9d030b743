"""Every other word: it says what a step does anyway, says nothing, or is left."""

from __future__ import annotations

import re

from tilewright.words.catalogue import fillers, hints, names, vocabulary
from tilewright.words.mentions import NEGATIONS, explained, operative
from tilewright.words.sayings import Sayings
from tilewright.words.text import ARTICLES, stem, words_of
from tilewright.words.tokens import Token, number_of

_REFERS = frozenset(("like", "as", "from", "used", "à", "la"))
_WHOLE = {"int64": "i64", "int32": "i32", "uint8": "u8", "int8": "i8", "bool": "bool", "boolean": "bool", "int": "i64"}
_WHOLE |= {"ints": "i64", "integer": "i64", "i64": "i64", "i32": "i32", "long": "i64"}
_INDICES = frozenset(
    ("argmax", "argmin", "top_k", "bottom_k", "argsort", "sort", "moe_router", "bincount", "searchsorted")
)
_COUNTS = frozenset(
    [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "twice",
        "thrice",
        "double",
        "triple",
        "half",
        "quarter",
        "once",
        "last",
        "first",
        "but",
    ]
)
_MARKS = frozenset(",.;:()[]{}!?'\"`/&|-+*=%#~$@^<>…_\\") | {"->"}


class Leftovers(Sayings):
    """One way to take the mentions, as far as the words that name nothing go."""

    unused: list[str]
    entry: str

    # -- every other token --

    def _take_word(self, text: str) -> bool:
        found = [at for at, one in enumerate(self.tokens) if one.text == text and at not in self.used]
        self.used |= set(found)
        return bool(found)

    def _take_rest(self) -> None:
        """Every word that is part of no phrase says nothing, says what a step does anyway, or is left."""
        known = frozenset().union(*(hints(one.operation.name) for one in self.steps)) if self.steps else frozenset()
        explicit = {stem(w) for s in self.steps for text in s.operation.hints for w in words_of(text)}
        absent = {stem(w) for s in self.steps for text in s.operation.absent for w in words_of(text)}
        known = known - (absent - explicit)
        chosen = (o for s in self.steps for o in s.operation.options if o.name in s.options)
        known |= {stem(w) for o in chosen for text in o.assume for w in words_of(text)} - NEGATIONS
        self.letters = {each for t in self.tokens if t.kind == "layout" for each in re.findall(r"[a-z]\w*", t.text)}
        if self.entry:
            known |= explained(self.entry)
        place = 0
        while place < len(self.tokens):
            one = self.tokens[place]
            if one.stem in ("row", "column", "col") and place not in self.used:
                self._refuse_axis(one)
            if one.kind != "word" or place in self.used or one.text in ("inplace",):
                if one.kind == "mark" and one.text not in _MARKS:
                    self.left.append(one.text)
                place += 1
                continue
            if one.text in NEGATIONS:
                place = self._negated(place, absent)
                continue
            if one.stem in fillers() or one.stem in known or one.text in self.given or self._is_value(one):
                place += 1
                continue
            if one.text in vocabulary()["models"].split() or self._is_name(one, known):
                place += 1
                continue
            if (
                place + 1 < len(self.tokens)
                and self.tokens[place + 1].kind in ("size", "shape", "dtype")
                and one.text in ("over", "across", "along")
            ):
                place += 1
                continue
            if self._is_type(one) or (one.text == "rootscale" and self._assumes("1 / sqrt(")):
                place += 1
                continue
            if one.text == "accumulates32":
                self.notes.append(
                    "not used: that it is computed in f32 on the way, as kernels of 16-bit elements do anyway"
                )
                place += 1
                continue
            end = self._reference(place)
            if end > place:
                said = self._text(place, end)
                self.notes.append(f'not used: "{said}", which is taken for where it comes from')
                place = end
                continue
            (self.left if self._is_operative(place) else self.unused).append(one.text)
            place += 1

    def _is_operative(self, place: int) -> bool:
        """Whether a word may say what is computed: the catalogue has it, it names a tensor, or it says how an operation
        right after it differs, as in "discounted sum"."""
        one = self.tokens[place]
        if one.text in self.letters:
            return False
        if re.match(r"-|\dd$", one.text) or one.text in _COUNTS:
            return True
        if len(one.text) == 1 or one.stem in operative() or self._is_tensor(one.text) or one.kind != "word":
            return True
        starts = {step.start for step in self.steps}
        return (
            place + 1 in starts and re.search(r"(?:[^e]ed|ive|al|ic|ar|less|wise|free|ing|ted)$", one.text) is not None
        )

    def _assumes(self, text: str) -> bool:
        return any(text in said for s in self.steps for said in s.operation.with_options(tuple(s.options)).assume)

    def _is_type(self, one: Token) -> bool:
        """Whether a dtype is that of a tensor or of the result anyway."""
        wanted = _WHOLE.get(one.text, "")
        found = {
            str(a.dtype) for s in self.steps for a in s.operation.with_options(tuple(s.options)).arguments if a.dtype
        }
        if wanted == "i64" and any(s.operation.name in _INDICES for s in self.steps):
            return True
        return bool(wanted) and (
            wanted in found or (one.text in ("int", "ints", "integer") and bool(found & {"i64", "i32"}))
        )

    def _refuse_axis(self, said: Token) -> None:
        """ "sum the rows": of each row, or of each column?"""
        for step in self.steps:
            explicit = {stem(w) for text in step.operation.hints for w in words_of(text)}
            if step.operation.goes_over and step.axis is None and said.stem not in explicit:
                step.axis, step.axis_said = "rows?", said.text

    def _is_told(self, number: str) -> bool:
        """Whether a number is one that a step has anyway, or says in its hints."""
        for step in self.steps:
            operation = step.operation.with_options(tuple(step.options))
            told = " ".join(
                (*operation.hints, *operation.assume, *operation.numbers.values(), *operation.params.values())
            )
            values = {
                float(one)
                for one in re.findall(
                    r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?", f"{told} {' '.join(step.numbers.values())}"
                )
            }
            if abs(float(number_of(Token("number", number)))) in {abs(one) for one in values}:
                return True
        return False

    def _is_value(self, one: Token) -> bool:
        return one.text in vocabulary()["values"].split() or one.text in vocabulary()["connectors"].split()

    def _is_name(self, one: Token, known: frozenset[str]) -> bool:
        """A letter may stand for a tensor of the step."""
        return len(one.text) == 1 and one.text in known

    def _negated(self, place: int, absent: set[str]) -> int:
        """ "no mask", "without bias": of what the steps go without anyway."""
        at = place + 1
        while at < len(self.tokens) and self.tokens[at].text in (
            *ARTICLES,
            "any",
            "learnable",
            "extra",
            "need",
            "for",
            "of",
            "use",
        ):
            at += 1
        if at < len(self.tokens) and self.tokens[at].kind == "word" and self.tokens[at].stem in absent:
            while (
                at < len(self.tokens)
                and self.tokens[at].kind == "word"
                and self.tokens[at].stem in absent | {"need", "or"}
            ):
                self.used.add(at)
                at += 1
            return at
        one = self.tokens[at] if at < len(self.tokens) else None
        if one is not None and one.kind == "word" and self.tokens[place].text in ("no", "without") and self._lacks(one):
            self.notes.append(f'without "{one.text}", which it does not have anyway')
            self.used.add(at)
            return at + 1
        self.left.append(self._text(place, min(len(self.tokens), at + 1)))
        return at

    def _lacks(self, one: Token) -> bool:
        """Whether nothing that the steps compute has what is named: an operation or a tensor of the catalogue."""
        for step in self.steps:
            operation = step.operation.with_options(tuple(step.options))
            phrases = [phrase for o in operation.options for phrase in o.phrases]
            text = " ".join(
                (operation.code, operation.takes, operation.says, *operation.assume, *operation.hints, *phrases)
            )
            if one.stem in {stem(word) for word in words_of(text)} or one.text in text:
                return False
        return bool(self.steps) and (one.stem in names() or self._is_tensor(one.text))

    def _reference(self, place: int) -> int:
        """Where the name ends that follows "as in", "like" or "used in", or stands before "style"; the place where none
        does."""
        before = [one.text for one in self.tokens[max(0, place - 2) : place]]
        after = self.tokens[place + 1].text if place + 1 < len(self.tokens) else ""
        if before[-1:] in (["like"],) or before in (["as", "in"], ["used", "in"], ["used", "by"]) or after == "style":
            return place + 1
        return place
