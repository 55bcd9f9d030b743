"""Keys come from the environment, go to the service they are for, and appear nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.models.errors import MissingKey

KEY_VARIABLES = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HF_TOKEN")
NO_KEY = "no-key"  # what is sent to a server of one's own that wants none


@dataclass(frozen=True)
class Scrubber:
    """Takes every key of the environment out of a text, also where a server has sent it back."""

    secrets: tuple[str, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Scrubber:
        found = {environ.get(variable, "").strip() for variable in KEY_VARIABLES}
        # A value this short is no key, and removing it everywhere would garble ordinary text.
        return cls(tuple(sorted((one for one in found if len(one) >= 8), key=len, reverse=True)))

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "[key removed]")
        return text

    def __repr__(self) -> str:
        return f"Scrubber({len(self.secrets)} keys)"


def key_of(environ: Mapping[str, str], variable: str) -> str | None:
    """The key in `variable`, None where it is unset or blank. Raises `MissingKey` for what cannot be sent as one."""
    key = environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise MissingKey(
            f"{variable} holds something that is no key: a blank, a line break or a letter outside ASCII; set it anew"
        )
    return key or None
