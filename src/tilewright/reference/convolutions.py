"""In the reference's process: the f32 convolutions that it calls at a task's own sizes.

PyTorch computes some f32 convolutions in TF32 and others in true f32, depending on shapes alone, so the reference is
run on meta tensors, or on the GPU where it depends on values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.records import Task
from tilewright.reference.protocol import ConvolutionRequest, ListAnswer
from tilewright.reference.torch_calls import own_arguments

_PARSED = frozenset({"convolution", "_convolution"})
_MOST_CHANNELS = 8  # in each group
_ARGUMENTS = 9  # of `aten.convolution`, with which `_convolution` begins


@dataclass(frozen=True)
class TensorLayout:
    """A tensor's shape and strides."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        return cls(tuple(tensor.shape), tuple(tensor.stride()))


@dataclass(frozen=True)
class F32Convolution:
    """One f32 convolution, with all that decides how PyTorch computes it."""

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
        """A heuristic, right on an H200 for 94 of the 98 tasks with convolutions in KernelBench levels 1 and 2."""
        return self.x.shape[1] // self.groups <= _MOST_CHANNELS and (self.groups > 1 or not self.transposed)


def list_convolutions(function: Callable[..., Any], request: ConvolutionRequest) -> ListAnswer:
    found = convolutions_of(function, request.task)
    return ListAnswer(None if found is None else tuple(one.is_likely_f32 for one in found))


def computed_in_f32(call: Callable[[], Any]) -> bool:
    """Whether a call's convolutions are computed in f32 by the heuristic, or some could not be parsed."""
    seen = _Watch()
    with torch.no_grad(), seen:
        call()
    return seen.others or (bool(seen.found) and all(one.is_likely_f32 for one in seen.found))


def convolutions_of(function: Callable[..., Any], task: Task) -> tuple[F32Convolution, ...] | None:
    """The distinct f32 convolutions of the task's call; None where they could not be observed."""
    for device in ("meta", "cuda") if torch.cuda.is_available() else ("meta",):
        seen = _Watch()
        try:
            with torch.no_grad(), torch.device(device), seen:
                function(**own_arguments(task, device))
        except Exception:  # code that depends on values does not run on meta tensors
            continue
        return None if seen.others else tuple(seen.found)
    return None


class _Watch(TorchDispatchMode):
    """Records the f32 convolutions called while it is active, and whether some could not be parsed."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and asking would import the compiler, which takes seconds

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[F32Convolution, None] = {}
        self.others = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.rpartition("::")[2]
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if "convolution" in name and any(one.dtype == torch.float32 for one in tensors):
            if name in _PARSED and len(args) >= _ARGUMENTS:
                x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args[:_ARGUMENTS]
                window = (tuple(stride), tuple(padding), tuple(dilation))
                layouts, rest = (TensorLayout.of(x), TensorLayout.of(weight)), tuple(output_padding)
                found = F32Convolution(*layouts, *window, transposed, rest, groups, x.device.type == "cpu")
                self.found[found] = None
            else:
                self.others = True
        return func(*args, **(kwargs or {}))
