"""What the source already shows to be outside the playbook is said before the reference is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.frontends.api.requests import task_of
from tilewright.playbook.errors import NotSupported, precheck
from tilewright.store import Request

_SORTING = """\
import torch


def f(x):
    if x is not None:
        raise RuntimeError("the reference was run")
    return torch.unique(x)
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("F.multi_head_attention_forward(x, w, w)", "whole attention layers"),
        ("torch.lstm(x, w)", "recurrent networks, and f calls lstm"),
        ("torch.unique(x)", "size depends on data"),
        ("x.median()", "medians"),
    ],
)
def test_what_has_no_structure_is_named(body: str, said: str) -> None:
    with pytest.raises(NotSupported, match=said):
        precheck(f"def f(x, w):\n    return {body}\n", "f")


def test_layers_of_a_module_are_seen() -> None:
    source = "class Model:\n    def __init__(self):\n        self.c = nn.LSTM(3, 3)\n"
    with pytest.raises(NotSupported, match="lstm"):
        precheck(source, "Model")


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return x.softmax(-1)\n",
        "def f(x, w):\n    return torch.nn.functional.conv2d(x, w)\n",
        "def lstm(x):\n    return x * 2\n\n\ndef f(x):\n    return lstm(x)\n",  # its own, whatever it is called
        "def g(x):\n    return x.unique()\n\n\ndef f(x):\n    return x + 1\n",  # not called
    ],
)
def test_anything_else_is_left_to_tracing(source: str) -> None:
    precheck(source, "f")


def test_it_is_said_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "ops.py"
    path.write_text(_SORTING)
    request = Request(f"{path}:f", shapes={"x": "2x3x8x8"})
    with pytest.raises(NotSupported, match="size depends on data"):
        task_of(request, precheck)
    with pytest.raises(Exception, match="the reference was run"):
        task_of(request)
