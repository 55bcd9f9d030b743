"""Readable names for dimensions and results found by probing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.records import Kind, SizeFormula, SizeTerm
from tilewright.tasks.questions import ProbeAnswer
from tilewright.tasks.reading.python_source import usable_name

ONE = "one"  # the dimension of every axis of size 1
_IMAGES = ("batch", "channels", "depth", "height", "width")
_PARTS = {(1, 2): "half", (1, 4): "quarter", (2, 1): "twice"}


def dimension_names(answer: ProbeAnswer, results: Sequence[str], kind: Kind, avoid: Sequence[str]) -> dict[str, str]:
    """A name for every dimension label of a probe, from the tensor and axis where it first occurs."""
    following = {one.name for one in answer.dimensions if one.formula is not None}
    names: dict[str, str] = {}
    for label, name in _product_names(answer, kind).items():
        names[label] = usable_name(name, (*avoid, *names.values()))
    inputs = [*enumerate(answer.tensors)]
    # A tensor that is broadcast over the result, such as a bias of [1, n, 1, 1], is named after the weights.
    inputs.sort(key=lambda one: kind is Kind.CONVOLUTION and one[0] > 0 and one[1].dimensions[:1] == (ONE,))
    for position, one in inputs:
        weight = kind is Kind.CONVOLUTION and position > 0
        plain_names = _axis_names(len(one.dimensions), kind, weight)
        # A transposed convolution has its input channels first.
        if weight and len(one.dimensions) >= 3 and one.dimensions[0] in names:
            plain_names = (plain_names[1], plain_names[0], *plain_names[2:])
        for label, plain in zip(one.dimensions, plain_names, strict=True):
            if label in names or label in following:
                continue
            if label == ONE:
                names[label] = usable_name(ONE, (*avoid, *names.values()))
                continue
            taken = {*avoid, *names.values()}
            wanted = plain if plain not in taken else f"{one.name}_{plain}"
            names[label] = usable_name(wanted, taken)
    return names | following_names(answer, results, kind, names, avoid)


def following_names(
    answer: ProbeAnswer,
    results: Sequence[str],
    kind: Kind,
    names: Mapping[str, str],
    avoid: Sequence[str],
) -> dict[str, str]:
    """Names for dimensions given by a formula over named dimensions."""
    formulas = {one.name: one.formula for one in answer.dimensions if one.formula is not None}
    axes = [
        (label, f"{tensor}_{plain}")
        for tensor, shape in [
            *((one.name, one.dimensions) for one in answer.tensors),
            *zip(results, (one.shape for one in answer.outputs), strict=True),
        ]
        for label, plain in zip(shape, _axis_names(len(shape), kind, False), strict=True)
    ]
    made: dict[str, str] = {}
    for label, place in axes:
        if isinstance(label, str) and label in formulas and label not in (*names, *made):
            taken = {*avoid, *names.values(), *made.values()}
            made[label] = usable_name(part_name(formulas[label].renamed(names)) or place, taken)
    return made


def part_name(formula: SizeFormula) -> str:
    """`half_cols`, `twice_cols`; "" for any other formula."""
    for (above, below), word in _PARTS.items():
        if len(formula.names) == 1 and formula == SizeFormula((SizeTerm(above, formula.names),), 0, below):
            return f"{word}_{formula.names[0]}"
    return ""


def _product_names(answer: ProbeAnswer, kind: Kind) -> dict[str, str]:
    """m, n and k of a matrix product; {} if it does not look like one."""
    matrices = [one for one in answer.tensors if len(one.dimensions) >= 2]
    if kind is not Kind.MATMUL or len(matrices) < 2 or not answer.outputs or len(answer.outputs[0].shape) < 2:
        return {}
    shape = answer.outputs[0].shape
    inner = [label for label in matrices[0].dimensions if label in matrices[1].dimensions and label not in shape]
    if len(inner) != 1:
        return {}
    outer = {label: name for label, name in zip(shape[-2:], ("m", "n"), strict=True) if isinstance(label, str)}
    return {**outer, inner[0]: "k"}


def _axis_names(rank: int, kind: Kind, weight: bool) -> tuple[str, ...]:
    if rank == 1:
        return ("n",)
    if weight and 3 <= rank <= 5:
        return ("out_channels", "in_channels", *(f"kernel_{name}" for name in _IMAGES[2 + 5 - rank :]))
    if rank == 2:
        return ("rows", "cols")
    if rank == 4 and kind in (Kind.ATTENTION, Kind.SOFTMAX, Kind.MATMUL):
        return ("batch", "heads", "rows", "cols")
    if rank == 3 and kind not in (Kind.CONVOLUTION, Kind.POOLING):
        return ("batch", "rows", "cols")
    if 3 <= rank <= 5:
        return (*_IMAGES[:2], *_IMAGES[2 + 5 - rank :])
    return tuple(f"d{axis}" for axis in range(rank))


def output_names(count: int, returned: Sequence[str], taken: Sequence[str]) -> tuple[str, ...]:
    """Names for results: those in the return statement if usable, else y or y0, y1, ..."""
    wanted = list(returned) if len(returned) == count else []
    if not wanted or {*wanted} & {*taken} or len({*wanted}) < count:
        single = next((name for name in ("y", "out", "result") if name not in taken), "y")
        wanted = [single] if count == 1 else [f"y{number}" for number in range(count)]
    named: list[str] = []
    for name in wanted:
        named.append(usable_name(name, (*taken, *named), "y"))
    return tuple(named)
