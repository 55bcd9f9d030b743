"""A cursor over PTX text, without comments, that counts lines for error messages."""

from __future__ import annotations

import re
from typing import NoReturn

from tilewright.ptx.syntax import PtxError, UnsupportedPtx

IDENTIFIER = r"(?:[A-Za-z][\w$]*|[_$%][\w$]+)"

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_SPACE = re.compile(r"\s*")
_IDENTIFIER = re.compile(IDENTIFIER, re.ASCII)
_INTEGER = re.compile(r"\d+", re.ASCII)
_STRING = re.compile(r'"([^"\n]*)"')
_SHOWN_CHARACTERS = 120
_MOST_CLAIMED_BYTES = 256 << 20


def without_comments(text: str) -> str:
    """The text without comments, with the same line numbers. Strings are kept."""
    if "//" not in text and "/*" not in text:
        return text

    def blank(found: re.Match[str]) -> str:
        piece = found[0]
        if piece[0] == '"':
            return piece
        if piece[1] == "*":
            # a space, so that the words on either side stay two words
            return " " + "\n" * piece.count("\n")
        return ""

    return _COMMENT.sub(blank, text)


def one_line(text: str) -> str:
    """The text with white space collapsed."""
    return " ".join(text.split())


class Cursor:
    """A position in the text. Reading also skips the white space that follows."""

    def __init__(self, text: str) -> None:
        self.text = without_comments(text)
        self.position = 0
        self._line = 1
        self._line_position = 0
        self._claimed_bytes = 0
        self.skip_space()

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    @property
    def character(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.position : self.position + 1]

    def line_at(self, position: int) -> int:
        """The 1-based line of a position; fast for increasing positions."""
        if position < self._line_position:
            self._line, self._line_position = 1, 0
        self._line += self.text.count("\n", self._line_position, position)
        self._line_position = position
        return self._line

    @property
    def line(self) -> int:
        return self.line_at(self.position)

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        where = self.position if position is None else position
        raise PtxError(message, self.line_at(where), self._shown(where))

    def fail_unsupported(self, message: str, position: int | None = None) -> NoReturn:
        where = self.position if position is None else position
        raise UnsupportedPtx(message, self.line_at(where), self._shown(where))

    def _shown(self, position: int) -> str:
        """The line at a position, shortened for messages."""
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        line = self.text[start:] if end < 0 else self.text[start:end]
        shown = one_line(line[: 4 * _SHOWN_CHARACTERS])
        return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "..."

    def claim(self, size_bytes: int) -> None:
        """Limit the bytes of implicit zeros: a short text must not exhaust memory."""
        self._claimed_bytes += size_bytes
        if self._claimed_bytes > _MOST_CLAIMED_BYTES:
            self.fail(f"the initialised variables take over {_MOST_CLAIMED_BYTES >> 20} MiB")

    def skip_space(self) -> None:
        found = _SPACE.match(self.text, self.position)
        if found is not None:
            self.position = found.end()

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Read what `pattern` matches here, if it does."""
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
            self.skip_space()
        return found

    def accept(self, literal: str) -> bool:
        """Read punctuation, if it is next."""
        if not self.text.startswith(literal, self.position):
            return False
        self.position += len(literal)
        self.skip_space()
        return True

    def expect(self, literal: str, what: str) -> None:
        if not self.accept(literal):
            self.fail(f"expected `{literal}` {what}")

    def identifier(self, what: str) -> str:
        found = self.match(_IDENTIFIER)
        if found is None:
            self.fail(f"expected {what}")
        return found[0]

    def integer(self, what: str) -> int:
        found = self.match(_INTEGER)
        if found is None:
            self.fail(f"expected {what}, a decimal integer")
        if len(found[0]) > 20:
            self.fail(f"{what} is too large")
        return int(found[0])

    def string(self, what: str) -> str:
        found = self.match(_STRING)
        if found is None:
            self.fail(f"expected {what}, a string in quotes")
        return found[1]

    def until(self, literal: str, what: str) -> str:
        """Read up to and including `literal`; returns the text before it."""
        end = self.text.find(literal, self.position)
        if end < 0:
            self.fail(f"{what} has no closing `{literal}`")
        piece = self.text[self.position : end]
        self.position = end + len(literal)
        self.skip_space()
        return piece
