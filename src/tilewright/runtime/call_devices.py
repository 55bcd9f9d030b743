"""The device a call runs on: a CUDA device, or the emulated GPU for CPU tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

import torch

from tilewright.devices.cuda import DriverError, profiles
from tilewright.kernel_file import CallError, Op
from tilewright.records import PROFILES, GpuProfile
from tilewright.runtime.errors import NotOnCuda, OperationError

PROFILE_VARIABLE = "TILEWRIGHT_EMULATE"


def check_tensors(op: Op, values: Sequence[object]) -> None:
    """Raises `CallError` where a tensor parameter got something else."""
    for one, value in zip(op.tensors, values, strict=True):
        if value is not None and not isinstance(value, torch.Tensor):
            raise CallError(f"{op.name}(): {one.name} is a tensor; found {type(value).__name__}; give a torch tensor")


CallDevice = int | GpuProfile  # a CUDA device's index, or the GPU that is emulated


def device_of_call(op: Op, tensors: Sequence[torch.Tensor | None]) -> CallDevice:
    """The CUDA device that all tensors are on, or the emulated GPU where all are on the CPU.

    An op that takes no tensor runs on the current CUDA device, or emulated where there is none.
    """
    first: tuple[str, torch.device] | None = None
    for name, tensor in zip((one.name for one in op.tensors), tensors, strict=True):
        if tensor is None:
            continue
        device = tensor.device
        if device.type not in ("cuda", "cpu"):
            raise NotOnCuda(
                f"{op.name}: {name} is on {device}; kernel files run on CUDA tensors, and on CPU tensors in the "
                f"emulator; pass {name}.cuda() or {name}.cpu()"
            )
        if first is None:
            first = (name, device)
        elif device != first[1]:
            raise NotOnCuda(f"{op.name}: {first[0]} is on {first[1]} and {name} on {device}; move them to one device")
    if first is None:
        return torch.cuda.current_device() if torch.cuda.is_available() else emulated_profile()
    return emulated_profile() if first[1].type == "cpu" else first[1].index


def check_one_device(op: Op, values: Sequence[object]) -> None:
    """Fake results take their device from the inputs, so these must agree."""
    devices = {value.device for value in values if isinstance(value, torch.Tensor)}
    if len(devices) > 1:
        one, other = sorted(map(str, devices))[:2]
        raise NotOnCuda(f"{op.name}: its tensors are on {one} and on {other}; move them to one device")


def check_on_cpu(op: Op, tensors: Sequence[torch.Tensor | None]) -> None:
    """The emulator takes CPU tensors only."""
    for name, tensor in zip((one.name for one in op.tensors), tensors, strict=True):
        if tensor is not None and tensor.device.type != "cpu":
            raise NotOnCuda(
                f"{op.name}: {name} is on {tensor.device}; the emulator takes CPU tensors: pass {name}.cpu()"
            )


def resolve_device(op: str, device: int | str | torch.device | None, values: Sequence[object]) -> CallDevice:
    """The device to prepare or explain for: `device` (`"cpu"` is the emulator), else CUDA, else the emulator."""
    if isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu":
        return emulated_profile()
    if device is None and not torch.cuda.is_available():
        return emulated_profile()
    return device_index(op, device, values)


def emulated_profile() -> GpuProfile:
    """The GPU to emulate for CPU tensors: TILEWRIGHT_EMULATE, else this machine's GPU, else an H200."""
    named = os.environ.get(PROFILE_VARIABLE, "").strip()
    if named:
        try:
            return named_profile(named)
        except ValueError as error:
            raise OperationError(f"{PROFILE_VARIABLE} is {named!r}: {error}") from None
    return _local_profile() or PROFILES["H200"]


@cache
def _local_profile() -> GpuProfile | None:
    try:
        found = profiles()
    except DriverError:
        return None
    return found[0] if found else None


def device_index(op: str, device: int | str | torch.device | None, values: Sequence[object]) -> int:
    """The index of `device` if given, else of the first CUDA tensor in `values`, else of the current device."""
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
        raise NotOnCuda(
            f"{op}: kernel files run on CUDA devices, not on {found}; say device='cuda:0', or 'cpu' to emulate"
        )
    return torch.cuda.current_device() if found.index is None else found.index


def named_profile(gpu: GpuProfile | str) -> GpuProfile:
    if isinstance(gpu, GpuProfile):
        return gpu
    plain = gpu.lower().replace(" ", "")
    for name, profile in PROFILES.items():
        if name.lower().replace(" ", "") == plain:
            return profile
    raise ValueError(f"no GPU is known as {gpu!r}; known are {', '.join(PROFILES)}")
