"""Requests in a stranger's own words: read right, or refused; and no word of them is dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from benchmarks.read_requests import judged

from tilewright.words import NotUnderstood, SeveralReadings, read

LISTED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "requests.json").read_text(encoding="utf-8"))
_FLOORS = {"first": 70, "second": 20}  # read right, of 90 and 80
_ASIDES = ("frobnicated", "quixotic", "wibble", "zorgly")
_OPERATIVE = ("except", "unless", "not", "softmax", "37", "0.37", "transposed", "dilated")


def _with(word: str, count: int) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Requests that are read though a word was put into them, and what is assumed of them."""
    random = Random(word)
    for _ in range(count):
        one = random.choice(LISTED)
        parts = one["words"].split()
        parts.insert(random.randint(0, len(parts)), word)
        try:
            yield " ".join(parts), one, read(" ".join(parts), one["shapes"]).assumptions
        except NotUnderstood:
            continue


@pytest.mark.parametrize("name", _FLOORS)
def test_many_are_read_right_and_none_wrong(name: str) -> None:
    found = [judged(one)[0] for one in LISTED if one["list"] == name]
    assert "WRONG" not in found
    assert found.count("right") >= _FLOORS[name]


@pytest.mark.parametrize("word", _ASIDES)
def test_a_word_that_says_nothing_is_said_to_be_not_used(word: str) -> None:
    found = list(_with(word, 25))
    assert found
    for words, _, assumed in found:
        assert any(word in one for one in assumed), words


@pytest.mark.parametrize("word", _OPERATIVE)
def test_a_word_that_may_say_something_is_never_dropped_in_silence(word: str) -> None:
    for words, one, assumed in _with(word, 25):
        try:
            before = read(one["words"], one["shapes"])
        except NotUnderstood:
            continue
        after = read(words, one["shapes"])
        assert (after.reference, after.description) != (before.reference, before.description) or word in " ".join(
            assumed
        ), words


@pytest.mark.parametrize(
    ("words", "requests"),
    [
        ("fast gelu", {"tanh gelu", "quick gelu"}),
        (
            "mean pool",
            {"masked mean pooling over the sequence", "sequence mean pooling", "average pool layer"},
        ),
        ("masked softmax", {"softmax with a boolean mask", "softmax with an additive mask", "causal softmax"}),
    ],
)
def test_several_readings_are_offered(words: str, requests: set[str]) -> None:
    with pytest.raises(SeveralReadings) as caught:
        read(words, {})
    assert {one.request for one in caught.value.readings} <= requests
    assert len(caught.value.readings) >= 2
    assert all(one.means for one in caught.value.readings)


@pytest.mark.parametrize(
    "words",
    [
        "fuse residual add with rmsnorm",
        "I need a fast kernel for RMSNorm after the residual add",
        "residual + rmsnorm, fused",
        "fused add rmsnorm please",
    ],
)
def test_a_request_may_be_said_in_many_ways(words: str) -> None:
    assert "F.rms_norm(x + residual" in read(words, {}).reference or "y = x + residual" in read(words, {}).reference


def test_names_of_given_shapes_are_used() -> None:
    made = read("causal attention", {"q": "1x2x8x16:f32", "k": "1x2x8x16:f32", "v": "1x2x8x16:f32"})
    assert "def causal_attention(q, k, v)" in made.reference
    made = read("matmul with bias", {"p": "8x16:f32", "r": "16x4:f32"})
    assert "p is the a" in made.assumptions


def test_a_reading_that_is_offered_is_what_its_phrase_gets() -> None:
    with pytest.raises(SeveralReadings) as several:
        read("fast gelu", {})
    codes = [read(one.request, {}).reference for one in several.value.readings[:3]]
    assert len(set(codes)) == len(codes)
    assert 'approximate="tanh"' in codes[0]
    assert "tanh" in several.value.readings[0].means


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("flip time, x is (B,T,C)", "(1,)"),
        ("standardise columns, population std", "dim=0"),
        ("sobel gradient magnitude, replicate padding", 'mode="replicate"'),
        ("5-point laplacian, periodic boundaries", "torch.roll"),
        ("soft threshold, lambda .1", "0.1"),
        ("label smoothed CE, eps 0.1", "label_smoothing=0.1"),
        ("layernorm then silu, no affine", "None, None"),
    ],
)
def test_what_was_said_of_dimensions_borders_and_numbers_is_used(words: str, code: str) -> None:
    assert code in read(words, {}).reference


@pytest.mark.parametrize("words", ["RMSNorm of x plus residual", "softmax channels last", "make my kernel 2x faster"])
def test_what_is_not_used_is_refused(words: str) -> None:
    with pytest.raises(NotUnderstood):
        read(words, {})
