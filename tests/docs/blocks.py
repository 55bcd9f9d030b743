"""The code blocks of a Markdown page, as a test sees them.

A block under a paragraph in italics that begins with "Needs" (*Needs a GPU.*, *Needs a key.*) is not run: whoever reads
the page sees why. A Python block whose first line is a comment with nothing but a file's name is that file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
NEEDS = re.compile(r"\*Needs [^*]+\*:?")
FILE_NAME = re.compile(r"# ([\w./-]+\.\w+)\n")
SEVERAL = re.compile(r"(?: {4,}|; +| && )(?=tilewright )")  # commands on one line
COMMAND = re.compile(r"(?:\$ )?((?:\w+=\S+ )*(?:\.venv/bin/)?(?:tilewright|python|pip|make)\b.*)")


@dataclass(frozen=True)
class Block:
    """One block: its language ("" for none), text, first line in the page, and what keeps it from being run here."""

    language: str
    text: str
    line: int
    needs: str

    @property
    def file_name(self) -> str | None:
        """The file that the block is, where it is one."""
        named = FILE_NAME.match(self.text)
        return named[1] if named else None

    @property
    def commands(self) -> tuple[str, ...]:
        """The command lines in it, with continued lines joined and prompts taken off."""
        if self.language not in ("", "sh", "console"):
            return ()
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line for line in lines if line.startswith("$ ")]
        whole = [found[1] for line in lines if (found := COMMAND.fullmatch(line.strip()))]
        return tuple(part for line in whole for part in SEVERAL.split(line))


def blocks_of(path: Path) -> tuple[Block, ...]:
    """Every fenced or indented block of a page, in order."""
    found: list[Block] = []
    before = ""
    for token in MarkdownIt("commonmark").parse(path.read_text()):
        if token.type == "inline":
            before = token.content
        elif token.type in ("fence", "code_block"):
            found.append(_block(token, before))
            before = ""
        elif token.type == "heading_open":
            before = ""
    return tuple(found)


def commands_in_text(path: Path) -> tuple[str, ...]:
    """Calls of `tilewright` within sentences."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text())
    inner = (one for token in tokens for one in token.children or ())
    return tuple(one.content for one in inner if one.type == "code_inline" and one.content.startswith("tilewright "))


def _block(token: Token, before: str) -> Block:
    assert token.map is not None
    needs = before.strip("*.:") if NEEDS.fullmatch(before) else ""
    return Block(token.info.strip(), token.content, token.map[0] + 1, needs)
