"""The null driver of null_driver.c as Python sees it, the launchers over it, and host memory for plans to run in."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tilewright.devices.inputs import TORCH_DTYPE
from tilewright.records import TensorSpec

HERE = Path(__file__).parent
LAUNCHER_SOURCE = HERE.parents[2] / "src" / "tilewright" / "devices" / "cuda" / "launcher.c"
CONTEXT = 0xC0DE
STREAM = 0x57
_BODY = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p))


class _Function(ctypes.Structure):
    _fields_ = [("body", _BODY), ("parameter_count", ctypes.c_int), ("sizes", ctypes.c_int * 16)]


def compile_shared(source: Path, target: Path, *flags: str) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    command = [compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags]
    subprocess.run([*command, str(source), "-o", str(target), "-ldl"], check=True)


def cuda_header_folder() -> Path:
    """Where cuda.h is: in the wheels, or in a toolkit."""
    found = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (found.submodule_search_locations or ())] if found is not None else []
    headers = [header for folder in wheels for header in folder.glob("*/include/cuda.h")]
    headers.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include" / "cuda.h")
    for header in headers:
        if header.exists():
            return header.parent
    pytest.skip("cuda.h is not installed (nvidia-cuda-runtime)")


class NullDriver:
    """The library, its log, and functions to launch."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "libnullcuda.so")
        compile_shared(HERE / "null_driver.c", Path(self.path), f"-I{cuda_header_folder()}")
        self.library = ctypes.CDLL(self.path)
        self.library.null_log.restype = ctypes.c_char_p
        self.library.null_current.restype = ctypes.c_void_p
        self.library.null_reset.argtypes = [ctypes.c_void_p]
        self._kept: list[object] = []

    def reset(self, context: int | None = CONTEXT) -> None:
        self.library.null_reset(context)

    def fail(self, calls: int, code: int) -> None:
        self.library.null_fail(calls, code)

    @property
    def log(self) -> list[str]:
        return str(self.library.null_log().decode()).splitlines()

    @property
    def current(self) -> int | None:
        found: int | None = self.library.null_current()
        return found

    def function(self, sizes: tuple[int, ...], body: Callable[[Any], None] | None = None) -> int:
        """A handle to launch: a kernel whose parameters have `sizes`, run as `body` on their addresses."""
        made = _Function(_BODY(body) if body else _BODY(), len(sizes), (ctypes.c_int * 16)(*sizes))
        self._kept.append(made)
        return ctypes.addressof(made)


def compiled_launcher_module(folder: Path) -> Any:
    """launcher.c, compiled now: what is tested is the source, not what happens to be installed."""
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").exists():
        pytest.skip("Python.h is not installed")
    target = folder / "_launcher.abi3.so"
    compile_shared(LAUNCHER_SOURCE, target, f"-I{include}")
    loader = importlib.machinery.ExtensionFileLoader("_launcher", str(target))
    spec = importlib.util.spec_from_loader("_launcher", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


class HostMemory:
    """Host memory in the place of a device's; `captured` and `elsewhere` are what a test says they are."""

    def __init__(self) -> None:
        self.captured = False
        self.elsewhere = False
        self.stream_handle = STREAM
        self.stream: Callable[[], int] = lambda: self.stream_handle
        self.entered = 0
        self.zeros_made = 0

    def is_elsewhere(self) -> bool:
        return self.elsewhere

    @contextlib.contextmanager
    def here(self) -> Any:
        self.entered += 1
        yield

    def is_capturing(self) -> bool:
        return self.captured

    def allocator(self, spec: TensorSpec) -> Callable[[], torch.Tensor]:
        def allocate() -> torch.Tensor:
            # Garbage on purpose: whoever relies on zeros is found out. Aligned as device memory is.
            raw = torch.full((spec.storage_bytes + 256,), 0x5A, dtype=torch.uint8)
            start = -raw.data_ptr() % 256
            part = raw[start : start + spec.storage_bytes].view(TORCH_DTYPE[spec.dtype])
            return part.as_strided(spec.shape, spec.stride, part.storage_offset())

        return allocate

    def zeros(self, size_bytes: int) -> torch.Tensor:
        self.zeros_made += 1
        return torch.zeros(size_bytes, dtype=torch.uint8)
