"""What an agent may not send: paths for names, texts without end, ways out of the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.child import boundary
from tilewright.child.boundary import Strength
from tilewright.frontends.agents.guard import (
    MOST_SOURCE_CHARACTERS,
    Redactor,
    Refused,
    SourceTarget,
    checked_entries,
    checked_source,
    checked_words,
    open_run,
    path_below,
    source_target,
)
from tilewright.reference.loading import search_line
from tilewright.store import Store


def test_plain_numerical_python_is_taken() -> None:
    source = """from __future__ import annotations
import math
from dataclasses import dataclass
import torch
import torch.nn.functional as F
from torch import Tensor, nn

@dataclass
class Sizes:
    heads: int = 4

class Norm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self._eps = eps
    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], eps=self._eps)

def f(x: Tensor, w, scale: float = 1.0):
    mean = x.float().mean(-1, keepdim=True)
    return torch.special.expit(Norm(1e-5)(x) * w) / math.sqrt(Sizes().heads) - mean.to(x.dtype).exp().log1p()
"""
    assert checked_source(source) == source


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(x:\n    return x", "source is not Python at line 1"),
        ("#" * (MOST_SOURCE_CHARACTERS + 1), "source has 60,001 characters"),
        ("(" * 5000 + ")" * 5000, "source is not Python"),
        ("def f(x): return x\0", "holds a NUL"),
        (f"{search_line('/home/me', ['helper'])}\nimport helper", "source reads modules from '/home/me', and no files"),
    ],
)
def test_what_is_no_python_is_refused(source: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        checked_source(source)


def test_source_is_taken_only_where_it_is_kept_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def f(x): return x\n"
    monkeypatch.setattr(boundary, "_available", lambda: Strength.PARTIAL)
    with pytest.raises(
        Refused, match=r"not run here.*seccomp without Landlock.*TILEWRIGHT_BOUNDARY=off if its sources"
    ):
        checked_source(source)
    monkeypatch.setenv("TILEWRIGHT_BOUNDARY", "off")
    assert checked_source(source) == source


def test_a_function_or_a_module_is_meant() -> None:
    source = "class Norm: ...\ndef f(x): return x\n"
    assert source_target(source, "f") == SourceTarget("f")
    assert source_target(source, " Norm ") == SourceTarget("Norm", "Norm()")
    assert source_target(source, "Norm(256, eps=1e-5)") == SourceTarget("Norm", "Norm(256, eps=1e-05)")


@pytest.mark.parametrize(
    "wanted",
    ["", "g", "f()", "f; import os", "Norm(open('x'))", "Norm(__import__('os'))", "a.b", "lambda: 1", "1" * 500],
)
def test_nothing_else_is_meant(wanted: str) -> None:
    with pytest.raises(Refused):
        source_target("class Norm: ...\ndef f(x): return x\n", wanted)


@pytest.mark.parametrize(
    "words", ["/etc/passwd", "~/x", "../x", "model.py:f", "read secrets.py please", "a/b", " ", "."]
)
def test_words_are_no_paths(words: str) -> None:
    with pytest.raises(Refused, match=r"look like a path|are empty"):
        checked_words(words)


def test_words_that_are_words_are_taken() -> None:
    assert (
        checked_words(" softmax over the last dimension, then x / 2 ") == "softmax over the last dimension, then x / 2"
    )
    assert checked_words("softmax") == "softmax"


@pytest.mark.parametrize(
    "name", ["..", "../x", "/etc/x", "a/../../x", "a//b", "", "-rf", "a b", "x\0", "y" * 300, ".ssh/x"]
)
def test_a_path_stays_below_the_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="is no path to write to"):
        path_below(tmp_path, name)


def test_a_link_does_not_lead_out_and_nothing_is_overwritten(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    (root / "kept.cu").write_text("mine")
    with pytest.raises(Refused, match="leads out of the folder"):
        path_below(root, "link/x.cu")
    with pytest.raises(Refused, match="is there already"):
        path_below(root, "kept.cu")
    assert path_below(root, "a/b.cu") == root / "a" / "b.cu"


@pytest.mark.parametrize("name", ["../runs", "/etc", "a/b", "last", "A-b", "", "x" * 100, "a--b", "softmax-abcd"])
def test_a_run_is_known_by_its_whole_name_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "runs" / "softmax-abcdef").mkdir(parents=True)
    with pytest.raises(Refused, match="history lists the names") as refusal:
        open_run(Store(tmp_path), name)
    assert str(tmp_path) not in str(refusal.value)


def test_entries_are_few_short_and_named() -> None:
    assert checked_entries("shapes", {"x": "4x4:f32"}) == {"x": "4x4:f32"}
    for wrong in ({"x-y": "4"}, {"x": "4" * 300}, {f"x{number}": "1" for number in range(100)}):
        with pytest.raises(Refused):
            checked_entries("shapes", wrong)


def test_places_of_the_machine_are_taken_out(tmp_path: Path) -> None:
    redact = Redactor(tmp_path / "root", tmp_path / "home")
    assert redact(f"{tmp_path}/home/runs/a and {tmp_path}/root/b") == "HOME/runs/a and ROOT/b"
    assert str(Path.home()) not in redact(f"{Path.home()}/.ssh/id")
