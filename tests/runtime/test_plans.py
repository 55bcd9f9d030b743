"""Every plan the GPU tests run parses, evaluates, builds and binds on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.plans import SAMPLES, Sample

from tilewright.kernel_file import Dispatcher, Selected
from tilewright.records import PROFILES, Build, PackedLaunch
from tilewright.runtime import load
from tilewright.runtime.specs import abstract_arguments
from tilewright.toolchain import bind_plan, build


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_it_binds_for_an_h200(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(sample.text)
    operation = load(tmp_path / "k.cu")
    explanation = operation.explain(*sample.arguments, gpu="H200")
    assert explanation.file is not None, str(explanation)
    dispatcher = Dispatcher(operation.files, PROFILES["H200"])
    selected = dispatcher.select(abstract_arguments(operation.signature, dispatcher.deciding, sample.arguments, {}))
    assert isinstance(selected, Selected)
    request = selected.evaluation.build_request()
    assert request is not None
    built = build(request, isolated=False)
    assert isinstance(built, Build)
    assert any(isinstance(step, PackedLaunch) for step in bind_plan(selected.evaluation, built).steps)
