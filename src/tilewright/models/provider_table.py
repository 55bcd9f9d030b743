"""From a name to a model: `provider:what follows is the provider's own`.

A module of this package whose name ends in `_model` is an adapter, and the table of providers is what these modules
list in `PROVIDERS`: all else that is known of a provider, its key above all, is looked up there. They import their SDK
when a model is opened, since that takes seconds and only one of them is wanted.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache

import tilewright.models
from tilewright.models.protocol import BadModelName, Model, Opening, Provider, Scrubber, say_on_stderr
from tilewright.models.retries import RetryPolicy


@cache
def providers() -> Mapping[str, Provider]:
    """The table of providers by name, in the order of their ranks, and of one rank by name."""
    names = [one.name for one in pkgutil.iter_modules(tilewright.models.__path__) if one.name.endswith("_model")]
    adapters = [importlib.import_module(f"tilewright.models.{name}") for name in names]
    found = [one for adapter in adapters for one in adapter.PROVIDERS]
    return {one.name: one for one in sorted(found, key=lambda one: (one.rank, one.name))}


def key_variables() -> tuple[str, ...]:
    """Every environment variable that may hold a key."""
    return tuple(one.key for one in providers().values() if one.key)


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
    if not colon or not model or provider not in providers():
        raise BadModelName(
            f'"{name}" names no model; write PROVIDER:MODEL with one of {", ".join(providers())}, '
            "for example anthropic:claude-sonnet-5-5 or relay:DIRECTORY"
        )
    environ = os.environ if environ is None else environ
    scrub = Scrubber.of(environ, key_variables())
    known = providers()[provider]
    return known.open(Opening(known, model, environ, scrub, retries or RetryPolicy(), timeout_s, base_url, say))


def default_provider(environ: Mapping[str, str]) -> Provider | None:
    """The first provider whose key is set, None where none is."""
    able = (one for one in providers().values() if one.default_model and environ.get(one.key, "").strip())
    return next(able, None)


def default_model_name(environ: Mapping[str, str]) -> str | None:
    """The model to ask where nobody is named, None where no key is set."""
    found = default_provider(environ)
    return f"{found.name}:{found.default_model}" if found else None
