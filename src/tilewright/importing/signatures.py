"""The parameters of functions and templates, and the fields of structs that kernels take by value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.importing.sources import Item, Kind, Source, end_of_template
from tilewright.kernel_file.cpp_tokens import CppToken, closing
from tilewright.kernel_file.words import TAKEN


def split_commas(tokens: Sequence[CppToken]) -> list[list[CppToken]]:
    """Split tokens at the outer commas."""
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
    """The tokens of each parameter of a function, without defaults."""
    tokens = item.tokens
    start = end_of_template(tokens, 0) if tokens and tokens[0].text == "template" else 0
    opened = next(
        i + 1 for i in range(start, len(tokens) - 1) if tokens[i].text == item.name and tokens[i + 1].text == "("
    )
    inside = tokens[opened + 1 : closing(tokens, opened, "()")]
    found = []
    for part in split_commas(inside):
        texts = [t.text for t in part]
        found.append(part[: texts.index("=")] if "=" in texts else part)
    return [part for part in found if part and [t.text for t in part] != ["void"]]


def parameter_name(part: Sequence[CppToken]) -> str:
    """The name of a parameter; "" if it is unnamed."""
    texts = [t.text for t in part]
    while texts and texts[-1] == "]":  # float x[]
        texts = texts[: len(texts) - 1 - texts[::-1].index("[")]
    bare = list(part[: len(texts)])
    if len(bare) < 2 or not bare[-1].is_identifier or bare[-2].text == "::" or texts[:-1] == ["const"]:
        return ""
    return bare[-1].text if bare[-1].text not in ("int", "float", "__restrict__") else ""


def plan_names(item: Item) -> list[str]:
    """The names of a function's parameters, made unique and valid in a plan."""
    names = [parameter_name(part).lstrip("_") or f"a{number}" for number, part in enumerate(parameters(item))]
    names = [f"{name}{number}" if name in names[:number] else name for number, name in enumerate(names)]
    return [f"{name}_" if name in TAKEN else name for name in names]


# -- structs that kernels take by value --

_QUALIFIERS = frozenset(("const", "__grid_constant__", "struct", "volatile"))
_NO_FIELDS = frozenset(("static", "using", "typedef", "friend", "static_assert", "enum", "struct", "union", "template"))
_LANES = {2: "xy", 3: "xyz", 4: "xyzw"}
_OF_CUDA = {"dim3": ("unsigned", "xyz")} | {
    f"{name}{count}": (type_, lanes)
    for name, type_ in (("float", "float"), ("double", "double"), ("int", "int"), ("uint", "unsigned"))
    for count, lanes in _LANES.items()
}


@dataclass(frozen=True)
class Field:
    type_: str
    name: str

    @property
    def is_pointer(self) -> bool:
        return "*" in self.type_


def type_of(part: Sequence[CppToken]) -> str:
    """The type of a parameter without qualifiers: `ns::Params<T>`."""
    name = parameter_name(part)
    words = [token.text for token in part if token.text not in _QUALIFIERS]
    return " ".join(words[:-1] if name and words[-1:] == [name] else words).replace(" :: ", "::")


def fields(source: Source, part: Sequence[CppToken]) -> tuple[Field, ...]:
    """The fields of a parameter that is a plain struct; () for any other."""
    type_ = type_of(part)
    if type_ in _OF_CUDA:
        each, lanes = _OF_CUDA[type_]
        return tuple(Field(each, lane) for lane in lanes)
    bare = type_.partition("<")[0].strip().rpartition("::")[2]
    item = next((i for i in source.of_kind(Kind.SHARED) if i.name == bare and _has_plain_head(i)), None)
    if item is None or "*" in type_ or "&" in type_:
        return ()
    found = _members(item)
    if "<" not in type_ or not found:
        return found
    return tuple(Field(f"decltype({type_}::{one.name})", one.name) for one in found)


def _has_plain_head(item: Item) -> bool:
    words = [token.text for token in item.tokens]
    head = words[: words.index("{")] if "{" in words else []
    return bool({"struct", "class"} & set(head)) and ":" not in head and head[:1] not in (["typedef"], ["using"])


def _members(item: Item) -> tuple[Field, ...]:
    """The members; () if one is an array."""
    texts = [token.text for token in item.tokens]
    opened = texts.index("{")
    made: list[Field] = []
    statement: list[CppToken] = []
    index, end = opened + 1, closing(item.tokens, opened)
    while index < end:
        token = item.tokens[index]
        if token.text == "{":  # the body of a function, or a value
            index = closing(item.tokens, index)
            statement = [] if any(one.text == "(" for one in statement) else statement
        elif token.text == ":" and [one.text for one in statement] in (["public"], ["private"], ["protected"]):
            statement = []
        elif token.text == ";":
            words = {one.text for one in statement}
            if statement and not words & _NO_FIELDS and "(" not in words:
                if "[" in words:
                    return ()
                made += _declared(statement)
            statement = []
        else:
            statement.append(token)
        index += 1
    return tuple(made)


def _declared(statement: Sequence[CppToken]) -> list[Field]:
    """The fields of `const float *a, *b`."""
    first, *others = split_commas(statement)
    words = [token.text for token in first]
    words = words[: words.index("=")] if "=" in words else words
    type_ = [word for word in words[:-1] if word != "__restrict__"]
    made = [Field(" ".join(type_), words[-1])]
    for part in others:
        made.append(Field(" ".join([word for word in type_ if word != "*"] + ["*"] * (len(part) - 1)), part[-1].text))
    return made
