"""The protocol of models: their names and providers, what an adapter declares and is given, and how a request can fail.

A name is `provider:` and what the provider makes of the rest. A module of this package whose name ends in `_model` is
an adapter, and lists its providers in `PROVIDERS`; it imports its SDK when a model is opened, since that takes seconds.

A refusal of the model itself is no error: it is a `Reply` whose `stop` says so. So is a reply cut at its length.
Keys come from the environment, go to the service they are for, and appear nowhere else."""

from __future__ import annotations

import importlib
import math
import os
import pkgutil
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Protocol

import tilewright.models
from tilewright.records import NoReply, Question, Reply

if TYPE_CHECKING:
    from tilewright.models.prices import Price

OnText = Callable[[str], None]
_SHORTEST_KEY = 8  # a shorter value is no key, and removing it everywhere would garble ordinary text


class ModelError(NoReply):
    """Asking a model failed: one sentence with what is wrong and what to do. It never holds a key."""


MOST_REPLY_BYTES = 4 << 20  # a kernel file has some thousands; more is no answer, and would only fill the memory


class ReplyTooLarge(ModelError):
    """A reply that is far larger than any kernel file."""

    def __init__(self, what: str, size: int) -> None:
        super().__init__(
            f"{what} has {max(size >> 20, MOST_REPLY_BYTES >> 20):,} MiB or more, and a reply may have "
            f"{MOST_REPLY_BYTES >> 20} MiB; send a kernel file or edits of one, and resume the run"
        )


class BadModelName(ModelError):
    """Not `provider:model`, or a provider that is not known."""


class BadPriceTable(ModelError):
    """A price table that cannot be read."""


class MissingKey(ModelError):
    """The environment variable with the key is not set."""


class MissingPackage(ModelError):
    """The adapter needs a package that is not installed."""


class ModelRejected(ModelError):
    """The service rejected the request, and would again: wrong key, no such model, bad request."""


class ModelUnavailable(ModelError):
    """It still fails after every retry, or did not answer in time."""


class NoRecordedReply(ModelError):
    """A replay has come to the end of its recording."""


class Model(Protocol):
    """Answers questions.

    `complete` passes text to `on_text` as it arrives and returns the whole reply. Where a connection is lost midway the
    question is asked again, so `on_text` may then see the beginning of a second answer; the reply holds that one alone.
    """

    @property
    def name(self) -> str: ...

    @property
    def price(self) -> Price | None: ...

    def complete(self, question: Question, on_text: OnText) -> Reply: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RetryPolicy:
    """Waits double from `first_wait_s` to `longest_wait_s`, each drawn anew within a quarter either way."""

    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    longest_asked_s: float = 120.0  # a server that asks for more patience than this is given up
    give_up_at: float = math.inf  # in `time.monotonic`: nothing is asked again that would have to wait past it

    def wait_s(self, retry: int) -> float:
        """The wait before retry number `retry`, from 0."""
        return min(self.longest_wait_s, self.first_wait_s * 2.0**retry) * random.uniform(0.75, 1.25)


@dataclass(frozen=True)
class Provider:
    """The provider behind a name before the colon. Every adapter module lists its own in `PROVIDERS`."""

    name: str
    open: Callable[[Opening], Model]
    key: str = ""  # the environment variable with its key; "" where none is needed
    address: str = ""  # the variable with the address of a server of one's own, which may want no key
    base_url: str | None = None  # of the service, where its client does not know it
    default_model: str = ""  # used if the key is set and no model is named
    rank: int = 100  # of several whose keys are set, the lowest is asked
    package: str = ""  # that it needs, as it is imported
    install: str = ""  # the name for pip, if that is not the package's name
    takes_path: bool = False  # what follows the colon is a path

    def own_server(self, base_url: str | None, environ: Mapping[str, str]) -> str | None:
        return base_url or (environ.get(self.address) if self.address else None) or None

    def lacks_key(self, base_url: str | None, environ: Mapping[str, str]) -> bool:
        """Whether it needs a key that is not set."""
        return bool(self.key) and not environ.get(self.key, "").strip() and not self.own_server(base_url, environ)


@dataclass(frozen=True)
class Scrubber:
    """Removes every key of the environment from a text, also from a server's answer."""

    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str], variables: Iterable[str]) -> Scrubber:
        found = {environ.get(variable, "").strip() for variable in variables}
        return cls(tuple(sorted((one for one in found if len(one) >= _SHORTEST_KEY), key=len, reverse=True)))

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


def say_on_stderr(text: str) -> None:
    """The default for notices, such as that a relay waits or a question is asked again."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Opening:
    """The arguments of an adapter. The environment has keys, so it is never shown."""

    provider: Provider
    model: str  # what follows the provider's colon
    environ: Mapping[str, str] = field(repr=False)
    scrub: Scrubber
    retries: RetryPolicy
    timeout_s: float  # the longest silence on an open connection; models that think first are silent for minutes
    base_url: str | None = None
    say: Callable[[str], None] = say_on_stderr

    @property
    def name(self) -> str:
        return f"{self.provider.name}:{self.model}"


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
    """The model to ask if none is named; None if no key is set."""
    found = default_provider(environ)
    return f"{found.name}:{found.default_model}" if found else None
