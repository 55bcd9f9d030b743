"""NVRTC through ctypes, and the search for the CUDA toolkit.

Not through cuda.bindings, so that a compile child needs no further package and starts in a tenth of a second, and so
that the library is exactly the file in the toolkit's fingerprint, which is part of every cache key.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


class ToolchainError(RuntimeError):
    """No compiler found, a compile child that cannot be started, or an invalid answer of the compiler."""


SUCCESS = 0
OUT_OF_MEMORY = 1
COMPILATION = 6

_Program = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "nvrtcCreateProgram": (
        ctypes.POINTER(_Program),
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ),
    "nvrtcDestroyProgram": (ctypes.POINTER(_Program),),
    "nvrtcAddNameExpression": (_Program, ctypes.c_char_p),
    "nvrtcCompileProgram": (_Program, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "nvrtcGetLoweredName": (_Program, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)),
    **{f"nvrtcGet{what}Size": (_Program, ctypes.POINTER(ctypes.c_size_t)) for what in ("ProgramLog", "PTX", "CUBIN")},
    **{f"nvrtcGet{what}": (_Program, ctypes.c_char_p) for what in ("ProgramLog", "PTX", "CUBIN")},
}


@dataclass(frozen=True)
class Compilation:
    """NVRTC's output. `status` is its result code; PTX may exist without a cubin."""

    status: int
    log: str
    ptx: str
    cubin: bytes
    symbols: tuple[str | None, ...]  # the lowered name of each name expression


class Nvrtc:
    """A loaded NVRTC library; thread-safe."""

    def __init__(self, library: Path, builtins: Path | None) -> None:
        try:
            # Loaded first: the wheels' libnvrtc has no rpath to it.
            self._builtins = ctypes.CDLL(str(builtins)) if builtins else None
            self._library = ctypes.CDLL(str(library))
            for name, arguments in _SIGNATURES.items():
                function = getattr(self._library, name)
                function.argtypes = list(arguments)
                function.restype = ctypes.c_int
        except (OSError, AttributeError) as error:
            raise ToolchainError(f"{library} cannot be used as NVRTC: {error}; reinstall nvidia-cuda-nvrtc") from error

    def compile(self, source: str, name: str, options: Sequence[str], expressions: Sequence[str]) -> Compilation:
        """Compile one translation unit; a rejected source is a `Compilation` with a log, not an exception."""
        program = _Program()
        self._check(
            self._library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None),
            "nvrtcCreateProgram",
        )
        try:
            for expression in expressions:
                status = self._library.nvrtcAddNameExpression(program, expression.encode())
                self._check(status, "nvrtcAddNameExpression")
            encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
            status = self._library.nvrtcCompileProgram(program, len(options), encoded)
            return Compilation(
                status,
                self._text(program, "ProgramLog").decode(errors="replace"),
                self._text(program, "PTX").decode(errors="replace"),
                self._bytes(program, "CUBIN") if status == SUCCESS else b"",
                tuple(self._lowered(program, expression) for expression in expressions) if status == SUCCESS else (),
            )
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, program: _Program, what: str) -> bytes:
        size = ctypes.c_size_t()
        if getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) != SUCCESS or not size.value:
            return b""
        buffer = ctypes.create_string_buffer(size.value)
        if getattr(self._library, f"nvrtcGet{what}")(program, buffer) != SUCCESS:
            return b""
        return buffer.raw

    def _text(self, program: _Program, what: str) -> bytes:
        return self._bytes(program, what).rstrip(b"\0")

    def _lowered(self, program: _Program, expression: str) -> str | None:
        name = ctypes.c_char_p()
        status = self._library.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(name))
        return name.value.decode() if status == SUCCESS and name.value is not None else None

    def _check(self, status: int, call: str) -> None:
        if status != SUCCESS:
            raise ToolchainError(f"{call} answered {status}; the NVRTC library may be damaged: reinstall it")


@lru_cache(maxsize=2)
def load_nvrtc(library: Path, builtins: Path | None) -> Nvrtc:
    """The library, loaded once per process."""
    return Nvrtc(library, builtins)


# -- the toolkit: compiler, headers, nvdisasm --

INSTALL_COMPILER = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"
INSTALL_CUTE = "pip install --no-deps nvidia-cutlass"
INSTALL_TOOLS = "pip install nvidia-cuda-nvdisasm"

SYSTEM_TOOLKIT = Path("/usr/local/cuda")

_ENVIRONMENT = ("CUDA_HOME", "TILEWRIGHT_CUTLASS_INCLUDE")


@dataclass(frozen=True)
class Toolkit:
    """A compiler with its headers."""

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
    number = _defined(include / "cuda_runtime_api.h", "CUDART_VERSION")
    cuda = f"{number // 1000}.{number % 1000 // 10}" if number is not None else "unknown"
    number = _defined(cccl / "cuda" / "std" / "__cccl" / "version.h", "CCCL_VERSION") if cccl else None
    cccl_version = f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}" if number is not None else "unknown"
    cccl_version = cccl_version if cccl else "absent"
    return Toolkit(
        library=library,
        builtins=_first(library.parent, "libnvrtc-builtins.so.*"),
        # CuTe writes <cccl/cuda/std/...>, so the directory above CCCL's own is searched too, after the compiler's.
        include_dirs=tuple(dict.fromkeys((include, cccl, cccl.parent))) if cccl else (include,),
        cute_include=cute_include,
        compiler=f"NVRTC {_compiler_version(root, library)}",
        headers=f"CUDA {cuda}, CCCL {cccl_version}",
        cutlass=_cutlass_version(cute_include) if cute_include else None,
        nvdisasm=next((r / "bin" / "nvdisasm" for r in roots if (r / "bin" / "nvdisasm").is_file()), None),
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


def _compiler_version(root: Path, library: Path) -> str:
    # A wheel's full version is in the name of its dist-info; a system toolkit's in the library's real name.
    for information in (root.parent.parent).glob("nvidia_cuda_nvrtc-*.dist-info"):
        if root.parent.name == "nvidia":
            return information.name.removesuffix(".dist-info").rpartition("-")[2]
    return library.resolve().name.partition(".so.")[2]


def _cutlass_version(include: Path) -> str:
    header = include / "cutlass" / "version.h"
    parts = [_defined(header, f"CUTLASS_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join("?" if part is None else str(part) for part in parts)


def _defined(header: Path, macro: str) -> int | None:
    if not header.is_file():
        return None
    found = re.search(rf"^\s*#\s*define\s+{macro}\s+(\d+)", header.read_text(errors="replace"), re.MULTILINE)
    return int(found.group(1)) if found else None
