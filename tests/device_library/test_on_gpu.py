"""Every component on a CUDA device, by the kernels that the emulator ran."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.device_library.components import CASES, Case, flat_text, is_right

import tilewright

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_right(case: Case, tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor < case.gpu.cc or (case.gpu.cc == 90 and major != 9):
        pytest.skip(f"needs compute capability {case.gpu.cc / 10}")
    for choice in case.choices:
        text = flat_text(case.name)
        for name, value in choice.items():
            text = re.sub(rf"(//! tune +{name} =).*", rf"\1 {value}", text)
        path = tmp_path / f"{case.name}{'_'.join(map(str, choice.values()))}.cu"
        path.write_text(text)
        operation = tilewright.load(path, strict=True)
        for call in case.calls():
            results = operation(*(one.cuda() for one in call))
            results = (results,) if isinstance(results, torch.Tensor) else results
            assert is_right(case, call, results), f"{choice}: {results}"
