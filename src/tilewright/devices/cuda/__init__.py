"""Plans in process on an NVIDIA GPU, through the driver API, on torch's memory and streams.

What needs torch is imported when it is first asked for: the driver's facts are wanted without it too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tilewright.devices.cuda.driver import DriverError, driver_version, gpu_profile, profiles
from tilewright.devices.cuda.launcher import launcher_available

if TYPE_CHECKING:
    from tilewright.devices.cuda.executor import CaptureRefused, Executor, executor_of
    from tilewright.devices.cuda.library_steps import LibraryStepError
    from tilewright.devices.cuda.prepared import PreparedPlan
    from tilewright.devices.cuda.torch_dtypes import DTYPE_OF_TORCH, TORCH_DTYPE

__all__ = [
    "DTYPE_OF_TORCH",
    "TORCH_DTYPE",
    "CaptureRefused",
    "DriverError",
    "Executor",
    "LibraryStepError",
    "PreparedPlan",
    "driver_version",
    "executor_of",
    "gpu_profile",
    "launcher_available",
    "profiles",
]

_WITH_TORCH = {
    "DTYPE_OF_TORCH": "torch_dtypes",
    "TORCH_DTYPE": "torch_dtypes",
    "CaptureRefused": "executor",
    "Executor": "executor",
    "LibraryStepError": "library_steps",
    "PreparedPlan": "prepared",
    "executor_of": "executor",
}


def __getattr__(name: str) -> object:
    module = _WITH_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
