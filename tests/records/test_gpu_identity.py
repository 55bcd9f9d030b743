"""Which GPU it is by the names that profiles and drivers give."""

from __future__ import annotations

import pytest

from tilewright.records import PROFILES, GpuIdentity, GpuLikeness, product_of

SAME, SIMILAR, RELATED = GpuLikeness.SAME, GpuLikeness.SIMILAR, GpuLikeness.RELATED


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("H200", "h200"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA H200 Tensor Core GPU", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("A100-PCIE-40GB", "a100"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla T4", "t4"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GeForce RTX 4090", "rtx 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx 4090 laptop"),
        ("NVIDIA GeForce RTX 4090 D", "rtx 4090 d"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "h100 mig 3g.40gb"),
        ("NVIDIA", "nvidia"),
    ],
)
def test_a_name_is_reduced_to_the_product(name: str, product: str) -> None:
    assert product_of(name) == product


def test_every_profile_is_a_product_of_its_own() -> None:
    assert len({product_of(name) for name in PROFILES}) == len(PROFILES)
    assert all(GpuIdentity.named(one.name) == GpuIdentity.of(one) for one in PROFILES.values())


@pytest.mark.parametrize(
    ("one", "other", "likeness"),
    [
        (("H200", 0, 0), ("NVIDIA H200", 90, 132), SAME),
        (("H200", 0, 0), ("NVIDIA H200 NVL", 90, 132), SAME),
        (("H200", 0, 0), ("NVIDIA GH200 480GB", 90, 132), SIMILAR),
        (("H200", 0, 0), ("NVIDIA H100 80GB HBM3", 90, 132), SIMILAR),
        (("H100", 0, 0), ("NVIDIA H100 PCIe", 90, 114), SIMILAR),
        (("H100", 0, 0), ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 90, 60), RELATED),
        (("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 0, 0), ("NVIDIA H100 80GB HBM3", 90, 132), RELATED),
        (("A100", 0, 0), ("NVIDIA A100-SXM4-80GB", 80, 108), SAME),
        (("RTX 4090", 0, 0), ("NVIDIA GeForce RTX 4090", 89, 128), SAME),
        (("RTX 4090", 0, 0), ("NVIDIA GeForce RTX 4090 Laptop GPU", 89, 76), RELATED),
        (("L4", 0, 0), ("NVIDIA H200", 90, 132), None),
        (("A100", 0, 0), ("NVIDIA A10G", 86, 80), None),
        (("NVIDIA GH200 480GB", 0, 0), ("NVIDIA GH200 480GB", 90, 132), SAME),  # by its name alone, as records were
        (("NVIDIA GH200 480GB", 0, 0), ("NVIDIA H200", 90, 132), None),
        (("NVIDIA GH200 480GB", 90, 0), ("NVIDIA H200", 90, 132), RELATED),
        (("GPU of tomorrow", 0, 0), ("GPU of the day after", 0, 0), None),
    ],
)
def test_how_alike_two_gpus_are(
    one: tuple[str, int, int], other: tuple[str, int, int], likeness: GpuLikeness | None
) -> None:
    assert GpuIdentity.named(*one).likeness(GpuIdentity.named(*other)) is likeness
    assert GpuIdentity.named(*other).likeness(GpuIdentity.named(*one)) is likeness
