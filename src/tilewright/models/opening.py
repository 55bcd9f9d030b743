"""From a name to a model: `provider:what follows is the provider's own`.

A new adapter is one file with a function `(Opening) -> Model`, and one line in `PROVIDERS`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import cast

from tilewright.models.errors import BadModelName
from tilewright.models.protocol import Model, Opening, say_on_stderr
from tilewright.models.retries import RetryPolicy

# Named, not imported: the SDKs take seconds to import, and only one of them is wanted.
PROVIDERS = {
    "anthropic": "tilewright.models.anthropic_model:open_model",
    "openai": "tilewright.models.openai_model:open_model",
    "hf": "tilewright.models.openai_model:open_hugging_face",
    "transformers": "tilewright.models.transformers_model:open_model",
    "relay": "tilewright.models.relay:open_model",
    "replay": "tilewright.models.replay:open_model",
}

# By the key that is set, in this order.
DEFAULTS = (
    ("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-5-5"),
    ("OPENAI_API_KEY", "openai:gpt-6.1-sol"),
    ("HF_TOKEN", "hf:openai/gpt-oss-120b"),
)


def open_model(
    name: str,
    *,
    base_url: str | None = None,
    say: Callable[[str], None] = say_on_stderr,
    environ: Mapping[str, str] | None = None,
    retries: RetryPolicy | None = None,
    timeout_s: float = 600.0,
) -> Model:
    """The model of that name, ready to be asked; no request is made yet. `ModelError` where that cannot be."""
    provider, colon, model = name.partition(":")
    if not colon or not model or provider not in PROVIDERS:
        raise BadModelName(
            f'"{name}" names no model; write PROVIDER:MODEL with one of {", ".join(PROVIDERS)}, '
            "for example anthropic:claude-sonnet-5-5 or relay:DIRECTORY"
        )
    opening = Opening(
        provider,
        model,
        base_url,
        say,
        os.environ if environ is None else environ,
        retries or RetryPolicy(),
        timeout_s,
    )
    module, function = PROVIDERS[provider].split(":")
    open_it = cast(Callable[[Opening], Model], getattr(importlib.import_module(module), function))
    return open_it(opening)


def default_model_name(environ: Mapping[str, str]) -> str | None:
    """The model of the first provider whose key is set, None where none is."""
    return next((name for variable, name in DEFAULTS if environ.get(variable, "").strip()), None)
