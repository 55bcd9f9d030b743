"""The model that a command names, and example inputs for it.

`package.module:Name(args)`, `FILE.py:Class(args)`, a kind of transformers model (`llama`,
`qwen3(num_hidden_layers=4)`) or a folder with a `config.json`. Without a GPU models are made on the meta device, where
weights take no memory.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright.devices.inputs import TORCH_DTYPE
from tilewright.frontends.api.requests import installed_name, is_named_object, named_object
from tilewright.records import TensorSpec
from tilewright.tasks.errors import BadArgument

_KIND = re.compile(r"(?P<kind>[A-Za-z][\w-]*)(?:\((?P<arguments>.*)\))?", re.DOTALL)
_TOKENS = "1x2048:i64"


@dataclass(frozen=True)
class Subject:
    """A model and what to call it with."""

    model: torch.nn.Module
    inputs: dict[str, Any]


def subject(text: str, shapes: Mapping[str, str], numbers: Mapping[str, str], device: str) -> Subject:
    """Raises `BadArgument` for what names no model."""
    with torch.device(device):
        made, language = _model(text)
        if not isinstance(made, torch.nn.Module):
            raise BadArgument(f"{text} is a {type(made).__name__}, not an nn.Module; give a model")
        given = dict(shapes) or ({"input_ids": _TOKENS} if language else {})
        if not given and not numbers:
            raise BadArgument(f"{text}: no inputs are given; give the shape of each with --shape NAME=SIZES:DTYPE")
        inputs: dict[str, Any] = {name: _tensor(name, shape, made) for name, shape in given.items()}
    inputs |= {name: _number(value) for name, value in numbers.items()}
    return Subject(made.eval(), inputs)


def _model(text: str) -> tuple[Any, bool]:
    """The model, and whether it takes tokens."""
    named = installed_name(text)
    if (Path(text) / "config.json").is_file():
        return _of_config(text, folder=True), True
    path, mark, name = text.partition(".py:")
    if mark:
        return _of_file(Path(f"{path}.py"), name), False
    found = _KIND.fullmatch(text.strip())
    if found is not None:
        return _of_config(text, folder=False), True
    if is_named_object(named):
        return named_object(named), False
    raise BadArgument(
        f"{text} names no model; write PACKAGE.MODULE:NAME(ARGUMENTS), FILE.py:CLASS(ARGUMENTS), a kind of "
        "transformers model such as llama, or a folder with a config.json"
    )


def _of_file(path: Path, name: str) -> Any:
    """A class of a file of one's own, which is imported here: the model is run as it stands."""
    if not path.is_file():
        raise BadArgument(f"{path}: no such file; give FILE.py:CLASS(ARGUMENTS)")
    root, parts = path.resolve().parent, [path.stem]
    while (root / "__init__.py").is_file():
        root, parts = root.parent, [root.name, *parts]
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return named_object(f"{'.'.join(parts)}:{name}")


def _of_config(text: str, *, folder: bool) -> Any:
    if importlib.util.find_spec("transformers") is None:
        raise BadArgument(f"{text}: for a kind of transformers model, pip install transformers")
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

    found = _KIND.fullmatch(text.strip())
    if not folder and found is not None and found["kind"] not in CONFIG_MAPPING:
        raise BadArgument(f"{text}: no kind of transformers model is called {found['kind']}; such are llama and qwen3")
    try:
        if found is None or folder:
            config = AutoConfig.from_pretrained(text)
        else:
            arguments = eval(f"dict({found['arguments'] or ''})", {})
            config = AutoConfig.for_model(found["kind"], **arguments)
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    except SyntaxError:
        raise BadArgument(f"{text}: the arguments of a configuration are such as num_hidden_layers=4") from None
    except Exception as error:  # an unknown kind, or fields that do not go together
        said = " ".join(str(error).split())[:300]
        raise BadArgument(f"{text}: transformers makes no model of it: {said}") from None


def _tensor(name: str, text: str, model: torch.nn.Module) -> torch.Tensor:
    try:
        spec = TensorSpec.parse(text)
    except ValueError as error:
        raise BadArgument(f"--shape {name}={text}: {error}") from None
    dtype = TORCH_DTYPE[spec.dtype]
    if dtype.is_floating_point:
        return torch.randn(spec.shape).to(dtype)
    words = getattr(getattr(model, "config", None), "vocab_size", 2) if dtype is not torch.bool else 2
    return torch.randint(0, int(words), spec.shape).to(dtype)


def _number(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
