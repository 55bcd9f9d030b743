"""Finds the compiler, its headers and its inspection tools. Looks at files only: nothing is loaded or run here.

Order: the PyPI wheels (`nvidia/cu13` beside the other packages), then CUDA_HOME, then /usr/local/cuda.
CuTe's headers: TILEWRIGHT_CUTLASS_INCLUDE, then the nvidia-cutlass wheel, then flashinfer's copy.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tilewright.toolchain.errors import ToolchainError

INSTALL_COMPILER = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"
INSTALL_CUTE = "pip install --no-deps nvidia-cutlass"
INSTALL_TOOLS = "pip install nvidia-cuda-nvdisasm"

SYSTEM_TOOLKIT = Path("/usr/local/cuda")

_ENVIRONMENT = ("CUDA_HOME", "TILEWRIGHT_CUTLASS_INCLUDE")


@dataclass(frozen=True)
class Toolkit:
    """One compiler with the headers that go with it."""

    library: Path  # libnvrtc
    builtins: Path | None  # libnvrtc-builtins, which the wheels' libnvrtc does not find by itself
    include_dirs: tuple[Path, ...]  # CUDA's own and CCCL's
    cute_include: Path | None
    compiler: str  # "NVRTC 13.0.88"
    headers: str  # versions of CUDA's headers and CCCL
    cutlass: str | None  # "4.2.0"
    nvdisasm: Path | None

    @property
    def search_path(self) -> tuple[Path, ...]:
        """Every include directory, in the order the compiler searches them."""
        return ((self.cute_include,) if self.cute_include else ()) + self.include_dirs

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same source could build differently."""
        stat = self.library.stat()
        return f"{self.compiler}|{stat.st_size}|{self.headers}|{self.cutlass}"


def find_toolkit() -> Toolkit:
    """The toolkit of this environment; raises `ToolchainError` saying what to install where there is none."""
    return _find(tuple(os.environ.get(name, "") for name in _ENVIRONMENT))


@lru_cache(maxsize=4)
def _find(environment: tuple[str, str]) -> Toolkit:
    cuda_home, cutlass_directory = environment
    roots = [*_wheel_roots(), *([Path(cuda_home)] if cuda_home else []), SYSTEM_TOOLKIT]
    for root in roots:
        library = _first(root / "lib", "libnvrtc.so.*") or _first(root / "lib64", "libnvrtc.so.*")
        if library is not None:
            return _toolkit_at(root, library, roots, cutlass_directory)
    tried = ", ".join(str(root) for root in roots)
    raise ToolchainError(f"no NVRTC library found (looked in {tried}); run: {INSTALL_COMPILER}")


def _toolkit_at(root: Path, library: Path, roots: list[Path], cutlass_directory: str) -> Toolkit:
    include = root / "include"
    if not (include / "cuda_fp16.h").is_file():
        raise ToolchainError(f"{library} has no CUDA headers beside it (looked in {include}); run: {INSTALL_COMPILER}")
    # A wheel set without CCCL (torch brings one) is completed from the next place that has it.
    cccl = next((r / "include" / "cccl" for r in (root, *roots) if (r / "include" / "cccl").is_dir()), None)
    cute_include = _cute_include(cutlass_directory)
    return Toolkit(
        library=library,
        builtins=_first(library.parent, "libnvrtc-builtins.so.*"),
        # CuTe writes <cccl/cuda/std/...>, so the directory above CCCL's own is searched too, after the compiler's.
        include_dirs=tuple(dict.fromkeys((include, cccl, cccl.parent))) if cccl else (include,),
        cute_include=cute_include,
        compiler=f"NVRTC {_compiler_version(root, library)}",
        headers=f"CUDA {_cuda_header_version(include)}, CCCL {_cccl_version(cccl) if cccl else 'absent'}",
        cutlass=_cutlass_version(cute_include) if cute_include else None,
        nvdisasm=_tool(roots, "nvdisasm"),
    )


def _wheel_roots() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(place) / "cu13" for place in spec.submodule_search_locations]


def _cute_include(directory: str) -> Path | None:
    if directory:
        if not (Path(directory) / "cute" / "tensor.hpp").is_file():
            raise ToolchainError(
                f"TILEWRIGHT_CUTLASS_INCLUDE is {directory}, which has no cute/tensor.hpp; "
                "point it at CUTLASS's include directory or unset it"
            )
        return Path(directory)
    places = (("cutlass_library", "source/include"), ("flashinfer", "data/cutlass/include"))
    for package, inside in places:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            candidate = Path(place) / inside
            if (candidate / "cute" / "tensor.hpp").is_file():
                return candidate
    return None


def _first(directory: Path, pattern: str) -> Path | None:
    """The shortest match: `libnvrtc.so.13` rather than `libnvrtc.so.13.0.88`; the `.alt` build does not match."""
    return min(directory.glob(pattern), key=lambda path: (len(path.name), path.name), default=None)


def _tool(roots: list[Path], name: str) -> Path | None:
    for root in roots:
        if (root / "bin" / name).is_file():
            return root / "bin" / name
    return None


def _compiler_version(root: Path, library: Path) -> str:
    # A wheel's full version is in the name of its dist-info; a system toolkit's in the library's real name.
    for information in (root.parent.parent).glob("nvidia_cuda_nvrtc-*.dist-info"):
        if root.parent.name == "nvidia":
            return information.name.removesuffix(".dist-info").rpartition("-")[2]
    return library.resolve().name.partition(".so.")[2]


def _cuda_header_version(include: Path) -> str:
    number = _defined(include / "cuda_runtime_api.h", "CUDART_VERSION")
    return f"{number // 1000}.{number % 1000 // 10}" if number is not None else "unknown"


def _cccl_version(cccl: Path) -> str:
    number = _defined(cccl / "cuda" / "std" / "__cccl" / "version.h", "CCCL_VERSION")
    return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}" if number is not None else "unknown"


def _cutlass_version(include: Path) -> str:
    header = include / "cutlass" / "version.h"
    parts = [_defined(header, f"CUTLASS_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join("?" if part is None else str(part) for part in parts)


def _defined(header: Path, macro: str) -> int | None:
    if not header.is_file():
        return None
    found = re.search(rf"^\s*#\s*define\s+{macro}\s+(\d+)", header.read_text(errors="replace"), re.MULTILINE)
    return int(found.group(1)) if found else None
