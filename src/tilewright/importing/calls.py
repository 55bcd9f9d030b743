"""The arguments a launcher is called with: a first call, specified or guessed, and variations of its sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.records import DType, TensorSpec

Place = tuple[str, int]  # a tensor's name and one of its dimensions
_CALLS = 72
_MOST_EDGES = 24
_LARGEST = 1 << 15
_LARGEST_INT = 1 << 11  # launchers multiply numbers in an int
POINTER_ELEMENTS = 1 << 17  # behind a pointer of unknown extent
_LARGEST_PRODUCT = 1 << 29
_BLOCKS = (32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class CallArgument:
    """One argument of the launcher."""

    name: str
    kind: str  # "tensor", "int", "float", "bool", "ints", "stream"
    dtype: str = ""
    shape: tuple[int, ...] = ()
    value: int | float | bool | tuple[int, ...] | str | None = ""  # None: an optional tensor that is not given
    is_pointer: bool = False  # a plain pointer, without a shape

    @property
    def is_tensor(self) -> bool:
        return self.kind == "tensor"

    @property
    def is_passed(self) -> bool:
        """Whether it is a parameter of the op: streams, lists and absent numbers are not."""
        return self.kind not in ("stream", "ints") and (self.is_tensor or self.value is not None)

    @property
    def has_shape(self) -> bool:
        return self.is_tensor and self.value is not None and not self.is_pointer

    @property
    def word(self) -> str:
        """The text that the host program reads."""
        if self.value is None:
            return "none"
        if self.kind == "tensor":
            return f"{self.dtype}:{','.join(map(str, self.shape))}"
        if self.kind == "ints" and isinstance(self.value, tuple):
            return "l" + ",".join(map(str, self.value))
        if isinstance(self.value, bool):
            return str(int(self.value))
        return repr(self.value) if self.kind != "stream" else "0"

    @staticmethod
    def of(name: str, value: TensorSpec | int | float | bool | tuple[int, ...] | None) -> CallArgument:
        """From a value that a plan is evaluated with."""
        if isinstance(value, TensorSpec):
            return CallArgument(name, "tensor", value.dtype.value, value.shape)
        kind = "tensor" if value is None else "ints" if isinstance(value, tuple) else type(value).__name__
        return CallArgument(name, kind, value=value)

    def argument(self) -> TensorSpec | int | float | bool | tuple[int, ...] | None:
        """The value that a plan is evaluated with."""
        if self.kind == "tensor" and self.value is not None:
            return TensorSpec.contiguous(DType(self.dtype), self.shape)
        return None if isinstance(self.value, str) else self.value


CallArguments = Sequence[CallArgument]  # of a whole call
Specified = Mapping[str, CallArgument]  # the arguments that a person specified


@dataclass(frozen=True)
class Relation:
    """A number that is a multiple of another, as a check of the launcher requires: `C == H * 64`."""

    name: str
    times: int
    other: str

    def __str__(self) -> str:
        return f"{self.name} == {self.other} * {self.times}"


@dataclass(frozen=True)
class CallSpec:
    arguments: tuple[CallArgument, ...]
    multiprocessors: int = 132
    shared_sizes: tuple[tuple[Place, Place], ...] = ()  # dimensions that are always equal
    relations: tuple[Relation, ...] = ()

    @property
    def line(self) -> str:
        return " ".join([str(self.multiprocessors), *(one.word for one in self.arguments)])

    @property
    def sizes_text(self) -> str:
        """The sizes and numbers, for messages."""
        shapes = {one.name: "x".join(map(str, one.shape)) for one in self.arguments if one.has_shape}
        numbers = {one.name: str(one.value) for one in self.arguments if not one.is_tensor}
        return ", ".join(f"{name} = {text}" for name, text in (shapes | numbers).items())


def with_shared_sizes(arguments: CallArguments, relations: tuple[Relation, ...] = ()) -> CallSpec:
    """The first call. Dimensions of different tensors with equal sizes are taken to be one dimension."""
    first: dict[int, Place] = {}
    shared_sizes: list[tuple[Place, Place]] = []
    for one in arguments:
        if not one.has_shape:
            continue
        own: dict[int, Place] = {}
        for dimension, size in enumerate(one.shape):
            place = (one.name, dimension)
            if size > 1 and size in first:
                shared_sizes.append((first[size], place))
            elif size > 1:
                own.setdefault(size, place)
        first.update({size: place for size, place in own.items() if size not in first})
    return CallSpec(tuple(arguments), shared_sizes=tuple(shared_sizes), relations=relations)


def variations(call: CallSpec, edges: Sequence[int]) -> list[CallSpec]:
    """The call and others at multiples, odd, small and large sizes, and at `edges`, where the launcher may branch."""
    chance = random.Random(0)
    classes = _classes(call)
    near = [n + d for n in edges[:_MOST_EDGES] for d in (0, 1)]
    made = [call]
    for key in classes:
        made += [_with_sizes(call, {**classes, key: size}, None) for size in near]
    for number in range(_CALLS - 1):
        sizes = {}
        alone = chance.choice(sorted(classes)) if classes else ""
        for key, size in classes.items():
            if number % 3 == 2 and key != alone:
                sizes[key] = size  # in a third of the calls one size changes alone
            elif near and number % 2 and key == alone:
                sizes[key] = chance.choice(near)
            else:
                sizes[key] = _other_size(key, size, number, chance)
        made.append(_with_sizes(call, _bounded(sizes, alone), chance if number % 2 else None))
    return made


def _bounded(sizes: dict[str, int], alone: str) -> dict[str, int]:
    """Halve sizes until their product fits in an int, in which launchers compute."""
    while math.prod(sizes.values()) > _LARGEST_PRODUCT:
        most = max((key for key in sizes if key != alone), key=lambda key: sizes[key], default=alone)
        sizes[most] = sizes[most] // 2 + 1
        if sizes[most] < 3:  # the others are small already
            sizes[alone] //= 2
    return sizes


def _other_size(key: str, size: int, number: int, chance: random.Random) -> int:
    if is_block(key):
        return chance.choice(_BLOCKS)
    if size <= 8:
        return chance.randint(0 if size == 0 else 1, 9)
    match number % 4:
        case 0:
            return max(size * chance.choice((1, 2, 3, 4)) // chance.choice((1, 2)), 1)
        case 1:
            return 32 * chance.randint(1, 128)
        case 2:
            return chance.randint(1, 300)
    return chance.randint(1, _LARGEST if "." in key else _LARGEST_INT)


def is_block(name: str) -> bool:
    """Whether a number is a thread count by its name, and no data size."""
    lowered = name.lower()
    return "thread" in lowered or ("block" in lowered and "blocks" not in lowered)


def _classes(call: CallSpec) -> dict[str, int]:
    """Every size that can vary: `x.0` is a dimension, a plain name an int."""
    joined = {f"{p[0]}.{p[1]}" for _, p in call.shared_sizes} | {one.name for one in call.relations}
    classes = {}
    for one in call.arguments:
        if one.has_shape:
            for dimension, size in enumerate(one.shape):
                if f"{one.name}.{dimension}" not in joined:
                    classes[f"{one.name}.{dimension}"] = size
        elif one.kind == "int" and isinstance(one.value, int) and one.name not in joined:
            classes[one.name] = one.value
    return classes


def _with_sizes(call: CallSpec, sizes: Mapping[str, int], chance: random.Random | None) -> CallSpec:
    same = {f"{b[0]}.{b[1]}": f"{a[0]}.{a[1]}" for a, b in call.shared_sizes}
    sizes = {**sizes, **{one.name: one.times * sizes[one.other] for one in call.relations}}
    arguments = []
    for one in call.arguments:
        if one.has_shape:
            keys = [f"{one.name}.{d}" for d in range(len(one.shape))]
            one = replace(one, shape=tuple(sizes[same.get(key, key)] for key in keys))
        elif one.kind == "int" and one.name in sizes:
            one = replace(one, value=sizes[one.name])
        elif one.kind == "float" and chance is not None and isinstance(one.value, float):
            one = replace(one, value=one.value * chance.uniform(0.5, 2.0) + 1e-3)
        elif one.kind == "bool" and chance is not None:
            one = replace(one, value=chance.random() < 0.5)
        arguments.append(one)
    return replace(call, arguments=tuple(arguments), multiprocessors=chance.choice((60, 132, 148)) if chance else 132)


# -- guessing the first call --

SHAPES: tuple[tuple[int, ...], ...] = ((64, 256), (256,), (128, 96), (4, 64, 256), (2, 8, 64, 64), (4, 16, 24, 32))
_VECTORS = ("weight", "bias", "gamma", "beta", "scale")  # names of tensors with one element per column
DTYPES = ("f32", "f16", "bf16", "i32", "i64", "u8")


def guesses(names: Sequence[str], kinds: Sequence[str], specified: Specified) -> list[tuple[CallArgument, ...]]:
    """First calls to try. Unspecified tensors get one shape and dtype, then mixtures."""
    open_tensors = [i for i, kind in enumerate(kinds) if kind.endswith("tensor") and names[i] not in specified]
    if not open_tensors:  # larger numbers too: a grid of 0 launches nothing
        return [
            tuple(_guess(n, k, d, (), specified, times) for n, k in zip(names, kinds, strict=True))
            for times in (1, 16)
            for d in (DTYPES if any(kind.endswith("pointer") for kind in kinds) else DTYPES[:1])
        ]
    made = []
    for dtype, first in (*((d, d) for d in DTYPES), *((d, i) for d in DTYPES[:2] for i in ("i32", "i64"))):
        for mixture in _mixtures([names[i] for i in open_tensors]):
            shapes = dict(zip(open_tensors, mixture, strict=True))
            made.append(
                tuple(
                    _guess(n, k, first if [i] == open_tensors[:1] else dtype, shapes.get(i, ()), specified)
                    for i, (n, k) in enumerate(zip(names, kinds, strict=True))
                )
            )
    left_out = [i for i in open_tensors if kinds[i].startswith("optional")]
    if left_out:
        made += [tuple(replace(g, value=None) if i in left_out else g for i, g in enumerate(one)) for one in made]
    return made


def _mixtures(names: Sequence[str]) -> list[tuple[tuple[int, ...], ...]]:
    """Shapes for tensors: vectors by their names, all alike, then mixtures."""
    count = len(names)
    if count == 0:
        return [()]
    vectors = [any(word in name.lower() for word in _VECTORS) for name in names]
    made: list[tuple[tuple[int, ...], ...]] = []
    for shape in SHAPES:
        last = shape[-1:]
        if any(vectors) and not all(vectors):
            made.append(tuple(last if is_vector else shape for is_vector in vectors))
        made.append((shape,) * count)
        if count > 1:
            rest = count - 1
            made.append((shape[:1], *(shape,) * rest))  # positions of rows
            for other in (last, (*last, 96), (96, *last), shape[:1], (96, *shape[1:])):
                made.append((shape, *(other,) * rest))
                made.append((*(shape,) * rest, other))
            for other in ((*last, 96), (96, *last)):
                made.append((shape, *(other,) * (rest - 1), (*shape[:-1], 96)))
                made.append((shape, *(other,) * (rest - 1), (96,)))
        if count == 3 and len(shape) == 2:
            made.append((shape, (*last, 1), (*shape[:1], 1)))  # a matrix and column vectors
    return list(dict.fromkeys(one for one in made if len(one) == count))


def _guess(
    name: str, kind: str, dtype: str, shape: tuple[int, ...], specified: Specified, times: int = 1
) -> CallArgument:
    if name in specified:
        return _as_specified(specified[name], kind, dtype)
    if kind == "optional tensor" or kind == "tensor":
        return CallArgument(name, "tensor", dtype, shape)
    if "pointer" in kind:
        return CallArgument(name, "tensor", kind.rpartition(" ")[2] or dtype, (POINTER_ELEMENTS,), is_pointer=True)
    if kind.startswith("optional"):
        return CallArgument(name, kind.rpartition(" ")[2], value=None)
    if kind == "int":
        return CallArgument(name, "int", value=_int_guess(name, times))
    if kind == "float":
        return CallArgument(name, "float", value=1e-3)
    if kind == "bool":
        return CallArgument(name, "bool", value=False)
    return CallArgument(name, kind, value=(1, 1) if kind == "ints" else "")


def _as_specified(one: CallArgument, kind: str, dtype: str) -> CallArgument:
    """The specified argument. A pointer keeps no shape here: it is checked against the accesses later."""
    if one.kind == "int" and kind.endswith("float"):
        return replace(one, kind="float", value=float(one.value))  # type: ignore[arg-type]
    if not one.has_shape:
        return one
    if "pointer" in kind:
        known = kind.rpartition(" ")[2] or one.dtype or dtype
        return replace(one, dtype=known, shape=(POINTER_ELEMENTS,), is_pointer=True)
    return replace(one, dtype=one.dtype or DTYPES[0])


def _int_guess(name: str, times: int) -> int:
    if is_block(name):
        return 256 // times
    lowered = name.lower()
    if "offset" in lowered:
        return 0
    return times * {"b": 3, "t": 40, "c": 96, "nh": 6, "oc": 192, "v": 320, "vp": 384, "n": 960, "m": 128, "k": 64}.get(
        lowered, 64
    )
