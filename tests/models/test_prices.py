from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import tilewright.models.prices as prices_module
from tilewright.models import BadPriceTable, Price
from tilewright.models.prices import NOTHING, find_price
from tilewright.records import Usage


def test_every_kind_of_token_has_its_price() -> None:
    price = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
    assert price.dollars(Usage(1_000_000, 0, 0, 0)) == 3.0
    assert price.dollars(Usage(0, 1_000_000, 0, 0)) == 15.0
    assert price.dollars(Usage(0, 0, 1_000_000, 0)) == 0.3
    assert price.dollars(Usage(0, 0, 0, 1_000_000)) == 3.75
    assert price.dollars(Usage(1000, 2000, 3000, 4000)) == pytest.approx((3000 + 30000 + 900 + 15000) / 1e6)
    assert NOTHING.dollars(Usage(1, 2, 3, 4)) == 0.0


def test_the_shipped_table_is_whole() -> None:
    table = tomllib.loads(Path(prices_module.__file__).with_name("prices.toml").read_text())
    assert set(table) == {"anthropic", "openai"}
    for provider, rows in table.items():
        for model in rows:
            price = find_price(provider, model, {})
            assert price is not None
            assert 0 < price.cache_read < price.input < price.output
            assert price.input <= price.cache_write < 2 * price.input


@pytest.mark.parametrize(
    ("model", "same_as"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-latest", "claude-sonnet-4-5"),
        ("claude-opus-5-5", "claude-opus-5-5"),
    ],
)
def test_a_snapshot_costs_what_its_model_costs(model: str, same_as: str) -> None:
    assert find_price("anthropic", model, {}) == find_price("anthropic", same_as, {}) is not None


@pytest.mark.parametrize("model", ["claude-opus-5-7", "claude-opus-6", "claude", "gpt-4.1", "claude-sonnet-5-turbo"])
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert find_price("anthropic", model, {}) is None


def test_a_dated_name_of_openai() -> None:
    assert find_price("openai", "gpt-4.1-2025-04-14", {}) == Price(2.0, 8.0, 0.5, 2.0)
    assert find_price("openai", "gpt-4.1-mini", {}) == Price(0.4, 1.6, 0.1, 0.4)
    assert find_price("hf", "gpt-4.1", {}) is None


def test_ones_own_table_comes_first(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(
        '[openai]\n"gpt-4.1" = {input = 1, output = 2}\n"qwen*" = {input = 0.0, output = 0.0}\n'
        '"qwen3-coder*" = {input = 0.5, output = 0.75, cache_read = 0.1, cache_write = 0.2}\n'
    )
    environ = {"TILEWRIGHT_PRICES": str(own)}
    assert find_price("openai", "gpt-4.1", environ) == Price(1.0, 2.0, 1.0, 1.0)
    assert find_price("openai", "gpt-4.1-mini", environ) == Price(0.4, 1.6, 0.1, 0.4)
    assert find_price("openai", "qwen2", environ) == NOTHING
    assert find_price("openai", "qwen3-coder-30b", environ) == Price(0.5, 0.75, 0.1, 0.2)


def test_the_table_in_the_home_directory(tmp_path: Path) -> None:
    usual = tmp_path / ".config" / "tilewright" / "prices.toml"
    assert find_price("hf", "a/b", {"HOME": str(tmp_path)}) is None
    usual.parent.mkdir(parents=True)
    usual.write_text('[hf]\n"a/b" = {input = 1.0, output = 3.0}\n')
    assert find_price("hf", "a/b", {"HOME": str(tmp_path)}) == Price(1.0, 3.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "[openai\n",
        "openai = 3\n",
        '[openai]\n"m" = 3\n',
        '[openai]\n"m" = {input = 3}\n',
        '[openai]\n"m" = {input = 3, output = "much"}\n',
        '[openai]\n"m" = {input = -3, output = 4}\n',
        '[openai]\n"m" = {input = 3, output = 4, cached = 5}\n',
        '[openai]\n"m" = {input = true, output = 4}\n',
        '[openai]\n"m" = {input = nan, output = 4}\n',
        '[openai]\n"m" = {input = inf, output = 4}\n',
    ],
)
def test_a_bad_table_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(BadPriceTable, match=r"p\.toml"):
        find_price("openai", "m", {"TILEWRIGHT_PRICES": str(tmp_path / "p.toml")})


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadPriceTable, match="cannot be read"):
        find_price("openai", "m", {"TILEWRIGHT_PRICES": str(tmp_path / "nowhere.toml")})
