"""Which reading of a request is taken, where its words may name several things."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tilewright.words.attempts import Attempt
from tilewright.words.catalogue import fillers, nearest
from tilewright.words.errors import NotUnderstood, Reading, SeveralReadings, unread
from tilewright.words.mentions import Mention, Request, Step, choices, explained, meaning, mentions, replace_names
from tilewright.words.tokens import Token

_AT_LENGTH = 6  # words that a description has at least
_MOST_TOKENS = 120
_MOST = 24  # combinations of readings that are looked at


class Reader:
    """Reads tokens once for each way to take what is ambiguous."""

    def __init__(self, words: str, some: list[Token], given: frozenset[str]) -> None:
        self.words = words
        self.tokens = some
        self.given = given  # names of tensors whose shapes a person gave

    def read(self) -> Request:
        if len(self.tokens) > _MOST_TOKENS:
            raise unread(f"the request has {len(self.tokens)} words; say it in fewer")
        found = mentions(self.tokens)
        readings: dict[str, tuple[int, Request, list[str]]] = {}
        problem: NotUnderstood | None = None
        for chosen in itertools.islice(choices(found), _MOST):
            attempt = Attempt(self, [replace_names(one, name) for one, name in zip(found, chosen, strict=True)])
            try:
                request, left = attempt.request()
            except NotUnderstood as error:
                problem = problem or error
                continue
            key = " ".join(f"{one.operation.name}{one.options}{one.numbers}" for one in request.steps)
            readings.setdefault(key, (len(left) * 100 + len(attempt.unused), request, left))
        complete = any(not left for _, _, left in readings.values())
        alone = None if complete else self._by_one_entry(found)
        if alone is not None:
            return alone
        if not readings:
            raise problem or self.nothing()
        least = min(count for count, _, _ in readings.values())
        best = [(request, left) for count, request, left in readings.values() if count == least]
        request, left = best[0]
        if left:
            raise self.unknown(left, request)
        content = [t for t in self.tokens if t.kind == "word" and t.stem not in fillers()]
        if least > 3 and least * 2 > len(content):
            raise self.unknown([one for one in request.notes if one.startswith("not used")], request)
        if len({meaning(one.steps) for one, _ in best}) > 1:
            raise self.several([one for one, _ in best])
        if not request.steps:
            raise self.nothing()
        return request

    def _by_one_entry(self, found: list[Mention]) -> Request | None:
        """The reading by one entry that the sentence describes at length: it explains most of the words, and every one
        that may say what is computed."""
        named = {name.operation for one in found for name in one.names if not name.option or name.whole}
        best: tuple[float, Request] | None = None
        words = [t for t in self.tokens if t.kind == "word" and t.stem not in fillers()]
        if len(words) < _AT_LENGTH:
            return None
        for entry in dict.fromkeys([*named, *(one.name for one in nearest(self.words, 8))]):
            own = [replace_names(one, n) for one in found for n in one.names if n.operation == entry][:12]
            kept = {one.start: one for one in own}
            attempt = Attempt(self, list(kept.values()), entry)
            try:
                request, left = attempt.request()
            except NotUnderstood:
                continue
            unused = len(attempt.unused)
            told = sum(t.stem in explained(entry) for t in words)
            score = told - 1.5 * unused + 2 * (entry in named)
            if not left and len(request.steps) == 1 and told > unused and (entry in named or told > 0.8 * len(words)):
                best = max(best or (score, request), (score, request), key=lambda pair: pair[0])
        return best[1] if best else None

    def read_rest(self) -> Request:
        """What is said after a formula, which may be nothing but sizes."""
        found = mentions(self.tokens)
        attempt = Attempt(self, [replace_names(one, one.names[0]) for one in found])
        request, left = attempt.request()
        named = {one.text: (one.value[2] or one.value[0], one.value[1]) for one in self.tokens if one.kind == "size"}
        left = [one for one in left if one not in named]
        if left or any(one.text == "x" for one in self.tokens):
            raise self.unknown(left or ["x"], request)
        settings = tuple(pair for text, pair in named.items() if text in attempt.left)
        return replace(request, settings=settings)

    def several(self, requests: list[Request]) -> SeveralReadings:
        readings = tuple(
            Reading(", then ".join(map(_phrase, request.steps)), meaning(request.steps)) for request in requests[:3]
        )
        return SeveralReadings(f'"{self.words}" may mean several things', readings)

    def nothing(self) -> NotUnderstood:
        near = nearest(self.words, 1)
        quoted = ", ".join(f'"{one.text}"' for one in self.tokens if one.kind == "word" and one.stem not in fillers())
        found = f'"{self.words}" names no operation' + (
            f" that is in the catalogue: {quoted} is not known" if quoted else ""
        )
        return unread(found, near[0].name if near else "", near[0].request if near else "")

    def unknown(self, left: list[str], request: Request) -> NotUnderstood:
        near = request.steps[0].operation if request.steps else None
        listed = ", ".join(f'"{one}"' for one in dict.fromkeys(left))
        as_far = f'; the rest reads as "{meaning(request.steps)}"' if request.steps else ""
        more = nearest(self.words, 1)
        near = near or (more[0] if more else None)
        found = f'it is not understood what {listed} means in "{self.words}"{as_far}'
        return unread(found, near.name if near else "", near.request if near and not request.steps else "")


def _phrase(step: Step) -> str:
    """A request for a step with its options: "tanh gelu"."""
    options = [one.phrases[0] for one in step.operation.options if one.name in step.options]
    return " ".join((*options, step.operation.phrases[0])) if options else step.operation.request
