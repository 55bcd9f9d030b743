"""Random functions: none ends in a traceback, an illegal plan or a kernel that the referee rejects."""

from __future__ import annotations

import pytest
import torch
from tests.playbook.random_functions import Drawn, draw, outcome, outcomes
from tests.tasks.in_process import probed

from tilewright.playbook.tracing import trace
from tilewright.playbook.understanding import answer
from tilewright.tasks import task_op_line

_BAD = ("traceback", "illegal plan", "rejected")
_HEADER = "import torch\nimport torch.nn.functional as F\n\n\n"
KNOWN = (
    Drawn(
        "of_two_results",
        f"{_HEADER}def of_two_results(x):\n    return F.logsigmoid(x)[..., 1:]\n",
        {"x": "64x256:f32"},
        {},
    ),
    Drawn(
        "of_embedded",
        f"{_HEADER}def of_embedded(c, t, u):\n"
        "    return torch.log_softmax(F.embedding(t, c), -1).gather(-1, u[:, None])\n",
        {"c": "300x64:f32", "t": "9:i64", "u": "9:i64"},
        {"t": "integers:0:300", "u": "integers:0:64"},
    ),
    Drawn(
        "number_turned",
        f"{_HEADER}def number_turned(x):\n    return x[0, 1].transpose(0, -1) * 2\n",
        {"x": "16x33:f32"},
        {},
    ),
    Drawn(
        "joined_then_multiplied",
        f"{_HEADER}def joined_then_multiplied(x, w):\n"
        "    t = torch.repeat_interleave(x, 2, dim=-1)\n    return torch.cat([t, t * 0.5], -1) @ w\n",
        {"x": "32x64:f16", "w": "256x32:f16"},
        {},
    ),
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("drawn", KNOWN, ids=[one.name for one in KNOWN])
def test_functions_that_once_had_no_answer(drawn: Drawn) -> None:
    found = outcome(drawn)
    assert found.word == "written", found.said


@pytest.mark.parametrize("count", [3, 5])
def test_every_one_of_many_dimensions_is_followed(count: int) -> None:
    """More than the calls that a function is traced by can tell apart are held at their own sizes."""
    names = [f"x{number}" for number in range(count)]
    body = f"    return ({names[-1]} * 2).split(2, -1)[0]"
    source = f"{_HEADER}def many({', '.join(names)}):\n{body}\n"
    task, reference = probed(source, "many", dict.fromkeys(names, "8x8x8:f32"))
    found = answer(task, lambda request: trace(reference.function, request))
    text = found.draft.write(task_op_line(task))
    for place, dimension in enumerate(task.tensors[-1].dimensions):
        held = f"{names[-1]}.shape[{place}] == 8" in text
        assert held or f"{names[-1]}.shape[{place}]" in text, dimension
    assert "8ll" not in text or "== 8" in text


def test_a_function_is_drawn_the_same_every_time() -> None:
    assert draw(7) == draw(7)
    assert draw(7).source != draw(8).source


def test_random_functions_are_written_or_refused() -> None:
    found = outcomes(range(8))
    assert not {seed: one for seed, one in found.items() if one.word in _BAD}
    assert sum(one.word == "written" for one in found.values()) >= 2


@pytest.mark.slow
def test_a_thousand_random_functions_of_which_some_are_verified() -> None:
    found = outcomes(range(1000), verify_every=20)
    assert not {seed: one for seed, one in found.items() if one.word in _BAD}
