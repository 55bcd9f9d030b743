"""One emulator and one reference for all of the referee's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.tasks.in_process import JudgingReference
from tests.verify import tasks

from tilewright.devices.child_device import EmulatedDevice
from tilewright.records import PROFILES, Task
from tilewright.reference import AnyReference
from tilewright.verify import Referee


@pytest.fixture(scope="session")
def reference() -> Iterator[JudgingReference]:
    """In this process, which saves starting torch once more for each process that runs tests."""
    with JudgingReference(tasks.SOURCE, tasks.FUNCTION) as made:
        yield made


@pytest.fixture(scope="session")
def emulator() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(PROFILES["H200"]) as device:
        yield device


@pytest.fixture
def referee(reference: AnyReference, emulator: EmulatedDevice) -> Callable[[Task], Referee]:
    return lambda task: Referee(task, reference, emulator=emulator)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from threads, and lose much where other tests run beside these."""
    torch.set_num_threads(1)
