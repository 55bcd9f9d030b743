"""The table of providers: names, keys, defaults; what a further one takes."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.servers import ErrorEvent, OpenAIServer, Status

import tilewright.models
from tilewright.child.environment import child_environment
from tilewright.frontends.api.choices import author_name, check_key
from tilewright.models import (
    BadModelName,
    MissingKey,
    MissingPackage,
    ModelRejected,
    RetryPolicy,
    default_model_name,
    key_variables,
    open_model,
    providers,
)
from tilewright.records import Message, Question, Role
from tilewright.store import AttemptFolder


@pytest.mark.parametrize("name", ["", "claude", "anthropic:", ":x", "antropic:claude", "Anthropic:claude"])
def test_a_bad_name_says_what_to_write(name: str) -> None:
    with pytest.raises(BadModelName, match="write PROVIDER:MODEL"):
        open_model(name)


@pytest.mark.parametrize(
    ("name", "variable"),
    [("anthropic:claude-x", "ANTHROPIC_API_KEY"), ("openai:gpt-x", "OPENAI_API_KEY"), ("hf:a/b", "HF_TOKEN")],
)
@pytest.mark.parametrize("blank", ["", "  \n"])
def test_a_missing_key_is_named(name: str, variable: str, blank: str) -> None:
    with pytest.raises(MissingKey, match=f"set {variable}") as caught:
        open_model(name, environ={variable: blank})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["sk-one\nsk-two", "sk-k\u00e9y", "export sk-key"])
def test_what_cannot_be_sent_as_a_key_is_refused_and_not_shown(value: str) -> None:
    for name, variable in (
        ("anthropic:x", "ANTHROPIC_API_KEY"),
        ("openai:x", "OPENAI_API_KEY"),
        ("hf:a/b", "HF_TOKEN"),
    ):
        with pytest.raises(MissingKey, match=f"{variable} holds something that is no key") as caught:
            open_model(name, environ={variable: value})
        assert "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "provider"),
    [
        ({}, None),
        ({"ANTHROPIC_API_KEY": " "}, None),
        ({"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "b", "HF_TOKEN": "c"}, "anthropic"),
        ({"OPENAI_API_KEY": "b", "HF_TOKEN": "c"}, "openai"),
        ({"HF_TOKEN": "c"}, "hf"),
    ],
)
def test_the_default_follows_the_keys(environ: dict[str, str], provider: str | None) -> None:
    name = default_model_name(environ)
    assert (name.split(":")[0] if name else None) == provider
    if name:
        model = open_model(name, environ=environ)
        assert model.name == name
        assert provider == "hf" or model.price is not None  # a default runs within a budget of dollars
        model.close()


def test_the_table_of_providers_is_the_documented_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    for provider in providers():
        assert f"`{provider}:" in page


def test_opening_imports_only_what_it_needs(tmp_path: Path) -> None:
    program = f"""
import sys
from tilewright.models import open_model
open_model("relay:{tmp_path}")
print(sorted({{"anthropic", "openai", "transformers", "torch"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_says_how_to_get_it() -> None:
    # A finder that denies the package stands for an installation without the extra.
    program = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "transformers" else found(name, *rest)
from tilewright.models import MissingPackage, open_model
try:
    open_model("transformers:a/b")
except MissingPackage as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'tilewright[local]'" in done.stdout
    assert issubclass(MissingPackage, RuntimeError)


# -- a further provider is one file --

ACME = '''
"""Models of Acme, behind the chat-completions API."""

from tilewright.models.openai_model import OpenAIModel
from tilewright.models.protocol import Provider

PROVIDERS = (Provider("acme", OpenAIModel, key="ACME_TOKEN", address="ACME_URL", default_model="anvil-1"),)
'''
KEY = "acme-0123456789-secret"


def test_of_several_keys_the_lowest_rank_decides_and_a_further_provider_comes_last(acme: str) -> None:
    keys = dict.fromkeys(("ACME_TOKEN", "HF_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"), KEY)
    asked = []
    while (name := default_model_name(keys)) is not None:
        provider = providers()[name.partition(":")[0]]
        asked.append(provider.name)
        del keys[provider.key]
    assert asked == ["anthropic", "openai", "hf", "acme"]  # by file name acme would come first
    assert list(providers())[:3] == asked[:3]


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a provider whose adapter lies among the others."""
    (tmp_path / "acme_model.py").write_text(ACME)
    monkeypatch.setattr(tilewright.models, "__path__", [*tilewright.models.__path__, str(tmp_path)])
    providers.cache_clear()
    yield "acme"
    providers.cache_clear()
    sys.modules.pop("tilewright.models.acme_model", None)


def test_a_file_among_the_adapters_makes_a_provider(acme: str) -> None:
    assert acme in providers()
    assert "ACME_TOKEN" in key_variables()
    assert default_model_name({"ACME_TOKEN": KEY}) == "acme:anvil-1"
    assert author_name(None, None, {"ACME_TOKEN": KEY}) == author_name("acme:anvil-1", None, {}) == "acme:anvil-1"
    with pytest.raises(MissingKey, match="set ACME_TOKEN"):
        check_key("acme:anvil-1", "", {})
    with pytest.raises(MissingKey, match="set ACME_TOKEN"):
        open_model("acme:anvil-1", environ={})
    check_key("acme:anvil-1", "", {"ACME_URL": "http://localhost:1"})


@pytest.mark.parametrize("name", ["acme:anvil-1", "openai:another"])
def test_the_key_of_a_further_provider_reaches_nobody(
    acme: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the records of a run, nor what is heard meanwhile, nor notices, errors and logs; of whichever model."""
    caplog.set_level(logging.DEBUG, "tilewright")
    said = f"your key is {KEY}, indeed {KEY}"
    troubles = [Status(503, body={"error": {"message": said}}), ErrorEvent(4, "overloaded_error", said)]
    heard: list[str] = []
    environ = {"ACME_TOKEN": KEY, "OPENAI_API_KEY": "sk-0123456789"}
    with OpenAIServer(lambda body: said, [*troubles, None, Status(401, body=said)]) as server:
        model = open_model(
            name,
            base_url=server.base_url,
            environ=environ,
            say=heard.append,
            retries=RetryPolicy(first_wait_s=0.01, longest_wait_s=0.02),
        )
        folder = AttemptFolder(tmp_path / "0001", 1)

        def hear(text: str) -> None:
            folder.stream(1, text)
            heard.append(text)

        question = Question("0001-1", "You write kernels.", (Message(Role.USER, "draft"),))
        reply = folder.reply_to(1, question, lambda asked: model.complete(asked, hear))
        with pytest.raises(ModelRejected) as caught:
            model.complete(question, hear)
        model.close()
    assert len(server.requests) == 4
    assert reply.text == "your key is [key removed], indeed [key removed]"
    assert [one for one in heard if "broke off: your key is [key removed]" in one]
    files = [path.read_text() for path in folder.path.iterdir()]
    assert len(files) >= 4
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("tilewright")]
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert [text for text in (*files, "".join(heard), shown, *logged, repr(model)) if KEY in text] == []


def test_no_key_of_the_table_reaches_a_child(acme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in key_variables():
        monkeypatch.setenv(variable, KEY)
    assert len(key_variables()) >= 4
    assert KEY not in str(child_environment("/nowhere"))
