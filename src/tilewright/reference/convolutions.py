"""In the reference's process: which f32 convolutions it makes at a task's own sizes.

PyTorch computes some f32 convolutions in TF32 and others in true f32, by their shapes alone, so what is multiplied does
not matter here: the reference is run on tensors without memory, and only where it looks at values on the GPU itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.records import Task
from tilewright.reference.convolution_questions import ConvolutionRequest, ListAnswer
from tilewright.reference.torch_calls import own_arguments

_KNOWN = frozenset({"convolution", "_convolution"})
_MOST_CHANNELS = 8  # in each group
_ARGUMENTS = 9  # of `aten.convolution`, with which `_convolution` begins


@dataclass(frozen=True)
class TensorLayout:
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        return cls(tuple(tensor.shape), tuple(tensor.stride()))


@dataclass(frozen=True)
class F32Convolution:
    """One f32 convolution, by all that decides how PyTorch computes it."""

    x: TensorLayout
    weight: TensorLayout
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    on_cpu: bool

    @property
    def is_likely_f32(self) -> bool:
        """A rule; on an H200 it is right for 94 of the 98 tasks with convolutions in KernelBench's first two levels."""
        return self.x.shape[1] // self.groups <= _MOST_CHANNELS and (self.groups > 1 or not self.transposed)


def list_convolutions(function: Callable[..., Any], request: ConvolutionRequest) -> ListAnswer:
    found = convolutions_of(function, request.task)
    return ListAnswer(None if found is None else tuple(one.is_likely_f32 for one in found))


def computed_in_f32(call: Callable[[], Any]) -> bool:
    """Whether a call makes f32 convolutions that PyTorch computes in f32, by the rule, or some that are not known."""
    seen = _Watch()
    with torch.no_grad(), seen:
        call()
    return seen.others or (bool(seen.found) and all(one.is_likely_f32 for one in seen.found))


def convolutions_of(function: Callable[..., Any], task: Task) -> tuple[F32Convolution, ...] | None:
    """The f32 convolutions of the task's own call, each kind once; None where it cannot be told what is done."""
    for device in ("meta", "cuda") if torch.cuda.is_available() else ("meta",):
        seen = _Watch()
        try:
            with torch.no_grad(), torch.device(device), seen:
                function(**own_arguments(task, device))
        except Exception:  # code that looks at values cannot run without them
            continue
        return None if seen.others else tuple(seen.found)
    return None


class _Watch(TorchDispatchMode):
    """Notes the f32 convolutions that are made while it is active, and whether there were some it does not know."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and asking for it imports the compiler, which takes seconds

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[F32Convolution, None] = {}
        self.others = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.rpartition("::")[2]
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if "convolution" in name and any(one.dtype == torch.float32 for one in tensors):
            if name in _KNOWN and len(args) >= _ARGUMENTS:
                self.found[_convolved(*args[:_ARGUMENTS])] = None
            else:
                self.others = True
        return func(*args, **(kwargs or {}))


def _convolved(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> F32Convolution:
    return F32Convolution(
        TensorLayout.of(x),
        TensorLayout.of(weight),
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        transposed,
        tuple(output_padding),
        groups,
        x.device.type == "cpu",
    )
