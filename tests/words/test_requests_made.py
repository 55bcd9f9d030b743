"""Everyday requests become kernels: the playbook's files for them agree with what was asked for, on the emulator."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.playbook.agreement import load_structure
from tests.words.asked import REQUESTS, Request
from tests.words.test_requests import drawn

from tilewright.playbook.understanding import understand
from tilewright.tasks import TaskOptions, task_from_specification
from tilewright.words import read

_QUICK = ("vector add", "cross entropy")


def _check(asked: Request, folder: Path, *, all_structures: bool) -> None:
    made = read(asked.words, asked.shapes)
    task = task_from_specification(made, TaskOptions())
    described = tomllib.loads(made.description)
    inputs = drawn(described)
    expected = asked.means(**{name: _wide(one) for name, one in inputs.items()})
    wanted = expected if isinstance(expected, tuple) else (expected,)
    answer = understand(task)
    for step in (answer.draft, *(answer.structures if all_structures else ())):
        got = load_structure(step, task, folder)(*inputs.values())
        for one, truth in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
            tolerance = 2e-3 if one.dtype in (torch.float16, torch.bfloat16) else 3e-5
            tolerance = 1e-2 if step.id.startswith("convolution-") else tolerance  # TF32, as PyTorch has them
            torch.testing.assert_close(
                one.double(),
                truth.double(),
                rtol=tolerance,
                atol=tolerance,
                msg=lambda said, id=step.id: f"{id}: {said}",
            )


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@pytest.mark.parametrize("words", _QUICK)
def test_the_first_file_is_right(words: str, tmp_path: Path) -> None:
    _check(next(one for one in REQUESTS if one.words == words), tmp_path, all_structures=False)


@pytest.mark.slow
@pytest.mark.parametrize("asked", REQUESTS, ids=lambda one: one.words)
def test_every_file_is_right(asked: Request, tmp_path: Path) -> None:
    _check(asked, tmp_path, all_structures=True)
