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

from tilewright.exports.variants import find_variants
from tilewright.exports.writing import NotExportable
from tilewright.kernel_file import ConstantSets, Dispatcher, KernelFile, Selected, TunedChoices, parse
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


TUNED = """\
//! op      fill(x, w?) -> y
//! lead    x: 2
//! out     y: x.dtype[x.shape]
//! tune    W = 1 | 2 | 4 | 8
//! need    x.shape[1] >= W
//! launch  fill<x.dtype><<<x.shape[0], 32 * W>>>(x, y)
template <typename T> __global__ void fill(const T* x, T* y) { y[blockIdx.x] = x[blockIdx.x]; }
"""


def test_an_export_goes_by_what_was_tuned_as_a_loaded_file_does(tmp_path: Path) -> None:
    file = parse(TUNED, "tuned.cu")
    other = parse(TUNED.replace("fill<x", "  fill<x"), "other.cu")

    def call(shape: str, w: str = "") -> dict[str, Any]:
        return {"x": TensorSpec.parse(shape), "w": TensorSpec.parse(w) if w else None}

    tuned = TunedChoices().with_choice(other, "H200", call("64x64:f32"), [("W", 8)])
    for gpu, given, width in (
        ("H200", call("64x64:f32"), 2),
        ("H200", call("8x512x64:f32"), 4),
        ("H200", call("64x64:f16"), 8),
        ("H200", call("64x64:f32", "8:f32"), 4),
        ("NVIDIA L4", call("64x64:f32"), 8),
        ("T4", call("64x64:f32"), 4),
    ):
        tuned = tuned.with_choice(file, gpu, given, [("W", width)])
    calls = [call("64x64:f32"), call("4096x64:f32"), call("64x64:f16"), call("64x64:f64"), call("64x64:f32", "8:f32")]
    variants = find_variants([file], tuned, calls, ["sm_80", "sm_89", H200.arch])
    probe = Probe([file], variants, tmp_path)
    driver = {
        "NVIDIA H200": H200,
        "NVIDIA GH200 480GB": H200,
        "NVIDIA H100 PCIe": replace(PROFILES["H100"], sms=114),
        "NVIDIA L4": PROFILES["L4"],
        "NVIDIA GeForce RTX 4090": PROFILES["RTX 4090"],
        "NVIDIA A100-SXM4-80GB": PROFILES["A100"],
    }
    shapes = (
        "64x64:f32",
        "60x64:f32",
        "3000x64:f32",
        "2x1500x64:f32",
        "2x64x64:f16",
        "64x3:f32",
        "64:f32",
        "64x64:f64",
    )
    taken: dict[tuple[str, str], int] = {}
    for name, known in driver.items():
        gpu = replace(known, name=name)
        dispatcher = Dispatcher([file], gpu, tuned, constant_sets=ConstantSets())
        for given in (*map(call, shapes), call("64x64:f32", "8:f32"), call("64x64:bf16", "8:f32")):
            selected = dispatcher.select(file.signature.arguments(given))
            answer = probe(given, gpu)
            assert isinstance(selected, Selected)
            if "launches" not in answer:
                assert given["x"].dtype is DType.BF16, given  # not built
                continue
            width = dict(selected.evaluation.choice)["W"]
            assert answer["constants"][0] == width, (name, given, answer)
            taken[name, str(given["x"].shape)] = width
    assert taken["NVIDIA H200", "(60, 64)"] == taken["NVIDIA GH200 480GB", "(60, 64)"] == 2
    assert taken["NVIDIA H200", "(2, 1500, 64)"] == 4
    assert taken["NVIDIA GeForce RTX 4090", "(60, 64)"] == 8
    assert taken["NVIDIA A100-SXM4-80GB", "(60, 64)"] == 1  # only a T4 was tuned for that is as old
