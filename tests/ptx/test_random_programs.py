"""Random programs: the same bits as the GPU, and no finding on what is honest."""

from __future__ import annotations

import pytest
import torch
from benchmarks.differential_hunt import outcomes
from benchmarks.random_programs import program


def test_a_seed_is_a_program_and_another_is_another() -> None:
    assert program(7) == program(7) != program(8)
    assert "{" + "w}" not in program(7)


@pytest.mark.slow
def test_nothing_is_found_in_honest_programs() -> None:
    assert [one for one in outcomes(range(20), gpu=False) if one.problem] == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_bits_as_the_gpu() -> None:
    assert [one for one in outcomes(range(100, 140), gpu=True) if one.problem] == []
