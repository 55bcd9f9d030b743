"""One small op exported as a torch package, once for all tests: building its launch path takes seconds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.exports.small_op import KERNEL, REFERENCE

from tilewright.exports.cuda_project import Target, export
from tilewright.exports.source import Reference, Source, from_files
from tilewright.records import DType, TensorSpec


def spec(*shape: int) -> TensorSpec:
    return TensorSpec.contiguous(DType.F32, shape)


@pytest.fixture(scope="session")
def small_source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("source") / "row_scale.cu"
    path.write_text(KERNEL)
    calls: list[dict[str, Any]] = [
        {"x": spec(64, 256), "weight": spec(256)},
        {"x": spec(8, 1024), "weight": spec(1024)},
    ]
    return replace(from_files([path]), calls=tuple(calls), reference=Reference(REFERENCE, "row_scale"))


@pytest.fixture(scope="session")
def torch_folder(small_source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch") / "out"
    export(small_source, Target.TORCH, folder, "exported_row_scale")
    return folder


@pytest.fixture(scope="session")
def package(torch_folder: Path) -> Iterator[ModuleType]:
    sys.path.insert(0, str(torch_folder))
    try:
        yield importlib.import_module("exported_row_scale")
    finally:
        sys.path.remove(str(torch_folder))
