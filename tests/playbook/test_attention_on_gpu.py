"""Attention on a GPU: every structure at sizes of several tiles, beside PyTorch's own error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import load_structure
from tests.playbook.attention_cases import CASES
from tests.playbook.functions import draw, truth

from tilewright.reference.torch_calls import call_reference
from tilewright.runtime.errors import NoKernelApplies

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SIZES = {"batch": 2, "heads": 4, "rows": 600, "keys": 1000, "size": 64}
ALLOWED = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # relative, in the mean square
BESIDE_TORCH = 3.0  # times its own error


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_structure_is_right(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    task = case.task
    varied = {} if "few" in task.sizes else SIZES  # groups of heads are of the task's own sizes
    sizes = task.complete({one: varied.get(one, size) for one, size in task.sizes.items()})
    tensors = {one: tensor.cuda() for one, tensor in draw(task, sizes, 1).items()}
    with torch.device("cuda"):  # where references make tensors of their own
        wanted = truth(case.function, task, tensors)
        torchs = call_reference(case.function.callable, task, tensors)
    for step in case.answer.every:
        try:
            returned = load_structure(step, task, tmp_path)(*tensors.values())
        except NoKernelApplies:  # Hopper's own elsewhere
            continue
        (want,), (usual,) = wanted, torchs
        kept = ~want.isnan()
        assert torch.equal(returned.isnan(), ~kept)
        error, own = (float((one.double() - want)[kept].norm() / want[kept].norm()) for one in (returned, usual))
        assert error <= max(ALLOWED[returned.dtype], BESIDE_TORCH * own), f"{step.id}: {error:.1e}"
