"""Words to a specification: both blocks exactly once, readable, and about the same function."""

from __future__ import annotations

import re

import pytest

from tilewright.prompts.replies import ReplyProblem
from tilewright.prompts.specify import read_specification, specify_texts

REFERENCE = """import torch
import torch.nn.functional as F


def silu_mul(x, gate, scale: float = 1.0):
    return F.silu(x) * gate * scale
"""
DESCRIPTION = """name = "silu_mul"
function = "silu_mul"
assumptions = ["SiLU is x * sigmoid(x)", "f32"]

[dimensions]
rows = 4096
cols = {size = 1024, varies = true, multiple_of = 1}

[inputs]
x = "f32[rows, cols]"
gate = "f32[rows, cols]"
scale = 1.0
"""


def reply(reference: str = REFERENCE, description: str = DESCRIPTION) -> str:
    return f"Here it is.\n\n```python\n{reference}```\n\n```toml\n{description}```\n"


def problem(text: str) -> str:
    with pytest.raises(ReplyProblem) as caught:
        read_specification(text)
    return str(caught.value)


def test_a_specification_is_read() -> None:
    found = read_specification(reply().replace("\n", "\r\n"))
    assert found.reference == REFERENCE
    assert found.description == DESCRIPTION
    assert found.assumptions == ("SiLU is x * sigmoid(x)", "f32")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 ```python blocks"),
        (f"```python\n{REFERENCE}```\n", "0 ```toml blocks"),
        (reply() + f"```python\n{REFERENCE}```\n", "2 ```python blocks, at lines 3 and"),
        (reply().rstrip("`\n"), "never closed"),
        (reply(description='name = "a\n'), "the toml block cannot be read"),
        (reply(description=DESCRIPTION.replace('function = "silu_mul"', "")), "no `function`"),
        (reply(description='name = "f"\nfunction = "f"\n[inputs]\nx = "f32[n]"\n'), "no [dimensions] table"),
        (reply(description=DESCRIPTION.replace('function = "silu_mul"', 'function = "silu"')), "no function 'silu'"),
        (
            reply(description=DESCRIPTION.replace("scale = 1.0\n", "")),
            "the [inputs] are x, gate but silu_mul takes x, gate, scale",
        ),
        (reply(description=DESCRIPTION.replace('["SiLU is x * sigmoid(x)", "f32"]', '"f32"')), "not a list of texts"),
        (reply(reference="def silu_mul(x:\n"), "does not parse: line 1"),
        (reply(reference=REFERENCE.replace("import torch\n", "import os\n", 1)), "imports os"),
        (reply(reference="from subprocess import run\n" + REFERENCE), "imports subprocess"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    assert said in problem(text)


def test_the_question_has_the_request_and_the_shapes() -> None:
    system, user = specify_texts("softmax over\nthe last dim", {"x": "1024x4096:f16"}, "H200")
    assert "softmax over the last dim" in user
    assert "x = 1024x4096:f16" in user
    assert "H200" in user
    assert len(system) + len(user) < 4 * 2000
    assert "No shapes were given beside the request" in specify_texts("softmax", {}, "A100")[1]


def test_the_example_of_the_description_is_read_as_one() -> None:
    """What the prompt shows must pass the reading it is held to."""
    system, _ = specify_texts("", {}, "H200")
    (example,) = re.findall(r"```toml\n(name.*?)```", system, re.DOTALL)
    reference = "def layernorm_gelu(x, weight, bias, eps: float = 1e-5):\n    return x\n"
    found = read_specification(f"```python\n{reference}```\n```toml\n{example}```\n")
    assert len(found.assumptions) == 2
