"""Plans in process on an NVIDIA GPU, through the driver API, on torch's memory and streams.

The driver's facts are to be had here without torch; what runs plans is in `executor`.
"""

from tilewright.devices.cuda.driver import DriverError, device_uuid, driver_version, gpu_profile, profiles
from tilewright.devices.cuda.launcher import launcher_available

__all__ = ["DriverError", "device_uuid", "driver_version", "gpu_profile", "launcher_available", "profiles"]
