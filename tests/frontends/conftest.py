"""Tests of this part share the children of equal references."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kept_references import kept_references

__all__ = ["kept_references"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home that a module's tests have for themselves, where no key is set."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_HOME", str(folder))
        for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HF_TOKEN"):
            patch.delenv(key, raising=False)
        yield folder
