"""A Hub project is valid for `kernels` and loaded by it, both variants, without a GPU and without a network."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tilewright.exports.cuda_project import Target, export
from tilewright.exports.source import Source
from tilewright.exports.writing import NotExportable

os.environ.setdefault("HF_HUB_OFFLINE", "1")
kernels = pytest.importorskip("kernels")


@pytest.fixture(scope="module")
def project(small_source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "row-scale"
    export(small_source, Target.HUB, folder, "row_scale", repository="somebody/row-scale")
    return folder


def test_it_is_valid_for_kernel_builder(project: Path) -> None:
    from kernels._rust import Build, Digest, DigestAlgorithm, Metadata

    Build.open(project)
    assert (project / "torch-ext" / "row_scale" / "__init__.py").is_file()
    assert not (project / "torch-ext" / "row_scale" / "_ops.py").exists()  # kernel-builder writes it
    for backend in ("cuda", "cpu"):
        variant = project / "build" / f"torch-{backend}"
        metadata = Metadata.read_from_file(variant / "metadata.json")
        assert (str(metadata.name), metadata.version, metadata.license) == ("row-scale", 1, "NOASSERTION")
        assert metadata.id.startswith(f"_row_scale_{backend}_")
        assert metadata.id.isidentifier()
        stated = json.loads((variant / "metadata.json").read_text())["digest"]["files"]
        assert stated == Digest.hash_variant(DigestAlgorithm.SHA256, variant).files


@pytest.mark.parametrize("backend", [None, "cpu"])
def test_it_loads_and_computes(project: Path, backend: str | None) -> None:
    """By itself `kernels` takes the variant that torch is built for, whether or not there is a GPU."""
    kernel = kernels.get_local_kernel(project, backend=backend)
    _check_on_cpu(kernel)
    assert kernel.__all__ == ["row_scale"]
    cuda = backend is None and torch.version.cuda is not None
    assert (kernel._op._native is not None) == cuda  # the CPU variant is the reference


def test_the_gpu_variant_computes_without_a_gpu(project: Path) -> None:
    """What a person has with torch for CUDA where no GPU is: CPU tensors run the reference there too."""
    kernel = kernels.get_local_kernel(project / "build" / "torch-cuda")
    assert kernel._op._native is not None
    _check_on_cpu(kernel)


def _check_on_cpu(kernel: ModuleType) -> None:
    x, weight = torch.randn(5, 64), torch.randn(64)
    wanted = torch.rsqrt(x.square().mean(-1) + 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled, factors = kernel.row_scale(x, weight)
    assert torch.allclose(scaled, x * wanted[:, None] * weight, atol=1e-6)
    assert torch.allclose(factors, wanted, atol=1e-6)


def test_the_card_says_what_it_is(project: Path) -> None:
    card = (project / "CARD.md").read_text()
    assert card.startswith("---\nlibrary_name: kernels\n")
    assert "This kernel is not verified: no run has judged this file." in card
    assert "No measurement is on record." in card
    assert "tensors on the CPU run the reference in that variant too" in card
    assert 'get_kernel("somebody/row-scale", version=1' in card


@pytest.mark.parametrize(
    ("name", "layer", "reason"),
    [
        ("../elsewhere", "", "not a name for a package"),
        ("/etc/passwd", "", "not a name for a package"),
        ("lambda", "", "taken by Python"),
        ("torch", "", "taken by Python"),
        ("x", "", "no name for the Hub"),
        ("row_scale", "RMSNorm", "not that layer's"),
        ("row_scale", "Nonsense", "write one of RMSNorm"),
    ],
)
def test_names_that_will_not_do(small_source: Source, tmp_path: Path, name: str, layer: str, reason: str) -> None:
    with pytest.raises(NotExportable, match=reason):
        export(small_source, Target.HUB, tmp_path / "out", name, layer=layer)
    assert not (tmp_path / "out").exists()
