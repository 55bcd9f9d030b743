"""Which structures are written for convolutions, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.playbook.convolutions import direct, hopper, tensor_cores
from tilewright.playbook.convolutions.direct import direct_convolution
from tilewright.playbook.convolutions.draft import draft_convolution
from tilewright.playbook.convolutions.hopper import hopper_convolution
from tilewright.playbook.convolutions.program import Convolution
from tilewright.playbook.convolutions.tensor_cores import tensor_core_convolution
from tilewright.playbook.file_text import Fragment
from tilewright.playbook.products.plan_text import Choices

_TURING = "sm_75"
_HOPPER = "sm_90a"

_MANY_CHANNELS = 32
_MUCH_WORK = 1 << 32  # multiplications

WriteConvolution = Callable[[Convolution, str, Choices], Fragment]


@dataclass(frozen=True)
class ConvolutionWay:
    """A way to write convolutions: each by the first of its structures that can."""

    id: str
    summary: str
    write: WriteConvolution
    resort: bool = False  # as a structure has it


DRAFT = ConvolutionWay("draft-convolution", "first version: one thread per result", draft_convolution)


def convolution_ways(convolutions: tuple[Convolution, ...], arch: str) -> tuple[ConvolutionWay, ...]:
    """The ways that take every convolution of a chain on a GPU, the most promising first."""
    found: list[ConvolutionWay] = []
    if arch == _HOPPER and any(hopper.can_write(one) for one in convolutions):
        found.append(HOPPER)
    if arch != _TURING and any(_written(one) is tensor_core_convolution for one in convolutions):
        found.append(TENSOR_CORES)
    if any(direct.can_write(one) for one in convolutions):
        found.append(DIRECT)
    if all(_is_large(one) for one in convolutions):
        found[1:] = [replace(one, resort=True) for one in found[1:]]
    return tuple(found)


def _is_large(convolution: Convolution) -> bool:
    """Whether only the quickest tensor cores will do: behind the first way the others lose by factors."""
    wide = min(convolution.channels.size, convolution.filters.size) >= _MANY_CHANNELS
    return wide and convolution.multiplications >= _MUCH_WORK


def _written(convolution: Convolution) -> WriteConvolution:
    """By tensor cores, except where every result is made from one channel."""
    if tensor_cores.can_write(convolution) and not convolution.is_depthwise:
        return tensor_core_convolution
    return direct_convolution if direct.can_write(convolution) else draft_convolution


def _on_tensor_cores(convolution: Convolution, op_line: str, choices: Choices) -> Fragment:
    return _written(convolution)(convolution, op_line, choices)


def _on_hopper(convolution: Convolution, op_line: str, choices: Choices) -> Fragment:
    write = hopper_convolution if hopper.can_write(convolution) else _written(convolution)
    return write(convolution, op_line, choices)


def _directly(convolution: Convolution, op_line: str, choices: Choices) -> Fragment:
    write = direct_convolution if direct.can_write(convolution) else draft_convolution
    return write(convolution, op_line, choices)


HOPPER = ConvolutionWay(
    "convolution-hopper", "TMA and wgmma: a copy of x with channels last, taps as shifted rows of it", _on_hopper
)
TENSOR_CORES = ConvolutionWay(
    "convolution-tensor-cores", "a product on tensor cores that reads x as it lies", _on_tensor_cores
)
DIRECT = ConvolutionWay("convolution-direct", "a thread makes a patch of results in registers", _directly)
