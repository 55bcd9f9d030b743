"""What the pages promise: blocks that parse, options that exist, links that lead somewhere, a site that builds."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.docs.blocks import ROOT, blocks_of, commands_in_text
from tests.docs.command_lines import problems
from tests.docs.links import broken, pages

PAGES = pages()


def test_no_link_is_broken() -> None:
    assert [one for page in PAGES for one in broken(page)] == []


def test_commands_and_options_exist() -> None:
    in_blocks = [(page, line) for page in PAGES for block in blocks_of(page) for line in block.commands]
    in_text = [(page, line) for page in PAGES for line in commands_in_text(page)]
    assert len(in_blocks) > 50
    assert len(in_text) > 30
    wrong = [f"{page.name}: {one}" for page, line in [*in_blocks, *in_text] for one in problems(line)]
    assert wrong == []


def test_python_blocks_are_python() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            if block.language == "python":
                ast.parse(block.text, f"{page.name}, block at line {block.line}")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path)))  # strict: a warning raises Abort
    assert (tmp_path / "tutorial" / "index.html").is_file()
    assert "__global__" in (tmp_path / "examples" / "silu.cu" / "index.html").read_text()
    fetched = [page for page in tmp_path.rglob("*.html") if 'src="http' in page.read_text()]
    assert fetched == []
