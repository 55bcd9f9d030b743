"""From words to a specification: the question to a model, and its answer read strictly. Nothing is run here."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping

from tilewright.prompts.rendering import render
from tilewright.prompts.replies import Fence, ReplyProblem, read_fences
from tilewright.records import Specification
from tilewright.words import nearest, reference

_NEAR = 3  # entries of the catalogue that are shown
_IMPORTS = frozenset({"torch", "math"})
_LANGUAGES = {"python": ("python", "py"), "toml": ("toml",)}


def specify_texts(words: str, shapes: Mapping[str, str], gpu: str) -> tuple[str, str]:
    """The system text and the question for a request in words; `shapes` as the person gave them, `4096x1024:bf16`."""
    given = ", ".join(f"{name} = {shape}" for name, shape in shapes.items())
    near = [reference(one.name) for one in nearest(words, _NEAR)]
    question = render("specify", words=" ".join(words.split()), shapes=given, gpu=gpu, near=near)
    return render("specify_system"), question


def specify_correction_text(problem: str) -> str:
    return render("specify_correction", problem=problem.rstrip("."))


def read_specification(text: str) -> Specification:
    """The specification a reply holds. Raises `ReplyProblem`; whether the reference works is for others to find out."""
    fences = read_fences(text.replace("\r\n", "\n").split("\n"))
    reference = _only(fences, "python")
    description = _only(fences, "toml")
    table = _table(description)
    _check_reference(reference, table)
    assumptions = table.get("assumptions", [])
    if not isinstance(assumptions, list) or not all(isinstance(one, str) for one in assumptions):
        raise ReplyProblem('`assumptions` in the toml block is not a list of texts; write assumptions = ["...", "..."]')
    return Specification(reference, description, tuple(assumptions))


def _only(fences: tuple[Fence, ...], language: str) -> str:
    found = [fence for fence in fences if fence.language in _LANGUAGES[language]]
    if len(found) != 1:
        places = f", at lines {' and '.join(str(fence.first_line) for fence in found)}" if found else ""
        raise ReplyProblem(f"the reply has {len(found)} ```{language} blocks{places}; send exactly one")
    return found[0].text


def _table(description: str) -> dict[str, object]:
    try:
        table = tomllib.loads(description)
    except tomllib.TOMLDecodeError as error:
        raise ReplyProblem(f"the toml block cannot be read: {error}") from None
    for key in ("name", "function"):
        if not isinstance(table.get(key), str):
            raise ReplyProblem(
                f'the toml block has no `{key}`; write {key} = "..." at its top, before the first [table]'
            )
    for key in ("dimensions", "inputs"):
        if not isinstance(table.get(key), dict):
            raise ReplyProblem(f"the toml block has no [{key}] table")
    return table


def _check_reference(reference: str, table: Mapping[str, object]) -> None:
    try:
        tree = ast.parse(reference)
    except SyntaxError as error:
        raise ReplyProblem(f"the python block does not parse: line {error.lineno}: {error.msg}") from None
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        foreign = [name for name in names if name.partition(".")[0] not in _IMPORTS]
        if foreign:
            raise ReplyProblem(f"the reference imports {foreign[0]}; only torch and math may be imported")
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    name = table["function"]
    if name not in functions:
        defined = ", ".join(functions) or "none"
        raise ReplyProblem(
            f"the python block defines no function {name!r}, which the toml block names; it defines {defined}"
        )
    inputs = table["inputs"]
    assert isinstance(inputs, dict)
    arguments = [one.arg for one in (*functions[str(name)].args.posonlyargs, *functions[str(name)].args.args)]
    if list(inputs) != arguments:
        raise ReplyProblem(
            f"the [inputs] are {', '.join(inputs)} but {name} takes {', '.join(arguments)}; "
            "list every argument, in order"
        )
