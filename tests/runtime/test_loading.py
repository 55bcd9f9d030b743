"""`load`, and all that an operation says without running: wrong files and calls, fake tensors, questions ahead."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from tests.runtime import plans
from tests.runtime.conftest import Make

import tilewright
from tilewright.kernel_file import CallError, KernelFileError, TunedChoices, parse
from tilewright.records import PROFILES, DType, RecordError, TensorSpec, to_json, tuned_path, write_reference
from tilewright.runtime import BuildFailed, LoadError, NoKernelApplies, NotOnCuda, ReferenceUsed, call_devices, load

F16_ONLY = plans.TWICE.replace("in [f64, f32, f16, bf16]", "== f16")


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, tilewright; assert 'torch' not in sys.modules; tilewright.load; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        tilewright.lod  # noqa: B018


def test_a_folder_is_its_files_by_name(tmp_path: Path) -> None:
    (tmp_path / "20_any.cu").write_text(plans.TWICE)
    (tmp_path / "10_half.cu").write_text(F16_ONLY)
    (tmp_path / "notes.md").write_text("not a kernel")
    operation = tilewright.load(tmp_path)
    assert [Path(file.name).name for file in operation.files] == ["10_half.cu", "20_any.cu"]
    assert repr(operation) == "<Operation twice(x) -> y; 2 files>"
    assert operation.__name__ == "twice"
    listed = load([str(tmp_path / "20_any.cu"), tmp_path / "10_half.cu"])
    assert [Path(file.name).name for file in listed.files] == ["20_any.cu", "10_half.cu"]


def test_files_that_make_no_operation(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"there is no file .*missing\.cu"):
        load(tmp_path / "missing.cu")
    with pytest.raises(LoadError, match=r"no \*\.cu file"):
        load(tmp_path)
    with pytest.raises(LoadError, match="no kernel file was named"):
        load([])
    with pytest.raises(LoadError, match="is a folder"):
        load([tmp_path])
    (tmp_path / "one.cu").write_text(plans.TWICE)
    (tmp_path / "two.cu").write_text(plans.SCALE)
    with pytest.raises(LoadError, match=r"two\.cu.*one\.cu.*must agree"):
        load(tmp_path)
    (tmp_path / "latin.cu").write_bytes(b"// caf\xe9\n")
    with pytest.raises(LoadError, match="not UTF-8"):
        load(tmp_path / "latin.cu")
    (tmp_path / "broken.cu").write_text(plans.TWICE.replace("//! need", "//! needs"))
    with pytest.raises(KernelFileError, match=r"broken\.cu:3:"):
        load(tmp_path / "broken.cu")


def test_arguments_that_do_not_fit(make: Make) -> None:
    scale = make(plans.SCALE)
    x = torch.zeros(4)
    for args, kwargs, message in (
        ((), {}, "misses 'x'"),
        ((x, 1.0, 2, 3), {}, "takes 3 arguments"),
        ((x,), {"factr": 1.0}, "no parameter 'factr'"),
        ((x, 1.0), {"factor": 1.0}, "twice"),
        ((x, "1"), {}, "factor is a float"),
        ((x, 1.0, 1.5), {}, "shift is an int"),
        ((3, 1.0), {}, "x is a tensor"),
        ((numpy.zeros(4), 1.0), {}, "found ndarray; give a torch tensor"),
    ):
        for _ in range(2):  # known ways of calling are checked as well as new ones
            with pytest.raises(CallError, match=message):
                scale(*args, **kwargs)
    assert scale(x, factor=1.0, shift=2).tolist() == [2.0] * 4
    assert scale(factor=1, x=x).tolist() == [0.0] * 4


def test_meta_and_fake_tensors_get_results_of_their_kind(make: Make) -> None:
    extremes = make(plans.TWO_RESULTS)
    low, high = extremes(torch.zeros(7, 5, device="meta"))
    assert (low.shape, high.device.type) == ((7,), "meta")
    transposed = make(plans.TRANSPOSED)
    assert transposed(torch.zeros(3, 4, device="meta")).stride() == (1, 3)
    assert make(plans.IN_PLACE)(torch.zeros(2, 2, device="meta"), torch.zeros(2, 2, device="meta")) is None
    with pytest.raises(NoKernelApplies, match=r"x\.dtype"):
        transposed(torch.zeros(3, 4, device="meta", dtype=torch.int8))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.zeros(7, 5, device="cuda")
    low, high = extremes(x)
    assert (low.shape, str(low.device)) == ((7,), "cuda:0")


def test_the_reference_is_a_visible_last_resort(make: Make) -> None:
    x = torch.zeros(3, dtype=torch.int8)
    operation = make(plans.TWICE, reference=lambda x: "reference")
    with pytest.warns(ReferenceUsed, match=r"is false, with x\.dtype = i8$") as caught:
        assert operation(x) == "reference"
    assert caught[0].filename == __file__
    with pytest.warns(ReferenceUsed, match=r"which is not contiguous; pass x\.contiguous\(\) to use the kernel$"):
        assert operation(torch.zeros(6)[::2]) == "reference"
    assert operation(x) == "reference"
    with pytest.raises(NoKernelApplies):
        make(plans.TWICE, reference=lambda x: "reference", strict=True)(x)
    with pytest.raises(NoKernelApplies, match="pass load"):
        make(plans.TWICE)(x)


def test_a_reference_beside_the_kernel_is_fallen_back_to(tmp_path: Path) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(plans.TWICE)
    identity = load(path).files[0].identity
    write_reference(path, identity, "def double(x):\n    return x + x\n", "double")
    x = torch.arange(6.0)[::2]
    with pytest.warns(ReferenceUsed, match="not contiguous"):
        torch.testing.assert_close(load(path)(x), 2 * x)
    again = pickle.loads(pickle.dumps(load(path)))
    with pytest.warns(ReferenceUsed, match="not contiguous"):
        torch.testing.assert_close(again(x), 2 * x)
    path.write_text(plans.TWICE + "// another file\n")
    with pytest.raises(NoKernelApplies):
        load(path)(x)


def test_explain_without_a_gpu(make: Make) -> None:
    operation = make(F16_ONLY, plans.TWICE)
    explanation = operation.explain(torch.zeros(1000, dtype=torch.bfloat16), gpu="H200")
    assert explanation.file is not None
    assert explanation.file.endswith("k1.cu")
    assert explanation.choice == (("THREADS", 256),)
    (step,) = explanation.steps
    assert (step.kernel, step.grid, step.block) == ("twice<__nv_bfloat16>", (4, 1, 1), (256, 1, 1))
    text = str(explanation)
    assert "twice on H200: " in text
    assert "k0.cu:3:" in text
    assert "x.dtype = bf16" in text
    assert "registers" in text
    nothing = operation.explain("5:i8", gpu=PROFILES["T4"])
    assert nothing.file is None
    assert len(nothing.refused) == 2
    assert "no kernel file applies, the call is refused" in str(nothing)
    empty = operation.explain("0x5:f32", gpu="H200")
    assert "nothing to launch" in str(empty)
    with pytest.raises(ValueError, match="known are T4"):
        operation.explain("5:f32", gpu="Z80")


def test_explain_shows_scratch_attributes_and_library_steps(make: Make) -> None:
    text = str(make(plans.COOPERATIVE).explain("5000:f32", gpu="H100"))
    assert "scratch    part: f32[132] (528 bytes)" in text
    assert "cooperative" in text
    assert "library t = aten.mm" in str(make(plans.LIBRARY).explain("3x4", "4x5", "5", gpu="H200"))
    assert "cluster 4" in str(make(plans.CLUSTER).explain("32:i32", 4, gpu="H200"))
    assert "stride [1, 30]" in str(make(plans.TRANSPOSED).explain("30x40", gpu="H200"))


def test_tensors_ahead_of_a_call(make: Make) -> None:
    scale = make(plans.SCALE)
    given = [
        torch.zeros(100, 7),
        torch.zeros(100, 7, device="meta"),
        TensorSpec.contiguous(DType.F32, (100, 7)),
        "100x7:f32",
    ]
    texts = {str(scale.explain(x, gpu="H200")) for x in given}  # `factor` decides nothing, so it may be left out
    assert len(texts) == 1
    assert str(scale.explain(x="100x7", factor=2.0, gpu="H200")) in texts
    with pytest.raises(CallError, match="not a shape"):
        scale.explain("100y7", gpu="H200")
    with pytest.raises(CallError, match="found int; give a tensor, a TensorSpec or text"):
        scale.explain(7, gpu="H200")
    with pytest.raises(CallError, match="complex64"):
        scale.explain(torch.zeros(4, dtype=torch.complex64), gpu="H200")
    with pytest.raises(CallError, match="misses 'count'"):
        make(plans.ZEROED).explain("100:i64", gpu="H200")  # it decides, so it may not


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_preparing_for_one_says_so(make: Make) -> None:
    with pytest.raises(NotOnCuda, match="sees no CUDA device"):
        make(plans.TWICE).prepare("5:f32", device="cuda:0")
    with pytest.raises(NotOnCuda, match="sees no CUDA device"):
        make(plans.TWICE).explain("5:f32", device=0)


def test_tuned_choices_beside_the_file_are_used(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(plans.TWICE)
    arguments = {"x": TensorSpec.parse("1000:f32")}
    tuned = TunedChoices().with_choice(parse(plans.TWICE), "H200", arguments, (("THREADS", 128),))
    tuned_path(path).write_text(json.dumps(to_json(tuned)))
    assert load(path).explain("2000:f32", gpu="H200").choice == (("THREADS", 128),)
    assert load(path).explain("2000:f32", gpu="L4").choice == (("THREADS", 256),)
    (tmp_path / "k.cu.tuned.json").write_text("{")
    with pytest.raises(RecordError, match="delete it to tune again"):
        load(path)


@pytest.mark.parametrize(
    ("tuned_on", "name", "like", "why"),
    [
        ("H200", "NVIDIA H200", "H200", "tuned on H200 (emulated) at x f32[1000], nearest to this call"),
        ("H200", "NVIDIA GH200 480GB", "H200", "; NVIDIA GH200 480GB is of the same architecture and similar size"),
        ("A100", "NVIDIA A100-SXM4-80GB", "A100", "tuned on A100 (emulated) at x f32[1000], nearest to this call"),
        ("L4", "NVIDIA H200", "H200", "first choices: tuned only for L4 (sm_89); this is NVIDIA H200 (sm_90)"),
    ],
)
def test_what_was_tuned_without_a_gpu_is_used_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuned_on: str, name: str, like: str, why: str
) -> None:
    """The GPU as its driver names it stands in for one that is here: it is emulated, and named so."""
    monkeypatch.setattr(call_devices, "_local_profile", lambda: replace(PROFILES[like], name=name))
    path = tmp_path / "k.cu"
    path.write_text(plans.TWICE)
    arguments = {"x": TensorSpec.parse("1000:f32")}
    choice = (("THREADS", 128),)
    tuned = TunedChoices().with_choice(parse(plans.TWICE), PROFILES[tuned_on], arguments, choice, emulated=True)
    tuned_path(path).write_text(json.dumps(to_json(tuned)))
    operation = load(path)
    x = torch.arange(200.0)
    assert torch.equal(operation(x), 2 * x)
    explanation = operation.explain(x, device="cpu")
    width = 256 if why.startswith("first") else 128
    assert explanation.choice == (("THREADS", width),)
    assert explanation.why_choice.endswith(why)
    assert f"choice     THREADS = {width}: {explanation.why_choice}" in str(explanation)


def test_records_of_before_take_effect(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(plans.TWICE)
    entry = {"file": parse(plans.TWICE).identity, "gpu": "H200", "choice": [["THREADS", 128]]}
    entry["tensors"] = [{"name": "x", "dtype": "f32", "shape": [1000]}]
    tuned_path(path).write_text(json.dumps({"entries": [entry]}))
    explanation = load(path).explain("1000:f32", gpu=replace(PROFILES["H200"], name="NVIDIA H200"))
    assert explanation.choice == (("THREADS", 128),)
    assert explanation.why_choice == "tuned on H200 at x f32[1000], as in this call"


def test_a_file_that_does_not_build_says_where(make: Make) -> None:
    broken = make(plans.TWICE.replace("x[i] + x[i]", "x[i] + undeclared"))
    with pytest.raises(BuildFailed, match=r"k0\.cu:9:\d*.*undeclared") as caught:
        broken.explain("10:f32", gpu="H200")
    assert caught.value.failure.diagnostics


def test_library_steps_can_be_forbidden(make: Make) -> None:
    with pytest.raises(KernelFileError, match="library"):
        make(plans.LIBRARY, allow_library=False)


def test_a_reference_with_arguments_by_name_alone(make: Make) -> None:
    def scaled(x: torch.Tensor, *, factor: float = 2.0, shift: int = 0) -> torch.Tensor:
        return x * (2.0 * factor) + shift

    scale, x = make(plans.SCALE, reference=scaled), torch.randn(4, 6)
    with pytest.warns(ReferenceUsed, match=r"x\.dtype = f64"):
        assert torch.equal(scale(x.double(), 3.0, shift=1), x.double() * 6 + 1)
    leaf = x.clone().requires_grad_()
    with pytest.warns(ReferenceUsed, match="no backward kernel"):
        scale(leaf, 3.0, 1).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.full_like(x, 6.0))


def test_a_reference_that_answers_by_name_is_put_as_a_kernel_answers(make: Make) -> None:
    operation = make(plans.TWO_RESULTS, reference=lambda x: {"low": x.amin(1), "high": x.amax(1)})
    x = torch.randn(3, 5)
    with pytest.warns(ReferenceUsed):
        low, high = operation(x.double())
    assert torch.equal(low, x.double().amin(1))
    assert torch.equal(high, x.double().amax(1))
