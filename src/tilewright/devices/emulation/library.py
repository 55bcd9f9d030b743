"""Library steps beside emulated launches: torch computes them on the CPU, on the emulator's own bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.devices.emulation.plan_memory import PlanMemory
from tilewright.records import Buffer, LibraryCall, TensorArgument

if TYPE_CHECKING:
    import torch


class LibraryRefused(Exception):
    """A library step that torch refused, or whose result is not what the plan declares."""

    def __init__(self, message: str, call: LibraryCall) -> None:
        super().__init__(message)
        self.call = call


def run_library_step(call: LibraryCall, target: Buffer, memory: PlanMemory) -> None:
    """Call the operator and put its result into `target`; raises `LibraryRefused`."""
    import torch  # a plan without library steps needs none of it

    from tilewright.devices.cuda.library_steps import LibraryStep, LibraryStepError

    names = {value.name for value in call.arguments if isinstance(value, TensorArgument)}
    try:
        with torch.autocast("cpu", enabled=False):
            result = LibraryStep(call, target).run({name: tensor_copy(memory, name) for name in names})
    except LibraryStepError as error:
        raise LibraryRefused(str(error), call) from error
    storage = torch.empty_strided(target.spec.shape, target.spec.stride, dtype=result.dtype)
    storage.copy_(result)
    memory.write(target.name, storage_bytes(storage, target.spec.storage_bytes))


def tensor_copy(memory: PlanMemory, name: str) -> torch.Tensor:
    """A CPU tensor with the elements and strides of one in the emulator's memory."""
    import torch

    from tilewright.devices.cuda.torch_dtypes import TORCH_DTYPE

    spec = memory.spec(name)
    raw = torch.empty(spec.storage_bytes, dtype=torch.uint8)
    if spec.storage_bytes:
        raw.copy_(torch.from_numpy(memory.content(name)))
    return raw.view(TORCH_DTYPE[spec.dtype]).as_strided(spec.shape, spec.stride)


def storage_bytes(tensor: torch.Tensor, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The tensor's storage from its first element on, `size` bytes of it, as a copy."""
    import torch

    elements = size // tensor.element_size()
    flat = tensor.detach().as_strided((elements,), (1,))
    copied: np.ndarray[tuple[int], np.dtype[np.uint8]] = flat.clone().view(torch.uint8).numpy()
    return copied
