"""What the source already shows to be outside the playbook is said before the reference is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.frontends.conduct import task_of
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.foresight import foresee
from tilewright.store import Request

_CONVOLUTION = """\
import torch.nn.functional as F


def f(x, w):
    if x is not None:
        raise RuntimeError("the reference was run")
    return F.conv2d(x, w)
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("F.conv_transpose2d(x, w)", "convolutions, and f calls conv_transpose2d"),
        ("F.multi_head_attention_forward(x, w, w)", "whole attention layers"),
        ("torch.sort(x)[0]", "sorting"),
        ("x.argsort()", "sorting"),
    ],
)
def test_what_has_no_structure_is_named(body: str, said: str) -> None:
    with pytest.raises(NotSupported, match=said):
        foresee(f"def f(x, w):\n    return {body}\n", "f")


def test_layers_of_a_module_are_seen() -> None:
    source = "class Model:\n    def __init__(self):\n        self.c = nn.Conv2d(3, 3, 3)\n"
    with pytest.raises(NotSupported, match="conv2d"):
        foresee(source, "Model")


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return x.softmax(-1)\n",
        "def conv2d(x):\n    return x * 2\n\n\ndef f(x):\n    return conv2d(x)\n",  # its own, whatever it is called
        "def g(x):\n    return x.sort()[0]\n\n\ndef f(x):\n    return x + 1\n",  # not called
    ],
)
def test_anything_else_is_left_to_tracing(source: str) -> None:
    foresee(source, "f")


def test_it_is_said_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "ops.py"
    path.write_text(_CONVOLUTION)
    request = Request(f"{path}:f", shapes={"x": "2x3x8x8", "w": "4x3x3x3"})
    with pytest.raises(NotSupported, match="convolutions"):
        task_of(request, foresee)
    with pytest.raises(Exception, match="the reference was run"):
        task_of(request)
