"""Structs that kernels take by value: their fields, each a parameter of its own in a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.importing.signatures import parameter_name, split_commas
from tilewright.importing.sources import Item, Kind, Source
from tilewright.kernel_file.cpp_tokens import CppToken, closing

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
    """The fields of a parameter that is a struct of plain members; () for any other."""
    type_ = type_of(part)
    if type_ in _OF_CUDA:
        each, lanes = _OF_CUDA[type_]
        return tuple(Field(each, lane) for lane in lanes)
    bare = type_.partition("<")[0].strip().rpartition("::")[2]
    item = next((i for i in source.of_kind(Kind.SHARED) if i.name == bare and _is_struct(i)), None)
    if item is None or "*" in type_ or "&" in type_:
        return ()
    found = _members(item)
    if "<" not in type_ or not found:
        return found
    return tuple(Field(f"decltype({type_}::{one.name})", one.name) for one in found)


def _is_struct(item: Item) -> bool:
    words = [token.text for token in item.tokens]
    head = words[: words.index("{")] if "{" in words else []
    return bool({"struct", "class"} & set(head)) and ":" not in head and head[:1] not in (["typedef"], ["using"])


def _members(item: Item) -> tuple[Field, ...]:
    """() where a member is an array, or of a kind that is not read."""
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
    """`const float *a, *b` as two fields."""
    first, *others = split_commas(statement)
    words = [token.text for token in first]
    words = words[: words.index("=")] if "=" in words else words
    type_ = [word for word in words[:-1] if word != "__restrict__"]
    made = [Field(" ".join(type_), words[-1])]
    for part in others:
        made.append(Field(" ".join([word for word in type_ if word != "*"] + ["*"] * (len(part) - 1)), part[-1].text))
    return made
