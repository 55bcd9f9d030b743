"""Which GPU a call, a preparation or a question is about."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilewright.kernel_file import CallError, Op
from tilewright.records import PROFILES, GpuProfile
from tilewright.runtime.errors import NotOnCuda


def check_tensors(op: Op, values: Sequence[object]) -> None:
    """Whatever stands where the op has a tensor is one."""
    names = [parameter.name for parameter in op.parameters if parameter.scalar is None]
    for name, value in zip(names, values, strict=True):
        if value is not None and not isinstance(value, torch.Tensor):
            raise CallError(f"{op.name}(): {name} is a tensor; found {type(value).__name__}; give a torch tensor")


def device_of(op: Op, tensors: Sequence[torch.Tensor | None]) -> int:
    """The one CUDA device that all tensors of a call lie on; the current one where the op takes no tensor."""
    names = [parameter.name for parameter in op.parameters if parameter.scalar is None]
    first: tuple[str, torch.device] | None = None
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            continue
        device = tensor.device
        if device.type != "cuda":
            raise NotOnCuda(
                f"{op.name}: {name} is on {device}; kernel files run on CUDA tensors, and running them on CPU tensors "
                f"takes an emulator that this version does not have; pass {name}.cuda()"
            )
        if first is None:
            first = (name, device)
        elif device != first[1]:
            raise NotOnCuda(f"{op.name}: {first[0]} is on {first[1]} and {name} on {device}; move them to one device")
    return device_index(op.name, None, ()) if first is None else first[1].index


def device_index(op: str, device: int | str | torch.device | None, values: Sequence[object]) -> int:
    """The CUDA device meant: as said, else that of the first CUDA tensor among `values`, else the current one."""
    if device is None:
        for value in values:
            if isinstance(value, torch.Tensor) and value.is_cuda:
                return value.get_device()
    if not torch.cuda.is_available():
        raise NotOnCuda(
            f"{op}: torch sees no CUDA device on this machine; "
            'explain(..., gpu="H200") answers for a GPU that is not here'
        )
    if device is None:
        return torch.cuda.current_device()
    if isinstance(device, int):
        return device
    found = torch.device(device)
    if found.type != "cuda":
        raise NotOnCuda(f"{op}: kernel files run on CUDA devices, not on {found}; say device='cuda:0'")
    return torch.cuda.current_device() if found.index is None else found.index


def named_profile(gpu: GpuProfile | str) -> GpuProfile:
    if isinstance(gpu, GpuProfile):
        return gpu
    try:
        return PROFILES[gpu]
    except KeyError:
        raise ValueError(f"no GPU is known as {gpu!r}; known are {', '.join(PROFILES)}") from None
