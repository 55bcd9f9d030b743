"""The C++ host code of an export does what the Python evaluator does, on every example and many calls."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.examples.all_cases import CASES
from tests.examples.cases import Case
from tests.exports.probing import Probe, agree, expected
from tests.runtime import plans

from tilewright.exports.errors import NotExportable
from tilewright.exports.variants import find_variants
from tilewright.kernel_file import KernelFile, TunedChoices, parse
from tilewright.records import PROFILES, DType, TensorSpec
from tilewright.runtime.specs import spec_of

H200 = PROFILES["H200"]
QUICK = ("layernorm",)


def case_arguments(case: Case, file: KernelFile) -> list[dict[str, Any]]:
    calls = [call.make(torch.device("meta")) for call in (*case.calls, *case.refused)]
    return [_specs(file, values) for values in calls]


def _specs(file: KernelFile, values: tuple[Any, ...]) -> dict[str, Any]:
    names = [parameter.name for parameter in file.plan.op.parameters]
    pairs = zip(names, values, strict=False)
    return {name: spec_of(value) if isinstance(value, torch.Tensor) else value for name, value in pairs}


def varied(arguments: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The call with some of its sizes, dtypes, strides and numbers changed; equal sizes change together."""
    sizes = {size for value in arguments.values() if isinstance(value, TensorSpec) for size in value.shape}
    other = {size: chance.choice([size, size, 0, 1, size + 1, 2 * size, max(size // 2, 1), 8 * size]) for size in sizes}
    made = {}
    for name, value in arguments.items():
        if isinstance(value, TensorSpec):
            shape = tuple(other[size] for size in value.shape)
            spec = TensorSpec.contiguous(value.dtype, shape)
            if chance.random() < 0.1:
                spec = replace(spec, dtype=chance.choice(list(DType)))
            if chance.random() < 0.1 and shape:
                spec = replace(spec, stride=tuple(step * 2 for step in spec.stride))
            if chance.random() < 0.1:
                spec = replace(spec, alignment=chance.choice([1, 2, 4, 8, 16]))
            made[name] = spec
        elif isinstance(value, float):
            made[name] = chance.choice([value, 0.0, -value, 1e300])
        elif isinstance(value, int) and not isinstance(value, bool):
            made[name] = chance.choice([value, 0, value + 1, -1, 2**40])
        else:
            made[name] = value
    return made


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=() if c.name in QUICK else pytest.mark.slow) for c in CASES if not c.library],
)
def test_host_code_agrees_with_the_evaluator(case: Case, tmp_path: Path) -> None:
    files = [parse(path.read_text(), path.name) for path in case.paths()]
    calls = case_arguments(case, files[0])
    variants = find_variants(files, TunedChoices(), calls, [H200.arch], most_sets=1 if case.slow_build else 16)
    probe = Probe(files, variants, tmp_path)
    chance = random.Random(case.name)
    kinds = set()
    for number in range(60 + 10 * len(calls)):
        arguments = calls[number] if number < len(calls) else varied(chance.choice(calls), chance)
        wanted = expected(files, variants, arguments, H200)
        answer = probe(arguments, H200)
        assert agree(answer, wanted), f"{arguments}\n{answer}\n{wanted}"
        kinds |= set(wanted) & {"refused", "error", "launches"}
    assert "launches" in kinds


def test_leading_dimensions_are_taken_as_the_evaluator_takes_them(tmp_path: Path) -> None:
    files = [parse(plans.LEADING, "leading.cu")]
    shapes = {"x": "6x40:f32", "scale": "6:f32", "weight": "40:f32"}
    own = {name: TensorSpec.parse(text) for name, text in shapes.items()}
    variants = find_variants(files, TunedChoices(), [own], [H200.arch])
    probe = Probe(files, variants, tmp_path)
    launched = 0
    chance = random.Random(0)
    for number in range(400):
        leading = chance.choice([(6,), (2, 3), (), (3, 1, 2), (0, 3), (1, 1), (2, 3, 1), (5, 7)])
        other = leading if chance.random() < 0.8 else chance.choice([(6,), (2, 3), (3, 2), ()])
        call = {
            "x": TensorSpec.contiguous(DType.F32, (*leading, 40)),
            "scale": TensorSpec.contiguous(DType.F32, other),
            "weight": own["weight"],
        }
        for name in ("x", "scale") if number % 4 == 0 else ():
            spec = call[name]
            stride = tuple(chance.choice([step, step, 2 * step, step + 1]) for step in spec.stride)
            call[name] = replace(spec, stride=stride)
        wanted = expected(files, variants, call, H200)
        answer = probe(call, H200)
        assert agree(answer, wanted), f"{call}\n{answer}\n{wanted}"
        launched += "launches" in wanted and len(leading) != 1
    assert launched > 50


def test_a_library_step_is_refused_in_a_sentence() -> None:
    case = next(one for one in CASES if one.library)
    files = [parse(path.read_text(), path.name) for path in case.paths()]
    with pytest.raises(NotExportable, match=r"library step \(aten.linear\)"):
        find_variants(files, TunedChoices(), case_arguments(case, files[0]), [H200.arch])
