"""Every example on a CUDA device: right at every shape, complete, repeatable, and refusing what it does not take.

What is checked of a call beside its results: inputs are unchanged, every element of the outputs is written, and a
second run gives the same bits. Outputs start as whatever the memory held before, so before the second run the memory of
the first results is filled with a pattern that is NaN in every floating dtype, and given back: the allocator hands the
same memory out again.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch

import tilewright
from tilewright.kernel_file import KernelFile, parse
from tilewright.runtime import NoKernelApplies, Operation

from .agreement import disagreement
from .all_cases import CASES
from .cases import Arguments, Call, Case, Results, single_choices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

POISON = 0xFF
LARGE = 1 << 20  # elements


@cache
def _capability() -> int:
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@cache
def _operation(case: Case) -> Operation:
    return tilewright.load(case.paths(), strict=True)


@cache
def _first_file(case: Case) -> KernelFile:
    path = case.paths()[0]
    return parse(path.read_text(), path.name)


def _parameters(calls: str, of: list[Case]) -> pytest.MarkDecorator:
    """One test per case and call, so that a failure names the shape."""
    pairs = [(case, call) for case in of for call in getattr(case, calls)]
    marks = [pytest.mark.slow if case.slow_build else () for case, _ in pairs]
    return pytest.mark.parametrize(
        ("case", "call"),
        [
            pytest.param(*pair, marks=mark, id=f"{pair[0].name}-{pair[1].label}")
            for pair, mark in zip(pairs, marks, strict=True)
        ],
    )


def _copy(arguments: Arguments) -> Arguments:
    """Copies with the same strides: a call must not be able to reach the originals."""
    return tuple(_copy_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments)


def _copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(raw.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _run(case: Case, arguments: Arguments, operation: Operation | None = None) -> Results:
    """The op's results, then the tensors it changed in place, as `Case.reference` returns them."""
    returned = (operation or _operation(case))(*arguments)
    results = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
    parameters = _first_file(case).plan.op.parameters
    changed = tuple(a for parameter, a in zip(parameters, arguments, strict=False) if parameter.in_place)
    return results + changed


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements, in the order of the dimensions, as bytes."""
    return tensor.contiguous().flatten().view(torch.uint8)


def _poison(results: Results) -> None:
    for result in results:
        if result.numel() > 0:
            raw = torch.empty(0, dtype=torch.uint8, device=result.device)
            raw.set_(result.untyped_storage()).fill_(POISON)


@_parameters("calls", list(CASES))
def test_it_is_right(case: Case, call: Call) -> None:
    if not case.runs_on(_capability()):
        pytest.skip(f"not for compute capability {_capability()}")
    original = call.make(torch.device("cuda"))
    arguments = _copy(original)
    results = _run(case, arguments)
    torch.cuda.synchronize()

    parameters = _first_file(case).plan.op.parameters
    for parameter, given, before in zip(parameters, arguments, original, strict=False):
        if isinstance(given, torch.Tensor) and not parameter.in_place:
            assert _same_bits(given, before), f"{parameter.name} was changed"

    kept = tuple(result.clone() for result in results)
    _poison(results)
    del results, arguments
    again = _run(case, _copy(original))
    torch.cuda.synchronize()
    wrong = disagreement(case, original, again)
    assert wrong is None, wrong
    wrong = disagreement(case, original, kept)
    assert wrong is None, f"in the first run only: {wrong}"
    if case.deterministic:
        for position, (one, other) in enumerate(zip(kept, again, strict=True)):
            assert _same_bits(one, other), f"result {position} differs between two runs"


def _with_choice(path: Path, name: str, value: int | bool, folder: Path) -> Path:
    """A copy of an example whose `tune` has one value, as a tuner would fix it."""
    text, count = re.subn(rf"(?m)^(//! +tune +{name} *=)[^#\n]*", rf"\1 {str(value).lower()} ", path.read_text())
    assert count == 1, f"{path.name} has {count} tune lines for {name}"
    copy = folder / f"{path.stem}-{name}-{value}.cu"
    copy.write_text(text)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if not case.slow_build], ids=lambda case: case.name)
def test_every_choice_of_the_tuner_is_right(case: Case, tmp_path: Path) -> None:
    """One choice at a time, at every call that is not large."""
    if not case.runs_on(_capability()):
        pytest.skip(f"not for compute capability {_capability()}")
    for path in case.paths():
        for name, value in single_choices(parse(path.read_text(), path.name)):
            operation = tilewright.load(_with_choice(path, name, value, tmp_path), strict=True)
            for call in case.calls:
                arguments = call.make(torch.device("cuda"))
                if sum(a.numel() for a in arguments if isinstance(a, torch.Tensor)) > LARGE:
                    continue
                try:
                    results = _run(case, _copy(arguments), operation)
                except NoKernelApplies:
                    continue  # this choice does not fit this shape, or the other file takes it
                wrong = disagreement(case, arguments, results)
                assert wrong is None, f"{call.label} with {name} = {value}: {wrong}"


@_parameters("refused", list(CASES))
def test_it_refuses(case: Case, call: Call) -> None:
    if not case.runs_on(_capability()):
        pytest.skip(f"not for compute capability {_capability()}")
    with pytest.raises(NoKernelApplies):
        _operation(case)(*call.make(torch.device("cuda")))


@_parameters("calls", [case for case in CASES if case.only_cc is not None or case.least_cc > 75])
def test_it_refuses_a_gpu_it_is_not_for(case: Case, call: Call) -> None:
    if case.runs_on(_capability()):
        pytest.skip(f"is for compute capability {_capability()}")
    with pytest.raises(NoKernelApplies):
        _operation(case)(*call.make(torch.device("cuda")))


def test_results_are_poisoned_in_every_dtype() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        result = torch.zeros((4, 4), dtype=dtype, device="cuda")
        _poison((result,))
        assert bool(result.isnan().all())
