"""Products and chains of them on a GPU: every structure that is proposed there, also those no emulator runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.agreement import load_structure
from tests.playbook.functions import draw, truth
from tests.playbook.product_functions import BY_NAME, traced_of

from tilewright.playbook.gemms.schedules import PRODUCTS
from tilewright.records import PROFILES
from tilewright.reference.torch_calls import call_reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SIZES = {"m": 304, "n": 264, "k": 520, "j": 136, "batch": 3, "heads": 2}
ALLOWED = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # relative, in the mean square
BESIDE_TORCH = 3.0  # times its own error, where exponentials make that larger


def _profile() -> str:
    """A GPU of the same architecture."""
    major, minor = torch.cuda.get_device_capability()
    return next(name for name, one in PROFILES.items() if one.arch.rstrip("a") == f"sm_{major}{minor}")


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_structure_is_right(name: str, tmp_path: Path) -> None:
    traced = traced_of(name)
    task = replace(traced.task, gpu=_profile())
    sizes = {one.name: SIZES.get(one.name, one.size) for one in task.dimensions}
    tensors = {one: tensor.cuda() for one, tensor in draw(task, sizes, 1).items()}
    wanted = truth(BY_NAME[name], task, tensors)
    torchs = call_reference(BY_NAME[name].callable, task, tensors)
    found = PRODUCTS.matches(replace(traced, task=task))
    assert found is not None
    for step in found.every:
        returned = load_structure(step, task, tmp_path)(*tensors.values())
        results = returned if isinstance(returned, tuple) else (returned,)
        for got, want, usual in zip(results, wanted, torchs, strict=True):
            error, own = (float((one.double() - want).norm() / want.norm()) for one in (got, usual))
            assert error <= max(ALLOWED[got.dtype], BESIDE_TORCH * own), f"{step.id}: {error:.1e}"
