"""The driver layer and the executor through cuda-bindings, in a child process whose libcuda is the null driver."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.devices.cuda.null_driver import HERE, compile_shared, cuda_header_folder

from tilewright.devices.cuda.driver import DriverError, check, error_name, largest_cluster
from tilewright.records import known_gpu

ROOT = HERE.parents[2]

BEGIN = """
import ctypes
from dataclasses import replace
from tests.devices.cuda.null_driver import HostMemory
from tests.devices.cuda.test_prepared import buffer, launch
from tilewright.devices.cuda import DriverError, driver_version, profiles
from tilewright.devices.cuda.executor import Executor
from tilewright.devices.cuda.launcher import PythonLauncher, open_library
from tilewright.records import BoundPlan

library = open_library()
library.null_log.restype = ctypes.c_char_p
executor = Executor(0, PythonLauncher(library), HostMemory())
CUBIN = b"\\x7fELF and so on"

def plan(symbol="k", **changes):
    return BoundPlan((buffer("y", 4),), (), (replace(launch(symbol, "y"), **changes),))

def refusal(cubin=CUBIN, index=0, **changes):
    try:
        executor.prepare(cubin, plan(**changes), (), ("y",))
    except DriverError as error:
        print(error, "|", error.kernel, error.line)
    else:
        print("not refused")
"""


PROFILE = "print(driver_version()); print(profiles()[0]); print(executor.profile.arch, len(profiles()))"
MODULES = """
for smem in (0, 100_000, 60_000):
    executor.prepare(CUBIN, plan(dynamic_smem_bytes=smem), (), ("y",)).run((), ())
executor.prepare(CUBIN, plan(cluster=(16, 1, 1)), (), ("y",))
executor.prepare(CUBIN, plan(cluster=(8, 1, 1)), (), ("y",))
executor.prepare(CUBIN, plan(cooperative=True, grid=(132, 1, 1)), (), ("y",))
executor.close()
print(library.null_log().decode())
"""
REFUSALS = """
refusal(b"not a cubin")
refusal(symbol="missing")
refusal(dynamic_smem_bytes=1 << 20)
refusal(cooperative=True, grid=(10_000, 1, 1))
try:
    Executor(3, PythonLauncher(library), HostMemory())
except DriverError as error:
    print(error)
executor.memory.captured = True
try:
    executor.prepare(CUBIN, plan(), (), ("y",))
except RuntimeError as error:
    print(type(error).__name__, error)
"""

# Starting takes seconds, so it is done once; each script runs in a copy of what was started.
EACH = """
import os, sys
for script in sys.argv[1:]:
    sys.stdout.flush()
    copy = os.fork()
    if copy == 0:
        exec(script)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(copy, 0)[1] == 0, script
    print("-- next --")
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each script printed."""
    machine = tmp_path_factory.mktemp("machine")
    compile_shared(HERE / "null_driver.c", machine / "libcuda.so.1", f"-I{cuda_header_folder()}")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(machine), "PYTHONPATH": str(ROOT)}
    scripts = (PROFILE, MODULES, REFUSALS)
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + EACH, *scripts], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("-- next --\n")
    return {script: printed[i].splitlines() for i, script in enumerate(scripts)}


def test_profile_and_version(said: dict[str, list[str]]) -> None:
    version, profile, rest = said[PROFILE]
    assert version == "(13, 0)"
    assert rest == "sm_90a 1"
    for part in (
        "name='NVIDIA H200', cc=90, sms=132, smem_block=232448, smem_sm=233472, l2=62914560",
        "max_cluster=16",
    ):
        assert part in profile
    assert "bandwidth_gbs=4800.0" in profile


def test_modules_are_loaded_once_and_attributes_only_raised(said: dict[str, list[str]]) -> None:
    log = [line for line in said[MODULES] if line and not line.startswith(("launch", "context"))]
    assert log == ["load", "load function", "attribute 8 = 100000", "attribute 14 = 1", "unload"]


def test_refusals_name_the_kernel_and_the_line(said: dict[str, list[str]]) -> None:
    image, missing, smem, crowd, device, capture = said[REFUSALS]
    assert image.startswith("CUDA_ERROR_INVALID_IMAGE (200): load a module of 11 bytes")
    assert image.endswith("for k (plan line 5) | k 5")
    assert missing.startswith("CUDA_ERROR_NOT_FOUND (500): find kernel missing in its module")
    assert "allow kernel k 1048576 bytes of dynamic shared memory" in smem
    assert "64 fit on each of 132 multiprocessors; write device.sms * 64 or fewer" in crowd
    assert device == "CUDA_ERROR_INVALID_DEVICE (101): use cuda:3 where the driver shows 1 device(s)"
    assert capture.startswith("CaptureRefused")


def test_error_names() -> None:
    assert error_name(700) == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert error_name(123_456) == "CUDA_ERROR"
    with pytest.raises(DriverError, match=r"CUDA_ERROR_OUT_OF_MEMORY \(2\): hold it all"):
        check((2, None), "hold it all")
    assert check((0, 7), "") == 7


@pytest.mark.parametrize(
    ("name", "cc", "expected"),
    [
        ("NVIDIA H200", 90, 4800.0),
        ("NVIDIA H100 80GB HBM3", 90, 3350.0),
        ("NVIDIA A100-SXM4-80GB", 80, 2039.0),
        ("NVIDIA GeForce RTX 4090", 89, 1008.0),
        ("NVIDIA GeForce RTX 4060", 89, 0.0),
        ("NVIDIA A10G", 86, 0.0),
    ],
)
def test_the_vendor_figure_is_found_by_name(name: str, cc: int, expected: float) -> None:
    known = known_gpu(name, cc)
    assert (known.bandwidth_gbs if known else 0.0) == expected


def test_cluster_sizes() -> None:
    assert [largest_cluster(cc, cc >= 90) for cc in (75, 89, 90, 100, 120)] == [1, 1, 16, 16, 8]
