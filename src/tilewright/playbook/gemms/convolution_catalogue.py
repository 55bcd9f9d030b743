"""Which structures are written for convolutions, in the order in which they are tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.playbook.file_text import Fragment
from tilewright.playbook.gemms import (
    convolution_direct,
    convolution_hopper,
    convolution_points,
    convolution_streamed,
    convolution_strips,
    convolution_tensor_cores,
)
from tilewright.playbook.gemms.convolution_direct import direct_convolution
from tilewright.playbook.gemms.convolution_hopper import hopper_convolution
from tilewright.playbook.gemms.convolution_points import point_convolution
from tilewright.playbook.gemms.convolution_program import Convolution
from tilewright.playbook.gemms.convolution_streamed import streamed_convolution
from tilewright.playbook.gemms.convolution_strips import strip_convolution
from tilewright.playbook.gemms.convolution_tensor_cores import tensor_core_convolution
from tilewright.playbook.gemms.convolution_tensor_cores_rows import has_long_rows, long_row_convolution
from tilewright.playbook.gemms.plan_text import Choices

_TURING = "sm_75"
_HOPPER = "sm_90a"

_MANY_CHANNELS = 32
_ON_HOPPER = "convolution-hopper"
_OVER_CHANNELS = "convolution-hopper-channels"
_MUCH_WORK = 1 << 32  # multiplications
_LITTLE_WORK = 200  # multiplications for every element of x and y

WriteConvolution = Callable[[Convolution, str, Choices], Fragment]
Writer = Callable[[Convolution], WriteConvolution]  # what writes a convolution


@dataclass(frozen=True)
class ConvolutionWay:
    """A way to write convolutions: each by the first of its structures that can."""

    id: str
    summary: str
    writer: Writer
    resort: bool = False  # as a structure has it

    def write(self, convolution: Convolution, op_line: str, choices: Choices) -> Fragment:
        return self.writer(convolution)(convolution, op_line, choices)


def convolution_ways(convolutions: tuple[Convolution, ...], arch: str) -> tuple[ConvolutionWay, ...]:
    """The ways that take every convolution of a chain on a GPU, the most promising first."""
    found: list[ConvolutionWay] = []
    if arch == _HOPPER:
        able = sorted(
            (one for one in convolutions if convolution_hopper.can_write(one)), key=lambda one: -one.multiplications
        )
        rest = [one for one in convolutions if one not in able]
        least = 1 if all(map(_is_written, convolutions)) else len(able)
        found += [
            _hopper_way(tuple(able[:count]), len(able))
            for count in range(len(able), 0, -1)
            if count >= least and all(map(_is_written, rest))
        ]
    if not all(map(_is_written, convolutions)):
        return tuple(found)
    if arch != _TURING and any(_written(one) is tensor_core_convolution for one in convolutions):
        found += [LONG_ROWS] if any(map(has_long_rows, convolutions)) else []
        found.append(TENSOR_CORES)
    if any(convolution_direct.can_write(one) for one in convolutions):
        found.append(DIRECT)
    if all(_is_large(one) for one in convolutions):
        first = [one for one in found if one.id.startswith(_ON_HOPPER)]
        others = found[len(first) :]
        if first:
            tried = first + others[: 1 if all(map(_moves_much, convolutions)) else 0]
        else:
            tried = [one for one in others if one is not DIRECT]
        found = [one if one in tried else replace(one, resort=True) for one in found]
    if arch == _HOPPER and any(map(convolution_strips.can_write, convolutions)):
        found.insert(0, STRIPS)
    if arch != _TURING and any(map(_are_points, convolutions)):
        found.insert(0, _points_way(found[0].writer if found else _written))
    if arch == _HOPPER and any(map(convolution_streamed.pays, convolutions)):
        found.insert(0, _streamed_way(found[0].writer if found else _written))
    return tuple(found)


def channel_ways(convolutions: tuple[Convolution, ...]) -> tuple[ConvolutionWay, ...]:
    """The ways that do work over channels before anything is stored."""
    able = tuple(one for one in convolutions if convolution_hopper.can_write(one))
    summary = (
        "TMA and wgmma: a copy of x with channels last, taps as shifted rows of it; what follows over channels is done "
        "on the sums in registers"
    )
    return (ConvolutionWay(_OVER_CHANNELS, summary, _on_hopper(able)),)


def pays_over_channels(convolution: Convolution) -> bool:
    """Whether work over channels is quicker before anything is stored: little is left to store, or rows of the result
    begin anywhere, which a pass over them is slow on. Otherwise that runs at memory's speed, and the registers do not.
    """
    assert convolution.across is not None
    reduced = not convolution.across.outputs[0].varies
    return reduced or math.prod(one.results.size for one in convolution.windows) % 4 != 0


def _are_points(convolution: Convolution) -> bool:
    return convolution_points.can_write(convolution) and convolution_points.is_bound_by_memory(convolution)


def _points_way(otherwise: Writer) -> ConvolutionWay:
    """For the convolutions of single positions; the others as the way that would have been first."""
    summary = "a product on tensor cores: weights that stay in shared memory times positions that stream past them"
    return ConvolutionWay("convolution-points", summary, _first(point_convolution, _are_points, otherwise))


def _streamed_way(otherwise: Writer) -> ConvolutionWay:
    """For the convolutions that memory bounds; the others as the way that would have been first."""
    summary = "TMA and wgmma: x as it lies, positions in registers, times weights that stay in shared memory"
    return ConvolutionWay(
        "convolution-streamed", summary, _first(streamed_convolution, convolution_streamed.pays, otherwise)
    )


def _is_large(convolution: Convolution) -> bool:
    """Whether only the quickest tensor cores will do: the ways without them lose by factors."""
    wide = min(convolution.channels.size, convolution.filters.size) >= _MANY_CHANNELS
    return wide and convolution.multiplications >= _MUCH_WORK


def _moves_much(convolution: Convolution) -> bool:
    """Whether a copy of x in another form takes long beside the arithmetic."""
    read = convolution.channels.size * math.prod(one.length.size for one in convolution.windows)
    made = convolution.filters.size * math.prod(one.results.size for one in convolution.windows)
    moved = read + made
    return convolution.multiplications <= _LITTLE_WORK * moved * convolution.batch.size * convolution.groups


def _on_tensor_cores(convolution: Convolution) -> bool:
    """Not where every result is made from one channel."""
    return convolution_tensor_cores.can_write(convolution) and not convolution.is_depthwise


def _is_written(convolution: Convolution) -> bool:
    return _on_tensor_cores(convolution) or convolution_direct.can_write(convolution)


def _written(convolution: Convolution) -> WriteConvolution:
    return tensor_core_convolution if _on_tensor_cores(convolution) else direct_convolution


def _first(write: WriteConvolution, takes: Callable[[Convolution], bool], otherwise: Writer) -> Writer:
    """By `write` what it takes."""
    return lambda one: write if takes(one) else otherwise(one)


def _on_hopper(chosen: tuple[Convolution, ...]) -> Writer:
    return _first(hopper_convolution, lambda one: one in chosen, _written)


def _hopper_way(chosen: tuple[Convolution, ...], able: int) -> ConvolutionWay:
    """For these convolutions; a file has no room for many, and then the largest are worth it most."""
    summary = "TMA and wgmma: a copy of x with channels last, taps as shifted rows of it"
    if len(chosen) == able:
        return ConvolutionWay(_ON_HOPPER, summary, _on_hopper(chosen))
    few = f"{summary}; of the {len(chosen)} largest, the rest by mma.sync"
    return ConvolutionWay(f"{_ON_HOPPER}-largest-{len(chosen)}", few, _on_hopper(chosen))


LONG_ROWS = ConvolutionWay(
    "convolution-rows",
    "a product on tensor cores: rows of x in shared memory, the taps along them as shifts",
    _first(long_row_convolution, lambda one: _written(one) is tensor_core_convolution and has_long_rows(one), _written),
)
TENSOR_CORES = ConvolutionWay("convolution-tensor-cores", "a product on tensor cores that reads x as it lies", _written)
STRIPS = ConvolutionWay(
    "convolution-strips",
    "strips of planes copied to shared memory and results back, sums in registers",
    _first(strip_convolution, convolution_strips.can_write, _written),
)
DIRECT = ConvolutionWay(
    "convolution-direct",
    "a thread makes a patch of results in registers",
    _first(direct_convolution, convolution_direct.can_write, _written),
)
