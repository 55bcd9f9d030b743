"""One emulated H200 for all tests of this part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.devices.child_device import EmulatedDevice
from tilewright.records import PROFILES


@pytest.fixture(scope="session")
def emulator() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(PROFILES["H200"]) as device:
        yield device
