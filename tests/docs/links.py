"""Links of the repository's Markdown, looked up as a reader on a code host would follow them. Nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from tests.checkout import known_files
from tests.docs.blocks import ROOT

HTML_ANCHOR = re.compile(r"""<a (?:id|name)=["']([^"']+)""")


def pages() -> tuple[Path, ...]:
    """Every Markdown file that people read, among those that git knows or would take; records of runs are none."""
    return tuple(
        ROOT / path
        for path in known_files()
        if path.suffix == ".md" and not re.match(r"src/|tests/|gallery/[^/]+/", path.as_posix())
    )


def broken(page: Path) -> Iterator[str]:
    """Links of a page that lead nowhere."""
    for target in _targets(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        where = f"{page.relative_to(ROOT)}: {target}"
        if not file.exists() or not file.is_relative_to(ROOT):
            yield f"{where}: there is no such file"
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file)):
            yield f"{where}: there is no such heading"


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings as GitHub makes them."""
    found: dict[str, int] = {}
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    for opening, content in pairwise(tokens):
        if opening.type == "heading_open":
            name = re.sub(r"[^\w\- ]", "", _plain(content).lower()).replace(" ", "-")
            found[name] = found.get(name, -1) + 1
    numbered = {f"{name}-{count}" for name, count in found.items() if count}
    return frozenset({*found, *numbered, *HTML_ANCHOR.findall(page.read_text())})


def _targets(page: Path) -> Iterator[str]:
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        for inner in token.children or ():
            target = inner.attrGet("href") or inner.attrGet("src")
            if isinstance(target, str):
                yield target


def _plain(token: Token) -> str:
    return "".join(inner.content for inner in token.children or ())
