"""A spool and its workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.devices.spool_processes import Workers


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def start(spool: Path) -> Iterator[Workers]:
    """Starts workers on the spool; ends those that are left."""
    workers = Workers(spool)
    yield workers
    workers.end()
