"""What the built-in author is sure to refuse is refused at once, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.frontends.cli import words
from tilewright.frontends.cli.words import refuse_early
from tilewright.playbook.errors import NotSupported
from tilewright.store import Request
from tilewright.words import NotUnderstood


def test_words_without_a_reading_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    with pytest.raises(NotUnderstood, match="frobnicate"):
        refuse_early(Request("frobnicate each row"), anew=False)
    with pytest.raises(NotUnderstood, match="shape of bias"):
        refuse_early(Request("add bias", {"x": "4x8", "bias": "7"}), anew=False)
    refuse_early(Request("add bias", {"x": "4x8", "bias": "8"}), anew=False)


def test_a_function_that_calls_what_has_no_structure_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ops.py"
    path.write_text("def f(x, w):\n    return torch.unique(x)\n\n\ndef g(x):\n    return x + 1\n")
    with pytest.raises(NotSupported, match="unique"):
        refuse_early(Request(f"{path}:f"), anew=True)
    refuse_early(Request(f"{path}:g"), anew=True)
    refuse_early(Request(f"{tmp_path}/absent.py:f"), anew=True)  # whose fault is said elsewhere


def test_what_the_library_has_needs_no_author(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_may_be_known", lambda request: True)
    refuse_early(Request("frobnicate each row"), anew=False)
    with pytest.raises(NotUnderstood):
        refuse_early(Request("frobnicate each row"), anew=True)


def test_it_needs_no_torch() -> None:
    code = "import sys, tilewright.frontends.cli.make; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
