"""Every component in the emulator: right and without findings, and seen to be wrong without any one of its barriers."""

from __future__ import annotations

import pytest
import torch
from tests.device_library.components import ADA, CASES, HOPPER, KERNELS, Case, flat_file, flat_text, is_right
from tests.ptx.harness import A100, Outcome, prepare, shown

from tilewright.device_library import library
from tilewright.device_library.flattening import used_definitions
from tilewright.kernel_file import DoesNotApply, parse
from tilewright.kernel_file.cpp_tokens import tokenize_cpp
from tilewright.ptx.launching import LaunchOptions

MARK = "// sync: "
CALLS = [
    pytest.param(case, choice, call, id=f"{case.name}-{number}-{'-'.join(map(str, choice.values()))}")
    for case in CASES
    for choice in case.choices
    for number, call in enumerate(case.calls())
]
BARRIERS = [
    pytest.param(line, id=f"{name.removesuffix('.cuh')}-{number}")
    for name, header in library().items()
    for number, line in enumerate(
        dict.fromkeys(line for one in header.definitions for line in one.text.splitlines() if MARK in line)
    )
]


def _options(seed: int | None) -> LaunchOptions:
    return LaunchOptions(workers=1, seed=seed, instruction_budget=20_000_000)


def _is_clean(case: Case, call: tuple[torch.Tensor, ...], outcome: Outcome) -> bool:
    whole = outcome.completed and not outcome.counters_left and not outcome.unwritten
    return whole and not outcome.findings and is_right(case, call, outcome.results)


@pytest.mark.parametrize(("case", "choice", "call"), CALLS)
def test_it_is_right_and_clean(case: Case, choice: dict[str, int | bool], call: tuple[torch.Tensor, ...]) -> None:
    prepared = prepare(flat_file(case.name), call, case.gpu, choice or None)
    for seed in (None, 1):
        outcome = prepared.run(_options(seed))
        assert not outcome.findings, shown(outcome.findings)
        assert _is_clean(case, call, outcome), f"{outcome.results}, expected {case.reference(*call)}"


@pytest.mark.parametrize("line", BARRIERS)
def test_the_emulator_sees_that_a_barrier_is_missing(line: str) -> None:
    """Each marked line is removed; a finding or a wrong result of some kernel shows it."""
    users = [case for case in CASES if line in flat_text(case.name)]
    assert users, f"no test kernel uses {line}"
    assert any(_shows_the_loss_of(line, case) for case in users), f"nothing shows that this line is gone: {line}"


def _shows_the_loss_of(line: str, case: Case) -> bool:
    file = parse(flat_text(case.name).replace(f"{line}\n", ""), f"{case.name}.cu")
    call = case.calls()[0]
    prepared = prepare(file, call, case.gpu, case.choices[0] or None)
    return not all(_is_clean(case, call, prepared.run(_options(seed))) for seed in (None, 1, 2))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_compiles_for_every_gpu_it_takes(case: Case) -> None:
    later = {A100: (ADA, HOPPER), ADA: (HOPPER,), HOPPER: ()}[case.gpu]
    for gpu in later:
        prepare(flat_file(case.name), case.calls()[0], gpu, case.choices[0] or None)
    for gpu in (A100, ADA) if case.gpu is HOPPER else ():
        with pytest.raises(DoesNotApply):
            prepare(flat_file(case.name), case.calls()[0], gpu)


def test_every_component_is_in_a_test_kernel() -> None:
    used = set()
    for path in KERNELS.glob("*.cu"):
        kept = used_definitions(tokenize_cpp(path.read_text()), library())
        used |= {one.name for _, definitions in kept for one in definitions}
    assert {one.name for header in library().values() for one in header.definitions} - used == set()
    assert {path.stem for path in KERNELS.glob("*.cu")} == {case.name for case in CASES}
