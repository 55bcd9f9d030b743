"""Shapes by letters, such as q (B, S, H, D): the tensor that has them, and whether an operation takes that order."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.words.catalogue import Operation, names, parsed_arguments, vocabulary
from tilewright.words.text import joined

_ONE = r"(?:[A-Za-z]\w*|\d+)(?: ?[*/+] ?(?:[A-Za-z]\w*|\d+))*"
_GROUP = re.compile(rf"[\[(] ?({_ONE}(?: ?, ?{_ONE})*) ?,? ?[\])]")
_KINDS = {
    "batch": "batch",
    "heads kv_heads": "heads",
    "sequence keys cached length time queries": "sequence",
    "head_size d cols features hidden dim": "features",
    "channels filters": "channels",
    "height": "height",
    "width": "width",
    "classes vocabulary": "classes",
}
_KIND = {one: kind for many, kind in _KINDS.items() for one in many.split()} | {one: one for one in "mnk"}
_LETTERS = {"b": "batch", "s": "sequence", "t": "sequence", "l": "sequence", "sq": "sequence", "sk": "sequence"}
_LETTERS |= {"h": "heads", "kvh": "heads", "hkv": "heads", "hq": "heads", "d": "features", "c": "channels"}
_LETTERS |= {"v": "classes", "w": "width", "m": "m", "k": "k", "n": "n", "heads": "heads", "head_size": "features"}


def marked(text: str) -> str:
    """The text with shapes by letters between ⟦ and ⟧: those in capitals, and of names of dimensions."""
    return _GROUP.sub(_marked, text)


def _marked(found: re.Match[str]) -> str:
    parts = [one.strip() for one in found[1].split(",")]
    capitals = all(re.match(r"[A-Z]|\d", one) or one.lower() in vocabulary()["dimensions"] for one in parts)
    one = parts[0] if len(parts) == 1 else ""
    if (
        not capitals
        or not any(re.match(r"[A-Z]", each) for each in parts)
        or (one and len(one) > 2 and "," not in found[0])
    ):
        return found[0]
    if any(len(each) > 1 and joined(each) in names() for each in parts):
        return found[0]
    return f" ⟦{','.join(each.replace(' ', '') for each in parts)}⟧ "


def dimensions_of(text: str) -> tuple[str, ...]:
    """The names of the dimensions between ⟦ and ⟧."""
    known = vocabulary()["dimensions"]
    found = []
    for one in text.strip("⟦⟧").lower().split(","):
        name = known.get(one, one)
        found.append("heads" if one == "h" and ",w" not in text.lower() and len(text) > 5 else name)
    return tuple(found)


def _kinds(layout: Iterable[str]) -> list[str]:
    some = list(layout)
    image = "width" in some or "w" in some
    found = [_LETTERS.get(one, _KIND.get(one, "")) for one in some]
    return ["height" if image and one in ("h", "height") else kind for one, kind in zip(some, found, strict=True)]


def fits(pattern: tuple[str, ...], layout: tuple[str, ...]) -> bool:
    """Whether a tensor that an operation takes may have that shape: its rank, and no two dimensions changed about."""
    fixed = [one.partition("=")[0].strip() for one in pattern if one != "..."]
    if len(layout) < len(fixed) or ("..." not in pattern and len(layout) != len(fixed)):
        return False
    at = pattern.index("...") if "..." in pattern else len(fixed)
    after = len(fixed) - at
    pairs = [*zip(layout[:at], fixed[:at], strict=False)]
    pairs += zip(layout[len(layout) - after :], fixed[at:], strict=True) if after else []
    said, own = _kinds(layout), [_KIND.get(one, "") for one in fixed]
    for one, other in pairs:
        a, b = _kinds(layout)[layout.index(one)], _KIND.get(other, "")
        if other.isdigit() and one.isdigit() and one != other:
            return False
        if a and b and a != b and (a in own or b in said):
            return False
    return True


def patterns(operation: Operation, owners: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The dimensions of the tensors with these names, of all where there are none."""
    takes = re.sub(r"\{(\w+)\}", lambda one: str(operation.slots.get(one[1], one[1])), operation.takes)
    alias = vocabulary()["tensor_names"]
    found = []
    for one in parsed_arguments(takes):
        called = [one.name, *one.name.split("_")]
        if not owners or any(each in called or set(alias.get(each, "").split()) & {one.name} for each in owners):
            found.append(one.dimensions)
    return found
