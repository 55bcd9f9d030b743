"""Convolutions for Hopper on one: right at larger sizes than are emulated, in every form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.playbook.convolutions.test_hopper import ALLOWED, FORMS
from tests.playbook.convolutions.test_hopper_ahead import FORMS as AHEAD
from tests.playbook.convolutions.test_hopper_exact import EXACT, error_ratio
from tests.playbook.convolutions.written import Written

import tilewright
from tilewright.playbook.gemms import convolution_hopper_geometry
from tilewright.playbook.gemms.convolution_hopper import hopper_convolution

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU"
    ),
]


def _larger(form: Written) -> Written:
    return replace(form, batch=3, lengths=tuple(one * 3 + 1 for one in form.lengths))


@pytest.mark.parametrize("name", FORMS)
def test_convolutions_are_right(name: str, tmp_path: Path) -> None:
    _check(_larger(FORMS[name]), ALLOWED[FORMS[name].dtype], tmp_path)


@pytest.mark.parametrize("name", AHEAD)
def test_those_that_copy_their_input_are_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_hopper_geometry, "LEAST_COPIED_AHEAD", 0)
    monkeypatch.setattr(convolution_hopper_geometry, "LEAST_PRODUCTS_AHEAD", 0)
    form = AHEAD[name]
    _check(replace(form, batch=33, lengths=tuple(one * 4 for one in form.lengths)), ALLOWED[form.dtype], tmp_path)


@pytest.mark.parametrize("name", EXACT)
def test_exact_convolutions_are_right(name: str, tmp_path: Path) -> None:
    """As exact as the referee asks: the sums of tensor cores round less well than those of the emulator."""
    form = _larger(EXACT[name])
    found, tensors = _results(form, tmp_path)
    assert error_ratio(form, found.cpu(), [one.cpu() for one in tensors]) <= 1


def _check(form: Written, allowed: float, tmp_path: Path) -> None:
    found, tensors = _results(form, tmp_path)
    truth = form.truth(tensors)
    assert (found.double() - truth).norm() <= allowed * truth.norm()


def _results(form: Written, tmp_path: Path) -> tuple[torch.Tensor, list[torch.Tensor]]:
    path = tmp_path / "conv.cu"
    path.write_text(hopper_convolution(form.convolution, form.op_line).file())
    operation, tensors = tilewright.load(str(path)), form.draw("cuda")
    found, again = operation(*tensors), operation(*tensors)
    assert isinstance(found, torch.Tensor)
    assert isinstance(again, torch.Tensor)
    assert torch.equal(found, again)
    return found, tensors
