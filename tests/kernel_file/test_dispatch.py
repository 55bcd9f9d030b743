"""Which file runs, what is remembered, and the tuner's winners."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.kernel_file import (
    Code,
    ConstantSets,
    Dispatcher,
    KernelFile,
    KernelFileError,
    NoneApplies,
    Selected,
    Selection,
    TunedChoices,
    parse,
)
from tilewright.records import (
    PROFILES,
    Attempt,
    Dimension,
    DType,
    GpuProfile,
    Measured,
    Modelled,
    Passed,
    RecordError,
    Stage,
    Task,
    TaskOutput,
    TensorInput,
    TensorSpec,
    Timing,
    TuneResult,
    from_json,
    to_json,
    tuned_path,
)

H200 = PROFILES["H200"]


def plan(text: str, code: str = "__global__ void k() {}", name: str = "k.cu") -> KernelFile:
    lines = [line.strip() for line in text.strip().splitlines()]
    return parse("".join(f"//! {line}\n" for line in lines) + code + "\n", name)


def dispatcher(*files: KernelFile, **options: Any) -> Dispatcher:
    return Dispatcher(files, H200, **{"constant_sets": ConstantSets(), **options})


def selected(selection: Selection) -> Selected:
    assert isinstance(selection, Selected), str(selection)
    return selection


def refused(selection: Selection) -> NoneApplies:
    assert isinstance(selection, NoneApplies)
    return selection


def spec(text: str, stride: tuple[int, ...] | None = None, alignment: int = 256) -> TensorSpec:
    parsed = TensorSpec.parse(text)
    return TensorSpec(parsed.dtype, parsed.shape, parsed.stride if stride is None else stride, alignment)


OP = "op f(x, eps: float, dim: int) -> y\nout y: x.dtype[x.shape]\n"
FAST = plan(
    OP + "need x.dtype == f16 and x.shape[-1] % 8 == 0 and dim == 1\nlaunch k<<<1, 32>>>(x, y, eps)", name="fast.cu"
)
ANY = plan(OP + "accept x: strided, unaligned\nneed dim == 1\nlaunch k<<<1, 64>>>(x, y, eps)", name="any.cu")


def call(x: TensorSpec, eps: float = 1e-5, dim: int = 1) -> dict[str, Any]:
    return {"x": x, "eps": eps, "dim": dim}


def test_the_first_file_that_takes_the_call() -> None:
    choose = dispatcher(FAST, ANY)
    assert selected(choose.select(call(spec("4x8:f16")))).index == 0
    for other in (
        spec("4x8:f32"),
        spec("4x7:f16"),
        spec("4x8:f16", (1, 4)),
        spec("4x8:f16", alignment=2),
        spec(":f16"),
    ):
        assert selected(choose.select(call(other))).index == 1


def test_reasons_name_file_line_and_values() -> None:
    none = refused(dispatcher(FAST, ANY).select(call(spec("4x7:f16"), dim=0)))
    assert [reason.file for reason in none.reasons] == ["fast.cu", "any.cu"]
    first, second = (reason.problem for reason in none.reasons)
    assert (first.code, first.line, first.column) == (Code.DOES_NOT_APPLY, 3, 29)
    assert first.found == "`x.shape[-1] % 8 == 0` is false, with x.shape[-1] = 7"
    assert (second.line, second.found) == (4, "`dim == 1` is false, with dim = 0")
    assert str(none).splitlines()[0].startswith("fast.cu:3:29: does-not-apply: `x.shape[-1] % 8 == 0` is false")


def test_an_error_in_a_let_is_a_reason_and_in_a_step_an_error() -> None:
    in_let = plan(OP + "let c = x.shape[2]\nlaunch k<<<1, 32>>>(x, y, c, eps, dim)", name="let.cu")
    in_step = plan(OP + "launch k<<<1, 32>>>(x, y, x.shape[2], eps, dim)", name="step.cu")
    choice = selected(dispatcher(in_let, ANY).select(call(spec("4x8:f16"))))
    assert choice.index == 1
    with pytest.raises(KernelFileError, match=r"step\.cu:3:38: value: `x.shape\[2\]` index 2 is outside the list"):
        dispatcher(in_step, ANY).select(call(spec("4x8:f16")))


def test_files_of_one_op_must_agree() -> None:
    other = plan("op f(x, eps: float) -> y\nout y: f32[1]\nlaunch k<<<1, 1>>>(x, y, eps)", name="other.cu")
    with pytest.raises(ValueError, match=r"other\.cu is `op .*`, fast\.cu is `op .*`; the `op` lines .* must agree"):
        dispatcher(FAST, other)
    with pytest.raises(ValueError, match="at least one kernel file"):
        dispatcher()


# -- what is remembered --


def test_repeated_calls_evaluate_nothing_whatever_is_passed_through() -> None:
    choose = dispatcher(FAST, ANY)
    first = selected(choose.select(call(spec("4x8:f16"))))
    assert choose.evaluations == 1
    for i in range(50):
        again = selected(choose.select(call(spec("4x8:f16"), eps=i / 7)))
        assert again.evaluation is first.evaluation
        assert again.late == (i / 7,)
    assert choose.evaluations == 1
    assert choose.deciding == {"dim"}


@pytest.mark.parametrize(
    "other",
    [
        call(spec("4x16:f16")),
        call(spec("4x8:bf16")),
        call(spec("4x8:f16", (16, 1))),
        call(spec("4x8:f16", alignment=8)),
        call(spec("4x8:f16"), dim=0),
    ],
    ids=["shape", "dtype", "stride", "alignment", "deciding scalar"],
)
def test_what_decides_is_looked_at(other: dict[str, Any]) -> None:
    choose = dispatcher(FAST, ANY)
    choose.select(call(spec("4x8:f16")))
    before = choose.evaluations
    choose.select(other)
    assert choose.evaluations > before


def test_alignments_above_16_are_one() -> None:
    choose = dispatcher(FAST)
    choose.select(call(spec("4x8:f16", alignment=256)))
    choose.select(call(spec("4x8:f16", alignment=16)))
    assert choose.evaluations == 1


def test_refusals_are_remembered() -> None:
    choose = dispatcher(FAST, ANY)
    first = choose.select(call(spec("4x8:f16"), dim=0))
    assert choose.select(call(spec("4x8:f16"), eps=3.0, dim=0)) is first
    assert choose.evaluations == 2


def test_the_least_recently_used_goes_first() -> None:
    choose = dispatcher(ANY, capacity=2)
    shapes = [spec(f"{n}:f32") for n in (1, 2, 3)]
    choose.select(call(shapes[0]))
    choose.select(call(shapes[1]))
    choose.select(call(shapes[0]))
    choose.select(call(shapes[2]))  # shapes[1] goes
    assert choose.evaluations == 3
    choose.select(call(shapes[0]))
    choose.select(call(shapes[2]))
    assert choose.evaluations == 3
    choose.select(call(shapes[1]))
    assert choose.evaluations == 4


def test_the_cache_stays_bounded() -> None:
    choose = dispatcher(ANY, capacity=16)
    for n in range(100):
        choose.select(call(spec(f"{n}:f32")))
        assert len(choose._cache) <= 16


def test_a_late_let_that_fails_sends_only_that_call_elsewhere() -> None:
    op = "op drop(x, p: float) -> y\nout y: x.dtype[x.shape]\n"
    scaled = plan(op + "let scale = 1.0 / (1.0 - p)\nlaunch k<<<1, 32>>>(x, y, scale)", name="scaled.cu")
    zeros = plan(op + "launch k<<<1, 64>>>(x, y, p)", name="zeros.cu")
    for order in ((1.0, 0.5, 1.0, 0.75), (0.5, 1.0, 0.75, 1.0)):
        choose = dispatcher(scaled, zeros)
        for p in order:
            choice = selected(choose.select({"x": spec("4:f32"), "p": p}))
            assert (choice.index, choice.late) == ((1, (1.0,)) if p == 1.0 else (0, (1.0 / (1.0 - p),)))
    alone = dispatcher(scaled)
    assert "divides by zero" in str(alone.select({"x": spec("4:f32"), "p": 1.0}))
    assert isinstance(alone.select({"x": spec("4:f32"), "p": 0.5}), Selected)


def test_presence_and_length_are_looked_at() -> None:
    text = "op f(x, s: float?, l: int[]) -> y\nout y: f32[1]\nlaunch k<<<1, 1>>>(x, y, s if has(s) else 2.0, l)"
    choose = dispatcher(plan(text))
    assert choose.deciding == set()
    x = spec("4:f32")
    assert selected(choose.select({"x": x, "s": None, "l": (1,)})).late == (2.0, 1)
    assert selected(choose.select({"x": x, "s": 3.0, "l": (1,)})).late == (3.0, 1)
    assert selected(choose.select({"x": x, "s": 4.0, "l": (1, 2)})).late == (4.0, 1, 2)
    assert choose.evaluations == 3
    assert selected(choose.select({"x": x, "s": 5.0, "l": (3, 4)})).late == (5.0, 3, 4)
    assert choose.evaluations == 3


# -- constant sets --


def test_sixteen_sets_of_constants_then_the_next_file() -> None:
    op = "op f(x) -> y\nout y: x.dtype[x.shape]\n"
    const = plan(op + "tune W = 1 | 2\nconst N = x.shape[0], D = W * 2\nlaunch k<W, N, D><<<1, 32>>>(x, y)",
                 "template <int A, int B, int C> __global__ void k() {}", "const.cu")  # fmt: skip
    general = plan(op + "launch k<<<1, 32>>>(x, y, x.shape[0])", name="general.cu")
    sets = ConstantSets()
    choose = dispatcher(const, general, constant_sets=sets)
    indices = [selected(choose.select({"x": spec(f"{n}:f32")})).index for n in range(1, 21)]
    assert indices == [0] * 16 + [1] * 4
    before = choose.evaluations
    assert selected(choose.select({"x": spec("20:f32")})).index == 1
    assert choose.evaluations == before  # that the limit is reached is remembered too
    # Known sets stay usable, also through another dispatcher of the same process, and tunes do not count.
    assert selected(choose.select({"x": spec("3:f32")})).index == 0
    assert selected(dispatcher(const, general, constant_sets=sets).select({"x": spec("3:f32")})).index == 0
    alone = refused(dispatcher(const, constant_sets=sets).select({"x": spec("99:f32")}))
    (reason,) = alone.reasons
    assert reason.problem.code is Code.LIMIT
    assert "16 different sets of `const` values" in reason.problem.found


# -- tuned choices --

TUNED = plan(
    """
    op      f(x) -> y
    out     y: x.dtype[x.shape]
    tune    W = 1 | 2 | 4 | 8
    need    x.shape[0] >= W
    launch  k<<<1, W>>>(x, y)
    """,
    "__global__ void k() { int w = W; }",
    "tuned.cu",
)


def winners(*pairs: tuple[str, int], gpu: str = "H200") -> TunedChoices:
    result = TunedChoices()
    for shape, choice in pairs:
        result = result.with_choice(TUNED, gpu, {"x": spec(shape)}, [("W", choice)])
    return result


def width(tuned: TunedChoices, shape: str) -> Any:
    return selected(dispatcher(TUNED, tuned=tuned).select({"x": spec(shape)})).evaluation.choice["W"]


def test_the_nearest_recorded_shape_wins() -> None:
    tuned = winners(("64:f32", 2), ("4096:f32", 8))
    assert [width(tuned, shape) for shape in ("60:f32", "100:f32", "2000:f32", "1000000:f32")] == [2, 2, 8, 8]
    assert width(tuned, "64:f64") == width(tuned, "64:f16") == 1  # another dtype
    assert width(winners(("64:f16", 4)), "64:bf16") == 4  # of the same width, and the same tensor cores
    assert width(winners(("64:bf16", 2), ("80:f16", 4)), "64:f16") == 4
    assert width(tuned, "64x64:f32") == 1  # another rank
    assert width(winners(("64:f32", 2), gpu="A100"), "64:f32") == 1
    assert width(winners(("64:f32", 2), ("64:f32", 4)), "64:f32") == 4  # the newer replaces the older


def driven(name: str, like: str, **facts: int) -> GpuProfile:
    """A GPU of that kind as its driver tells of it."""
    return replace(PROFILES[like], name=name, bandwidth_gbs=0.0, **facts)


def width_on(tuned: TunedChoices, gpu: GpuProfile, shape: str = "64:f32") -> Any:
    choose = Dispatcher([TUNED], gpu, tuned, constant_sets=ConstantSets())
    return selected(choose.select({"x": spec(shape)})).evaluation.choice["W"]


@pytest.mark.parametrize(
    ("tuned_on", "gpu", "width"),
    [
        ("H200", driven("NVIDIA H200", "H200"), 4),
        ("H200", driven("NVIDIA H200 NVL", "H200"), 4),
        ("H200", driven("NVIDIA GH200 480GB", "H200"), 4),
        ("NVIDIA H200", driven("NVIDIA H200", "H200"), 4),
        ("NVIDIA H200", PROFILES["H200"], 4),  # emulated on what it was tuned on
        ("H100", driven("NVIDIA H100 PCIe", "H100", sms=114), 4),
        ("A100", driven("NVIDIA A100-SXM4-80GB", "A100"), 4),
        ("RTX 4090", driven("NVIDIA GeForce RTX 4090", "RTX 4090"), 4),
        ("L4", driven("NVIDIA GeForce RTX 4090", "RTX 4090"), 4),  # at least the same instructions
        ("L4", driven("NVIDIA H200", "H200"), 1),
        ("A100", driven("NVIDIA A10G", "A10"), 1),
    ],
)
def test_what_was_tuned_is_used_whatever_the_driver_calls_the_gpu(tuned_on: str, gpu: GpuProfile, width: int) -> None:
    assert width_on(winners(("64:f32", 4), gpu=tuned_on), gpu) == width


def test_the_likest_gpu_comes_first_unless_its_shapes_are_far() -> None:
    on_both = winners(("64:f32", 4)).joined(winners(("64:f32", 8), gpu="NVIDIA H100 80GB HBM3"))
    assert width_on(on_both, driven("NVIDIA H200", "H200")) == 4
    assert width_on(on_both, driven("NVIDIA H100 80GB HBM3", "H100")) == 8
    far = winners(("1000000:f32", 4)).joined(winners(("64:f32", 8), gpu="NVIDIA H100 80GB HBM3"))
    assert width_on(far, driven("NVIDIA H200", "H200")) == 8
    # of a slice of the GPU rather what was tuned on such a slice
    part = driven("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "H100", sms=60)
    sliced = TunedChoices().with_choice(TUNED, part, {"x": spec("64:f32")}, [("W", 2)])
    assert width_on(on_both.joined(sliced), part) == 2
    assert width_on(sliced.joined(on_both), driven("NVIDIA H200", "H200")) == 4


def test_measured_comes_before_emulated_and_newer_before_older() -> None:
    emulated = TunedChoices().with_choice(TUNED, H200, {"x": spec("64:f32")}, [("W", 2)], emulated=True)
    measured = winners(("64:f32", 4), gpu="NVIDIA H200")
    assert width_on(measured.joined(emulated), H200) == width_on(emulated.joined(measured), H200) == 4
    assert width_on(measured.joined(winners(("64:f32", 8))), H200) == 8
    assert len(emulated.with_choice(TUNED, "NVIDIA H200", {"x": spec("64:f32")}, [("W", 8)]).entries) == 1


LEAD = plan(
    """
    op      f(x) -> y
    lead    x: 2
    out     y: x.dtype[x.shape]
    tune    W = 1 | 2
    launch  k<<<1, W>>>(x, y)
    """,
    "__global__ void k() { int w = W; }",
    "lead.cu",
)


def test_leading_dimensions_are_compared_as_the_plan_sees_them() -> None:
    for tuned_at, asked in (("2x32x40:f32", "64x40:f32"), ("64x40:f32", "2x32x40:f32"), ("2x32x40:f32", "2x32x40:f32")):
        tuned = TunedChoices().with_choice(LEAD, H200, {"x": spec(tuned_at)}, [("W", 2)])
        found = selected(dispatcher(LEAD, tuned=tuned).select({"x": spec(asked)}))
        assert found.evaluation.choice == {"W": 2}
        assert found.tuned is not None
        assert found.tuned.octaves == 0


def why(tuned: TunedChoices, gpu: GpuProfile, shape: str = "64:f32", file: KernelFile = TUNED) -> str:
    choose = Dispatcher([file], gpu, tuned, constant_sets=ConstantSets())
    arguments = {"x": spec(shape)}
    return choose.why(selected(choose.select(arguments)), arguments)


def test_where_a_choice_comes_from_is_said() -> None:
    driver = driven("NVIDIA H200", "H200")
    emulated = TunedChoices().with_choice(TUNED, H200, {"x": spec("64:f32")}, [("W", 2)], emulated=True)
    assert why(emulated, driver) == "tuned on H200 (emulated) at x f32[64], as in this call"
    assert why(emulated, driver, "80:f32") == "tuned on H200 (emulated) at x f32[64], nearest to this call"
    super_chip = driven("NVIDIA GH200 480GB", "H200")
    assert why(winners(("64:f32", 2)), super_chip).endswith(
        "; NVIDIA GH200 480GB is of the same architecture and similar size"
    )
    assert why(TunedChoices(), driver) == "first choices: never tuned"
    assert why(winners(("64:f32", 2), gpu="NVIDIA L4"), driver) == (
        "first choices: tuned only for NVIDIA L4 (sm_89); this is NVIDIA H200 (sm_90)"
    )
    assert why(emulated, driver, "64x64:f32").startswith("first choices: tuned only for other dtypes or ranks")
    assert why(winners(("64:f32", 8)), driver, "3:f32").endswith("x f32[64] does not hold here")
    edited = parse(TUNED.text + "// edited\n", "tuned.cu")
    assert why(emulated, driver, file=edited) == "first choices: tuned only with another text of the file"
    assert why(emulated, driver, file=ANY_SIZE) == ""


ANY_SIZE = plan("op f(x) -> y\nout y: x.dtype[x.shape]\nlaunch k<<<1, 32>>>(x, y)")


def test_a_recorded_choice_that_does_not_hold_is_passed_over() -> None:
    assert width(winners(("64:f32", 8)), "3:f32") == 1
    assert width(winners(("64:f32", 8), ("512:f32", 2)), "3:f32") == 2  # the next nearest does hold
    assert width(winners(("64:f32", 3)), "64:f32") == 1  # not a choice of the file
    edited = parse(TUNED.text + "// edited\n", "tuned.cu")
    choice = selected(dispatcher(edited, tuned=winners(("64:f32", 2))).select({"x": spec("64:f32")}))
    assert choice.evaluation.choice == {"W": 1}  # tuned on another text


def save(tuned: TunedChoices, path: Path) -> None:
    tuned_path(path).write_text(json.dumps(to_json(tuned)))


def test_winners_live_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    assert TunedChoices.load(path) == TunedChoices()
    tuned = winners(("64:f32", 2), ("4096:f32", 8))
    assert tuned_path(path) == tmp_path / "k.cu.tuned.json"
    save(tuned, path)
    assert TunedChoices.load(path) == tuned
    assert tuned.joined(TunedChoices()) == tuned
    data = json.loads(tuned_path(path).read_text())
    assert data["entries"][0]["tensors"][0] == {"is": "TunedTensor", "name": "x", "dtype": "f32", "shape": [64]}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"entries": [{"file": 3}]}'])
def test_a_broken_record_is_said_to_be_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k.cu"
    tuned_path(path).write_text(text)
    with pytest.raises(RecordError, match="delete it to tune again"):
        TunedChoices.load(path)


def test_boolean_choices_survive(tmp_path: Path) -> None:
    file = plan("op f(x) -> y\nout y: f32[1]\ntune B = false | true\nlaunch k<B><<<1, 1>>>(x, y)",
                "template <bool B> __global__ void k() {}")  # fmt: skip
    x = TensorSpec.contiguous(DType.F32, (4,))
    save(TunedChoices().with_choice(file, "H200", {"x": x}, [("B", True)]), tmp_path / "k.cu")
    choose = dispatcher(file, tuned=TunedChoices.load(tmp_path / "k.cu"))
    assert selected(choose.select({"x": x})).evaluation.choice == {"B": True}


def test_a_winner_is_kept_for_the_gpu_it_was_found_on() -> None:
    tune = TuneResult((((("W", 1),), 2.0), ((("W", 2),), 1.0)), (("W", 2),))
    shapes = {"inputs": (TensorInput("x", DType.F32, ("n",)),), "outputs": (TaskOutput("y", DType.F32, ("n",)),)}
    task = Task("f", "def f(x):\n    return x\n", "f", dimensions=(Dimension("n", 64),), **shapes)  # type: ignore[arg-type]
    modelled = Modelled("H200", {"n": 64}, (), 1.0, 1.0, 1.0, 0, 1, 1, 1)
    measured = Measured("NVIDIA GH200 480GB", {"n": 64}, Timing("kernel", (1.0,)), (), 1.0)
    found = []
    for measurement in (modelled, measured):
        attempt = Attempt(1, 1, Stage.DRAFT, None, "", TUNED.identity, Passed(()), measurement, tune)
        (entry,) = TunedChoices().with_winner_of(TUNED, task, attempt).entries
        found.append((entry.gpu, entry.cc, entry.sms, entry.emulated))
        assert from_json(TunedChoices, to_json(TunedChoices((entry,)))) == TunedChoices((entry,))
    assert found == [("H200", 90, 132, True), ("NVIDIA GH200 480GB", 90, 0, False)]
