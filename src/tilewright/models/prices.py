"""What a model's tokens cost. The table is data (`prices.toml`); a person's own table comes before it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.models.protocol import BadPriceTable
from tilewright.records import Usage

_SHIPPED = Path(__file__).with_name("prices.toml")
# What may follow a listed name and still be the same model: a date or `latest`. Anything else is another model.
_SNAPSHOT = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)")


@dataclass(frozen=True)
class Price:
    """Dollars per million tokens. Cached tokens cost what plain input costs unless the table says otherwise."""

    input: float
    output: float
    cache_read: float
    cache_write: float

    def dollars(self, usage: Usage) -> float:
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * self.cache_read
            + usage.cache_write_tokens * self.cache_write
        ) / 1_000_000


NOTHING = Price(0.0, 0.0, 0.0, 0.0)


def find_price(provider: str, model: str, environ: Mapping[str, str]) -> Price | None:
    """The price of a model, None where no table names it."""
    own = _own_table(environ)
    for path in (own, _SHIPPED) if own else (_SHIPPED,):
        if (price := _look_up(path, provider, model)) is not None:
            return price
    return None


def _own_table(environ: Mapping[str, str]) -> Path | None:
    if named := environ.get("TILEWRIGHT_PRICES"):
        return Path(named).expanduser()
    home = environ.get("HOME")
    usual = Path(home) / ".config" / "tilewright" / "prices.toml" if home else None
    return usual if usual and usual.is_file() else None


def _look_up(path: Path, provider: str, model: str) -> Price | None:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadPriceTable(f"the price table {path} cannot be read ({error}); correct it or unset it") from None
    rows = table.get(provider, {})
    if not isinstance(rows, dict):
        raise BadPriceTable(f"{path}: [{provider}] must be a table of models")
    names = sorted((name for name in rows if _names(name, model)), key=len, reverse=True)
    return _price(path, names[0], rows[names[0]]) if names else None


def _names(listed: str, model: str) -> bool:
    if listed.endswith("*"):
        return model.startswith(listed[:-1])
    return model == listed or (model.startswith(listed) and _SNAPSHOT.fullmatch(model.removeprefix(listed)) is not None)


def _price(path: Path, name: str, row: object) -> Price:
    known = {"input", "output", "cache_read", "cache_write"}
    if not isinstance(row, dict) or not {"input", "output"} <= row.keys() <= known:
        raise BadPriceTable(
            f'{path}: "{name}" must be like {{input = 3.0, output = 15.0, cache_read = 0.3, cache_write = 3.75}}, '
            "the last two optional"
        )
    # By type, since a bool is an int; the upper bound refuses what is infinite or not a number.
    numbers = {key: value for key, value in row.items() if type(value) in (int, float) and 0 <= value < 1e6}
    if len(numbers) != len(row):
        raise BadPriceTable(f'{path}: the prices of "{name}" must be numbers of dollars, zero or more')
    plain = float(numbers["input"])
    return Price(
        plain,
        float(numbers["output"]),
        float(numbers.get("cache_read", plain)),
        float(numbers.get("cache_write", plain)),
    )
