"""Shapes that are said of tensors behind pointers, held against what accesses tell of them.

`x[rows, cols]` and `--shape x=512x1000` make rows 512 and cols 1000; what contradicts that is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.importing.calls import Given
from tilewright.importing.records import Contradiction

Shapes = Mapping[str, Sequence[str]]  # of tensors, each size a name, a number, or `C * 3`


def lies_otherwise(said: Mapping[str, Given], shapes: Shapes) -> bool:
    """Whether a shape that is said has other dimensions: then tensors stay flat, and numbers are told beside them."""
    return any(not _is_alike(given, shape, _numbers(said)) for given, shape in _said_of(said, shapes))


def told_numbers(said: Mapping[str, Given], shapes: Shapes) -> dict[str, int]:
    """The launcher's numbers as the shapes that are said give them. Raises `Contradiction` for a contradiction."""
    numbers = _numbers(said)
    found = {name: (value, "--set") for name, value in numbers.items()}
    pairs = _said_of(said, shapes)
    alike = [len(shape) > 1 and _is_alike(given, shape, numbers) for given, shape in pairs]
    for (given, shape), is_alike in sorted(zip(pairs, alike, strict=True), key=lambda one: not one[1]):
        one = _Said(given, shape)
        if not is_alike:
            _hold(found, one)
            continue
        for text, size in zip(shape, given.shape, strict=True):
            _meet(found, one, text, size)
    return {name: value for name, (value, _) in found.items()}


def _is_alike(given: Given, shape: Sequence[str], numbers: Mapping[str, int]) -> bool:
    """Whether a tensor can be the one that is said; who says all numbers may say as many elements otherwise, or more
    than a row of them."""
    if len(given.shape) != len(shape):
        return False
    parts = [_parts(text) for text in shape]
    if not all(name in numbers for name, _ in parts if name):
        return True
    sizes = tuple(times * numbers.get(name, 1) for name, times in parts)
    spare = math.prod(given.shape) - math.prod(sizes)
    return sizes == given.shape or (spare != 0 if len(shape) > 1 else spare < 0)


def sized_pointers(
    call: Sequence[Given], said: Mapping[str, Given], shapes: Shapes
) -> tuple[tuple[Given, ...], tuple[str, ...]]:
    """The call's arguments with tensors behind pointers that stay flat of the length that is said, if any is: of the
    others as long as one which is said and reached alike, else as is reached. And those whose length is a guess."""
    known = {name: said[name].shape for name in said if said[name].has_shape}
    alike = {tuple(shapes[name]): shape for name, shape in known.items() if name in shapes}
    numbers = _numbers({one.name: one for one in call})
    for name in shapes if known else ():
        parts = [_parts(text) for text in shapes[name]]
        if all(one in numbers for one, _ in parts if one):
            reached = tuple(times * numbers.get(one, 1) for one, times in parts)
            known.setdefault(name, alike.get(tuple(shapes[name]), reached))
    bare = [one.name for one in call if one.is_bare]
    made = tuple(replace(one, shape=known[one.name]) if one.name in bare and one.name in known else one for one in call)
    return made, tuple(name for name in bare if name not in known)


class _Said:
    def __init__(self, given: Given, shape: Sequence[str]) -> None:
        self.given, self.shape = given, shape
        self.words = f"--shape {given.name}={'x'.join(map(str, given.shape))}"
        self.tells = f"the kernel reaches {given.name}[{', '.join(shape)}]"


def _said_of(said: Mapping[str, Given], shapes: Shapes) -> list[tuple[Given, Sequence[str]]]:
    return [(said[name], shape) for name, shape in shapes.items() if name in said and said[name].has_shape]


def _numbers(said: Mapping[str, Given]) -> dict[str, int]:
    return {name: one.value for name, one in said.items() if one.kind == "int" and isinstance(one.value, int)}


def _meet(found: dict[str, tuple[int, str]], said: _Said, text: str, size: int) -> None:
    """One size, which is a number, a name or so many times a name."""
    name, times = _parts(text)
    if size % times or (not name and size != times):
        raise Contradiction(f"{said.words}: {said.tells}, and {size} is not {text}")
    value, other = found.setdefault(name, (size // times, said.words)) if name else (size // times, "")
    if value != size // times:
        raise Contradiction(f"{said.words}: {said.tells}, so {name} is {size // times}, but {other} makes it {value}")


def _hold(found: dict[str, tuple[int, str]], said: _Said) -> None:
    """A tensor of other dimensions, or a row of elements, must have as many as are reached."""
    count = math.prod(said.given.shape)
    parts = [_parts(text) for text in said.shape]
    unknown = [name for name, _ in parts if name and name not in found]
    if unknown and len(said.shape) == 1:
        _meet(found, said, said.shape[0], count)
    elif unknown:
        like = "x".join(one.replace(" ", "").upper() for one in said.shape)
        more = f"write --shape {said.given.name}={like}, or say {', '.join(unknown)} with --set"
        raise Contradiction(f"{said.words}: {said.tells}; {more}")
    reached = math.prod(times * (found[name][0] if name else 1) for name, times in parts)
    if reached > count:
        made = ", ".join(f"{name} = {found[name][0]} by {found[name][1]}" for name, _ in parts if name)
        raise Contradiction(f"{said.words}: {said.tells}, which is {reached} elements{f' ({made})' if made else ''}")


def _parts(text: str) -> tuple[str, int]:
    """A size as a name, or none, and how many times it."""
    names = [one for one in text.split(" * ") if not one.isdigit()]
    return (names or [""])[0], math.prod(int(one) for one in text.split(" * ") if one.isdigit())
