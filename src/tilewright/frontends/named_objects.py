"""A Python object by its name: `package.module:Name(64)`, or a name in a file of an installed package.

Telling such a request from words and files needs no torch; what it names is written down by `object_requests`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.store import Request
from tilewright.tasks.reading.python_source import INSTALLED

_NAMED = re.compile(
    r"(?P<module>[A-Za-z_]\w*(?:\.\w+)*):(?P<name>[A-Za-z_][\w.]*)(?:\((?P<arguments>.*)\))?", re.DOTALL
)


def is_named_object(text: str) -> bool:
    """Whether a request is `package.module:Name`, and no words: what stands before the colon can be imported.

    Raises `BadArgument` for what cannot be words either, since a model would be paid to read it.
    """
    text = text.strip()
    place, colon, _ = text.partition(":")
    if not colon or place.endswith(".py") or Path(text).exists():
        return False
    found = _NAMED.fullmatch(text)
    if found is not None and _is_installed(found["module"].partition(".")[0]):
        return True
    if re.search(r"\s", place):
        return False
    if found is None and "(" in text and text.count("(") != text.count(")"):
        raise BadArgument(f"{text}: a bracket is not closed; write PACKAGE.MODULE:NAME(ARGUMENTS)")
    if re.search(r"\s", text.partition("(")[0]):
        return False
    raise BadArgument(f"{text}: no package called {place} can be imported; write PACKAGE.MODULE:NAME or FILE.py:NAME")


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def named_object(text: str) -> Any:
    """`package.module:Name` or `package.module:Name(64, eps=1e-5)`; arguments may use what the module has imported.

    A class without brackets is made without arguments.
    """
    found = _NAMED.fullmatch(text.strip())
    assert found is not None
    try:
        module = importlib.import_module(found["module"])
    except Exception as error:  # whatever somebody's module raises
        raise BadArgument(f"{text}: {found['module']} cannot be imported: {type(error).__name__}: {error}") from None
    value: Any = module
    for name in found["name"].split("."):
        if not hasattr(value, name):
            raise BadArgument(f"{text}: {getattr(value, '__name__', value)} has no {name}")
        value = getattr(value, name)
    if found["arguments"] is None and not isinstance(value, type):
        return value
    if not callable(value):
        raise BadArgument(f"{text}: {found['name']} is a {type(value).__name__}, which takes no arguments")
    return _called(text, module, found["name"], found["arguments"] or "")


def _called(text: str, module: types.ModuleType, name: str, arguments: str) -> Any:
    import torch

    try:
        torch.manual_seed(0)
        return eval(f"{name}({arguments})", {"torch": torch, **vars(module)})
    except SyntaxError:
        raise BadArgument(f"{text}: {arguments!r} are no arguments of a call; write them as in Python") from None
    except Exception as error:  # whatever somebody's constructor raises
        raise BadArgument(f"{text} fails: {type(error).__name__}: {' '.join(str(error).split())}") from None


def installed_name(text: str) -> str:
    """`package.module:Name(...)` for a name in a file of an installed package; any other text as it is."""
    path, mark, name = text.strip().partition(".py:")
    if not mark or not Path(f"{path}.py").is_file():
        return text
    place = Path(path).expanduser().resolve()
    for folder in map(Path, sys.path):
        if folder.name in INSTALLED and place.is_relative_to(folder.resolve()):
            return f"{'.'.join(place.relative_to(folder.resolve()).parts)}:{name}"
    return text


def resolved(request: Request) -> Request:
    """A request with the source of the object it names; any other as it is."""
    text = installed_name(request.text)
    if request.function or not is_named_object(text):
        return request
    from tilewright.frontends.object_requests import object_request  # needs torch, which takes seconds to import

    found = object_request(named_object(text), request.shapes, request.numbers, request.values).request
    return replace(
        request, text=found.text, shapes=found.shapes, values=found.values, function=found.function, module=found.module
    )
