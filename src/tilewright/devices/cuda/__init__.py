"""Runs plans in process on an NVIDIA GPU, through the driver API, on torch's memory and streams.

This package imports no torch; `executor`, which runs plans, does.
"""

from tilewright.devices.cuda.driver import DriverError, device_uuid, driver_version, gpu_profile, profiles
from tilewright.devices.cuda.launcher import launcher_available

__all__ = ["DriverError", "device_uuid", "driver_version", "gpu_profile", "launcher_available", "profiles"]
