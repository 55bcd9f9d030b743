"""Who writes: the model that is named, else one whose key is set, else the built-in playbook. Nothing is spent here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tilewright.authors import Author
from tilewright.authors.model_author import ModelAuthor
from tilewright.frontends.arguments import BadArgument
from tilewright.models import MissingKey, Price, RetryPolicy, default_model_name, open_model, providers
from tilewright.records import Question, Reply
from tilewright.refine import Complete
from tilewright.store import Store

PLAYBOOK = "playbook"


@dataclass(frozen=True)
class ChosenAuthor:
    """An author ready to be asked, and what it costs."""

    name: str
    author: Author
    complete: Complete
    price: Price | None  # None where it is not known

    @property
    def price_words(self) -> str:
        if self.name == PLAYBOOK:
            return "built in, costs nothing"
        if self.name.startswith("replay:"):
            return "a recording, costs nothing"
        if self.price is None:
            return "price unknown, so only attempts, tokens and seconds bound it"
        if not self.price.input and not self.price.output:
            return "costs nothing"
        return f"${self.price.input:g} in and ${self.price.output:g} out per million tokens"


def author_name(model: str | None, author: str | None, environ: Mapping[str, str]) -> str:
    """The author's name for the record, from what was said and which keys are set."""
    if author is not None and author != PLAYBOOK:
        raise BadArgument(f"--author {author}: the built-in author is called {PLAYBOOK}; name a model with --model")
    if author is not None and model is not None:
        raise BadArgument("--author and --model name two authors; drop one")
    if author is None and model is None:
        return default_model_name(environ) or PLAYBOOK
    if model is None:
        return PLAYBOOK
    provider, _, rest = model.partition(":")
    if provider not in providers() or not rest:
        raise BadArgument(f"--model {model}: write PROVIDER:NAME with one of {', '.join(providers())}")
    # A run may be resumed from another folder.
    if provider == "replay" and not Path(rest).expanduser().is_dir():
        return f"{provider}:{Store().open_run(rest).path.resolve()}"
    return f"{provider}:{Path(rest).expanduser().resolve()}" if providers()[provider].takes_path else model


def check_key(name: str, base_url: str, environ: Mapping[str, str]) -> None:
    """Raises `MissingKey` for a model that needs a key which is not set; opening it later would say the same."""
    provider = providers().get(name.partition(":")[0])
    if provider is not None and provider.lacks_key(base_url, environ):
        raise MissingKey(f"{name} needs a key; set {provider.key} in the environment, or choose --author {PLAYBOOK}")


@contextmanager
def open_author(
    name: str, base_url: str, say: Callable[[str], None], seconds: float = math.inf
) -> Iterator[ChosenAuthor]:
    """The author of that name. Raises `ModelError` where its model cannot be opened; nothing is asked of it.

    `seconds`: how long from now a service that fails may be asked again.
    """
    if name == PLAYBOOK:
        if base_url:
            raise BadArgument("--base-url is for a model's server; name the model with --model")
        from tilewright.authors.playbook_author import PlaybookAuthor  # the only author that needs the playbook

        yield ChosenAuthor(name, PlaybookAuthor(), _nobody, None)
        return
    retries = RetryPolicy(give_up_at=time.monotonic() + seconds)
    model = open_model(name, base_url=base_url or None, say=say, retries=retries)
    try:
        yield ChosenAuthor(name, ModelAuthor(name), model.complete, model.price)
    finally:
        model.close()


def checked_url(url: str | None, author: str = "") -> str:
    """An address as a run may store it; raises `BadArgument` for one that is none, or has a password in it."""
    if not url:
        return ""
    if author == PLAYBOOK:
        raise BadArgument("--base-url is for a model's server; name the model with --model")
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise BadArgument("--base-url holds a user name or a password, which are never stored; give a key by variable")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadArgument(f"--base-url {url}: write http://HOST:PORT/v1")
    return url


def _nobody(question: Question, on_text: Callable[[str], None]) -> Reply:
    raise AssertionError(f"the playbook asked a model: {question.id}")
