"""A reference's function out of its source, and what is said of sources that have none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilewright.reference import ReferenceProblem
from tilewright.reference.loading import load_function, write_source


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setitem(sys.modules, "tilewright_reference", sys)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(x:\n", r"cannot be imported: SyntaxError: .*\(line 1: def f"),
        ("import nosuchmodule\n", "ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("import sys\nsys.exit()\n", r"cannot be imported: it called sys\.exit \(line 2: sys\.exit"),
        ("def g(x): return x\n", "defines no function 'f'; it has g"),
        ("def outer():\n    1 / 0\nouter()\n", r"ZeroDivisionError: division by zero \(line 2: 1 / 0\)"),
    ],
)
def test_sources_that_cannot_be_loaded(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ReferenceProblem, match=message):
        load_function(write_source(source, tmp_path), "f", "")


def test_neighbours_of_a_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "neighbour_of_a_test.py").write_text("FACTOR = 3\n")
    source = "from neighbour_of_a_test import FACTOR\ndef f(x): return x * FACTOR\n"
    assert load_function(write_source(source, tmp_path), "f", str(tmp_path / "beside"))(2) == 6
