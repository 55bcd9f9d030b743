"""Pages followed word by word: every block that needs neither a GPU nor a key is run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.docs.blocks import ROOT, blocks_of
from tests.docs.page_program import run_page
from tests.docs.transcripts import Differs, compare

import tilewright

README = ROOT / "README.md"
HOME = ROOT / "docs" / "index.md"
FOLLOWED = (README, ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how-to").glob("*.md")))
RUN = {"python", "console", "sh", "cuda"}


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_every_block_is_run_or_says_what_it_needs(page: Path) -> None:
    assert [block for block in blocks_of(page) if not block.needs and block.language not in RUN] == []


def test_the_kernel_file_on_the_first_page(tmp_path: Path) -> None:
    (block,) = (block for block in blocks_of(HOME) if block.language == "cuda")
    (tmp_path / "silu.cu").write_text(block.text)
    x = torch.randn(5, 77)
    torch.testing.assert_close(tilewright.load(tmp_path / "silu.cu")(x), torch.nn.functional.silu(x))


@pytest.mark.slow
@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_a_page_that_is_followed(page: Path, tmp_path: Path) -> None:
    run_page(blocks_of(page), tmp_path)


def test_what_is_shown_is_compared() -> None:
    printed = "first\nsecond: 3 of 4, 1 min 12 s\nthird: 7\n"
    compare("c", "...\nsecond: 3 of 4, 48 s\nthird: ...\n", printed)
    for shown in ("second: 2 of 4, 48 s", "first\nthird: 7", "third: 7\nfirst", "fourth"):
        with pytest.raises(Differs):
            compare("c", shown, printed)
