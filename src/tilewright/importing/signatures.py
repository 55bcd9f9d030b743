"""The parameters of functions and templates, as tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.importing.sources import Item, end_of_template
from tilewright.kernel_file.cpp_tokens import CppToken, closing
from tilewright.kernel_file.words import TAKEN


def split_commas(tokens: Sequence[CppToken]) -> list[list[CppToken]]:
    """A list of parameters, each its tokens."""
    parts: list[list[CppToken]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def template_parameters(item: Item) -> list[list[CppToken]]:
    if not item.tokens or item.tokens[0].text != "template":
        return []
    return split_commas(item.tokens[2 : end_of_template(item.tokens, 0) - 1])


def template_name(part: Sequence[CppToken]) -> str:
    """The name of a template parameter: `T`, `N` of `int N = 4`, `f` of `float (*f)(float)`."""
    texts = [token.text for token in part]
    texts = texts[: texts.index("=")] if "=" in texts else texts
    pointed = texts.index("*") if texts[-1] == ")" and "*" in texts else None
    return texts[pointed + 1] if pointed is not None else texts[-1]


def parameters(item: Item) -> list[list[CppToken]]:
    """The parameters of a function, each its tokens, without what follows an `=`."""
    tokens = item.tokens
    start = end_of_template(tokens, 0) if tokens and tokens[0].text == "template" else 0
    opened = next(
        i + 1 for i in range(start, len(tokens) - 1) if tokens[i].text == item.name and tokens[i + 1].text == "("
    )
    inside = tokens[opened + 1 : closing(tokens, opened, "()")]
    return [part for part in map(_without_default, split_commas(inside)) if part]


def _without_default(part: list[CppToken]) -> list[CppToken]:
    texts = [t.text for t in part]
    part = part[: texts.index("=")] if "=" in texts else part
    return [] if [t.text for t in part] == ["void"] else part


def parameter_name(part: Sequence[CppToken]) -> str:
    """The name a parameter declares; "" where it declares none."""
    texts = [t.text for t in part]
    while texts and texts[-1] == "]":  # float x[]
        texts = texts[: len(texts) - 1 - texts[::-1].index("[")]
    bare = list(part[: len(texts)])
    if len(bare) < 2 or not bare[-1].is_identifier or bare[-2].text == "::" or texts[:-1] == ["const"]:
        return ""
    return bare[-1].text if bare[-1].text not in ("int", "float", "__restrict__") else ""


def plan_names(item: Item) -> list[str]:
    """The names of a function's parameters as a plan may have them."""
    names = [parameter_name(part).lstrip("_") or f"a{number}" for number, part in enumerate(parameters(item))]
    names = [f"{name}{number}" if name in names[:number] else name for number, name in enumerate(names)]
    return [f"{name}_" if name in TAKEN else name for name in names]
