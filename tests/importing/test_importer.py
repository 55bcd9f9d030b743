"""Whole imports: host code run in its child, plans fitted, device code built, results compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.importing.examples import ACTIVATION, MACRO, MODEL, ROWS, SCALE
from typer.testing import CliRunner

from tilewright.frontends.cli.main import app
from tilewright.importing.calls import CallArgument
from tilewright.importing.importer import Imported, import_launcher
from tilewright.importing.recording import HostChild
from tilewright.importing.sources import ImportProblem, read_source
from tilewright.records import PROFILES

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def imported(text: str, function: str, said: dict[str, CallArgument] | None = None) -> Imported:
    with HostChild() as child:
        return import_launcher(read_source("k.cu", text, None), function, said or {}, child, PROFILES["H200"])


def plan_of(made: Imported) -> list[str]:
    return [line.removeprefix("//! ").rstrip() for line in made.text.splitlines() if line.startswith("//!")]


def test_a_torch_extension() -> None:
    made = imported(SCALE, "scale")
    assert not made.pinned
    assert plan_of(made) == [
        "op      scale(x, factor: float) -> out",
        "need    x.dtype == f32 and x.ndim == 2",
        "let     n = x.numel",
        "out     out: f32[x.shape[0], x.shape[1]]",
        "launch  scale_kernel<f32><<<min(ceil_div(n, 256), 1024), 256>>>(x, out, factor, n)",
    ]
    (told,) = made.notes[:1]
    assert told.startswith("takes f32 of 2 dimensions, as it was tried; the source takes other dtypes and numbers of")
    assert "--shape x=16384:f16" in told


def test_what_the_source_takes_alone_is_not_told_as_left_out() -> None:
    plain = SCALE.replace("x.numel()", "x.size(0) * x.size(1)").replace("AT_DISPATCH_FLOATING_TYPES", "FOR_F32")
    plain = plain.replace(
        "torch::Tensor scale", "#define FOR_F32(t, n, f) { using scalar_t = float; f(); }\ntorch::Tensor scale"
    )
    assert not any("as it was tried" in note for note in imported(plain, "scale").notes)


@pytest.mark.slow
def test_sizes_that_the_original_refuses_and_the_file_does_not_are_told() -> None:
    odd = 'TORCH_CHECK(x.size(0) * 7 % 11 != x.size(1) % 5, "not these");\n  auto y ='
    made = imported(SCALE.replace("auto y =", odd), "scale")
    (told,) = [note for note in made.notes if "refuses to run at some sizes" in note]
    assert "such as x = " in told


@pytest.mark.slow
def test_a_plain_launcher_with_a_null_pointer() -> None:
    made = imported(ROWS, "rows")
    assert plan_of(made) == [
        "op      rows(out!, in_, N: int, C: int, block_size: int)",
        "need    out.dtype == f32",
        "need    in_.dtype == f32",
        "launch  row_sum<<<ceil_div(N, block_size), block_size>>>(out, in_, none, N, C)",
    ]


@pytest.mark.slow
def test_launchers_made_by_a_macro_and_two_regimes() -> None:
    made = imported(MACRO, "relu_f32")
    assert not made.pinned
    assert "x.shape[1] if x.shape[1] <= 1024 else 256" in made.text
    assert "op      relu_f32(x, y!)" in made.text  # x is no const pointer, and only read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("auto y = torch::empty_like(x);", "auto y = torch::relu(x);"), r"k\.cu:\d+: .*relu"),
        (("float factor, uint n) {", "float factor, uint n) { printf(\"x\");"), r"k\.cu:\d+: .*printf"),
        (("const int n = x.numel();", "const int n = x.data_ptr<float>()[0];"), "the launcher died"),
        (("return y;", "return y.transpose(0, 1);"), "strided view"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_construct(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ImportProblem, match=said):
        imported(SCALE.replace(*change), "scale")


@pytest.mark.slow
def test_a_model_is_compared_with_what_it_replaces(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    done = CliRunner().invoke(app, ["import", str(file), "-o", str(tmp_path / "out"), "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    (one,) = report["imported"]
    assert (one["check"], one["compared"], report["refused"]) == ("clean", True, [])
    assert "ceil_div(x.numel, 128)" in Path(one["file"]).read_text()
    file.write_text(MODEL.replace("x[i] + bias[i % columns]", "x[i] - bias[i % columns]"))
    done = CliRunner().invoke(app, ["import", str(file), "-o", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["imported"][0]["check"] == "wrong"


@pytest.mark.slow
def test_the_stable_abi_and_functions_as_template_arguments() -> None:
    made = imported(ACTIVATION, "doubled")
    assert not made.pinned
    assert plan_of(made)[-2:] == [
        "let     n = out.numel",
        "launch  act::apply_as_launched<f32, (n % 4 == 0)><<<ceil_div(n, 256), 256>>>(out, in_, n)",
    ]
    entry = "__global__ void __launch_bounds__(256) apply_as_launched("
    assert made.text.count("__global__") == 1
    assert entry in made.text
    assert "apply<scalar_t, float2, act::twice<float>, WIDE>(out, in, n);" in made.text
    assert "Pair" not in made.text  # the host's own; that it has torch's and CUDA's half, one type here, did no harm


@pytest.mark.slow
def test_plain_pointers_become_tensors(tmp_path: Path) -> None:
    (tmp_path / "rows.cu").write_text(ROWS)
    (tmp_path / "reference.py").write_text("def rows(out, in_, block_size):\n    return in_.sum(-1)\n")
    asked = ["import", str(tmp_path / "rows.cu"), "-o", str(tmp_path / "k.cu"), "--json"]
    done = CliRunner().invoke(app, [*asked, "--reference", f"{tmp_path / 'reference.py'}:rows"])
    (one,) = json.loads(done.stdout)["imported"]
    assert (one["op"], one["check"], one["compared"]) == ("rows(out!, in_, block_size: int)", "clean", True)
    plan = [line for line in (tmp_path / "k.cu").read_text().splitlines() if line.startswith("//!")]
    assert "//! let     N = out.shape[0], C = in_.shape[1]" in plan
    assert "//! need    in_.shape[0] == N" in plan


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for what, said in (("missing.cu", "no such file"), ("empty", "no .cu file"), (".", "no .cu file")):
        done = CliRunner().invoke(app, ["import", str(tmp_path / what)])
        assert said in str(done.exception)
