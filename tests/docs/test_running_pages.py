"""Pages followed word by word: every block that needs neither a GPU nor a key is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.blocks import ROOT, blocks_of
from tests.docs.page_program import run_page


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path) -> None:
    run_page(blocks_of(ROOT / "docs" / "tutorial.md"), tmp_path)
