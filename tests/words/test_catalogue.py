"""Every entry of the catalogue is a reference that runs, and the phrase that asks for it is read as it."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import torch

from tilewright.words import NotUnderstood, SeveralReadings, nearest, read, reference
from tilewright.words.catalogue import operations
from tilewright.words.formulas import read_formula

_DTYPES = {"i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool}
_UNSAYABLE = 20  # entries at most whose own phrase names another one too
NAMES = sorted(operations())


def _small(described: dict[str, Any]) -> dict[str, int]:
    """Sizes that are quick and keep what sizes must be."""
    found: dict[str, int] = {}
    for name, one in described["dimensions"].items():
        if isinstance(one, dict):
            found[name] = one["multiple_of"] * 2
        elif isinstance(one, int):
            wide = name in ("cols", "classes", "d", "features", "experts", "elements")
            found[name] = {True: 64, False: 4 if name in ("batch", "kv_heads") else 8}[wide] if one > 1 else one
    for name in ("height", "width", "length", "depth"):
        if name in found and not isinstance(described["dimensions"][name], dict):
            found[name] = 16
    for name, one in described["dimensions"].items():
        if isinstance(one, str):
            found[name] = eval(one.replace("/", "//"), {}, dict(found))
    return found


def _tensor(text: str, values: str, sizes: dict[str, int]) -> torch.Tensor:
    dtype, _, inside = text.rstrip("]").partition("[")
    shape = [sizes[one] if one in sizes else int(one) for one in inside.split(", ") if one]
    if dtype.startswith("f8"):
        return torch.rand(shape).to(torch.float8_e4m3fn)
    if dtype in _DTYPES:
        high = sizes.get(values.removeprefix("index "), 2)
        return torch.randint(0, high, shape).to(_DTYPES[dtype])
    return torch.rand(shape) * 0.5 + 0.25


@pytest.mark.parametrize("part", range(8))
def test_references_run_and_give_finite_numbers(part: int) -> None:
    torch.manual_seed(0)
    for name in NAMES[part::8]:
        made = reference(name)
        described = tomllib.loads(made.description)
        sizes = _small(described)
        values = described.get("values", {})
        inputs = {
            key: _tensor(one, values.get(key, ""), sizes) if isinstance(one, str) else one
            for key, one in described["inputs"].items()
        }
        scope: dict[str, Any] = {}
        exec(made.reference, scope)
        result = scope[described["function"]](**inputs)
        for one in result if isinstance(result, tuple) else (result,):
            if one.is_floating_point():
                whole = one.float()
                assert torch.isfinite(whole[~torch.isinf(whole)]).all(), name
        assert made.assumptions, name


def test_the_phrase_of_an_entry_is_read_as_it() -> None:
    others = []
    for name in NAMES:
        ask = operations()[name].request
        try:
            made = read(ask, {})
        except SeveralReadings as several:
            others.append(name) if all(one.request != ask for one in several.readings) else None
            continue
        except NotUnderstood as problem:
            others.append(f"{name}: {problem}")
            continue
        title = operations()[name].title or name
        if tomllib.loads(made.description)["name"].removesuffix("_op") != title and read_formula(ask) is None:
            others.append(f"{name}: read as {tomllib.loads(made.description)['name']}")
    assert len(others) <= _UNSAYABLE, "\n".join(others)


@pytest.mark.parametrize(
    ("words", "name"),
    [("soft max of logits", "softmax"), ("quantize my weights to 8 bit per row", "quantise_int8"), ("rope", "rotary")],
)
def test_the_nearest_entry_shares_words(words: str, name: str) -> None:
    assert name in {one.name for one in nearest(words)}


@pytest.mark.parametrize(
    "words", ["please summarise this webpage", "make my training loop converge in half the steps", "write me a poem"]
)
def test_nothing_is_near_that_shares_no_meaning(words: str) -> None:
    assert nearest(words) == ()
