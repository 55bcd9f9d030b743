"""`tilewright build` on files that launch nothing (there is a plan to show, nothing to compile), and on tuned ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.frontends.in_process import tilewright
from tests.runtime import plans
from tests.tasks.in_process import HereReference

from tilewright.kernel_file import TunedChoices, parse
from tilewright.records import TensorSpec, to_json, tuned_path

PRODUCT = """\
//! op      product(x, w) -> y
//! out     y: x.dtype[x.shape[0], w.shape[1]]
//! library y = aten.mm(x, w)
"""
SHAPES = ("--shape", "x=3x4:f32", "--shape", "w=4x5:f32")


@pytest.fixture
def product(tmp_path: Path) -> Path:
    path = tmp_path / "product.cu"
    path.write_text(PRODUCT)
    return path


def test_a_file_of_library_steps_alone_is_shown(product: Path, tmp_path: Path) -> None:
    done = tilewright(tmp_path, "build", product, *SHAPES, "--gpu", "H200", "--sass", "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "H200: constants none; out y: f32[3, 5]; library aten.mm; nothing to launch" in done.stdout
    assert "registers" not in done.stdout
    assert list((tmp_path / "out").iterdir()) == []


def test_its_report_says_that_nothing_was_compiled(product: Path, tmp_path: Path) -> None:
    done = tilewright(tmp_path, "build", product, *SHAPES, "--gpu", "H200", "--json")
    assert done.returncode == 0
    (target,) = json.loads(done.stdout)["targets"]
    assert (target["launches"], target["library_calls"], target["compiled"]) == ([], ["aten.mm"], None)


def test_a_file_of_library_steps_alone_is_checked(
    product: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.frontends.cli.check.Reference", HereReference)
    (tmp_path / "reference.py").write_text("def product(x, w):\n    return x @ w\n")
    reference = f"{tmp_path / 'reference.py'}:product"
    done = tilewright(tmp_path, "check", product, *SHAPES, "--reference", reference)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the results agree with the reference" in done.stdout


def test_a_build_goes_by_what_was_tuned_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(plans.TWICE)
    arguments = {"x": TensorSpec.parse("1000:f32")}
    file = parse(plans.TWICE)
    tuned = TunedChoices().with_choice(file, "NVIDIA H200", arguments, (("THREADS", 128),))
    tuned_path(path).write_text(json.dumps(to_json(tuned)))
    done = tilewright(tmp_path, "build", path, "--shape", "x=4096:f32", "--gpu", "H200", "--gpu", "L4")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "THREADS = 128 (tuned on NVIDIA H200 at x f32[1000], nearest to this call)" in said
    assert "THREADS = 256 (first choices: tuned only for NVIDIA H200 (sm_90); this is L4 (sm_89))" in said
    tuned_path(path).write_text("{")
    done = tilewright(tmp_path, "build", path, "--shape", "x=4096:f32")
    assert (done.returncode, "delete it to tune again" in done.stderr) == (2, True)
