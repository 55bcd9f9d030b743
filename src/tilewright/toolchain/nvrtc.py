"""NVRTC through ctypes: one program in, log, PTX, cubin and lowered names out. No policy.

Not through cuda.bindings: a compile child then needs no package beyond this one and starts in a tenth of a second,
and the library that compiles is the very file the toolkit named, which is part of every build's identity.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tilewright.toolchain.errors import ToolchainError

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
    """What NVRTC made of a program. `status` is its result code; PTX may be there where the cubin is not."""

    status: int
    log: str
    ptx: str
    cubin: bytes
    symbols: tuple[str | None, ...]  # the lowered name of each name expression


class Nvrtc:
    """One loaded NVRTC library. Calls may come from several threads; NVRTC itself serialises what it must."""

    def __init__(self, library: Path, builtins: Path | None) -> None:
        try:
            # Loaded first, so that libnvrtc finds it by name: the wheels' libnvrtc has no run path to it.
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
