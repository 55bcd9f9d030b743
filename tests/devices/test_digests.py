"""Digests tell answers apart to the bit, wherever the tensors lie, and say how far they are apart."""

from __future__ import annotations

import pytest
import torch

from tilewright.devices import job_memory
from tilewright.devices.job_memory import digest_of

SIZES = (1, 7, 8, 1000, 4096, 12_345)


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces of even a small tensor."""
    monkeypatch.setattr(job_memory, "_AT_ONCE", 512)
    job_memory._weights.cache_clear()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64])
def test_one_changed_element_changes_the_bits(size: int, dtype: torch.dtype) -> None:
    first = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(size)).to(dtype)
    assert digest_of([first]) == digest_of([first.clone()])
    for place in {0, size // 2, size - 1}:
        other = first.clone()
        other[place] = 1 - first[place].to(torch.int64)
        assert digest_of([other]).bits != digest_of([first]).bits
    if size > 8:
        assert digest_of([first.roll(1)]).bits != digest_of([first]).bits


def test_pieces_that_change_places_are_seen() -> None:
    first = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    swapped = torch.cat((first[2048:], first[:2048]))
    assert digest_of([first]).bits != digest_of([swapped]).bits
    assert digest_of([first, swapped]).bits != digest_of([swapped, first]).bits


def test_only_elements_count_not_where_they_lie() -> None:
    whole = torch.randn(37, 50, generator=torch.Generator().manual_seed(2))
    padded = torch.full((37, 64), torch.nan)[:, :50].copy_(whole)
    raw = torch.empty(whole.numel() * 4 + 4, dtype=torch.uint8)
    misaligned = raw[4:].view(torch.float32).view(37, 50).copy_(whole)
    transposed = whole.t().contiguous().t()
    assert len({digest_of([one]).bits for one in (whole, padded, misaligned, transposed)}) == 1


def test_signs_of_zero_and_payloads_of_nan_are_bits() -> None:
    zeros = torch.zeros(16)
    assert digest_of([zeros]).bits != digest_of([-zeros]).bits


def test_near_is_a_fraction_of_the_size() -> None:
    first = torch.randn(5000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    noise = torch.randn(5000, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    digest = digest_of([first])
    assert digest_of([first + 1e-6 * noise], digest).is_near(digest, 1e-3)
    assert not digest_of([first.where(torch.arange(5000) < 4000, 0.0)], digest).is_near(digest, 1e-3)
    missing = first.clone()
    missing[17] = torch.nan
    assert not digest_of([missing], digest).is_near(digest, 1e-3)
    assert digest_of([first.clone()], digest) is digest


def test_an_empty_tensor_has_one() -> None:
    assert digest_of([torch.empty(0, 4)]) == digest_of([torch.empty(0, 4)])
