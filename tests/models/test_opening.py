from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.models import PROVIDERS, BadModelName, MissingKey, MissingPackage, default_model_name, open_model


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
    for provider in PROVIDERS:
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
