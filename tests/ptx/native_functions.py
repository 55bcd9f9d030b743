"""The arithmetic of the interpreter as functions on numpy arrays: compiled on the spot, bound with ctypes.

The functions in the headers are inline, so a file of loops around them is generated and compiled: once for any
processor and once for wide vectors, as the interpreter is.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tilewright.ptx

CORE = Path(tilewright.ptx.__file__).parent / "core"
_SOURCES = (
    "numeric.c",
    "numeric_convert.c",
    "tensor.c",
    "tensor_multiply.c",
    "tensor_multiply_wide.c",
)
_FLAGS = (
    "-std=gnu11", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-Wall",
    "-Wextra", "-Wno-psabi", "-Werror",
)  # fmt: skip
_WIDE = '#if defined(__x86_64__)\n#pragma GCC target("avx2,fma,f16c")\n#endif\n'

_C_TYPE = {
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "s32": "int32_t", "f32": "float",
    "f64": "double",
}  # fmt: skip
_DTYPE = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "s32": np.int32, "f32": np.float32,
    "f64": np.float64,
}  # fmt: skip

# name -> result and operands; a trailing "mode" is a rounding, "flag" an int, the same for all lanes.
SIGNATURES: dict[str, str] = {
    "f16_to_f32": "f32 u16",
    "bf16_to_f32": "f32 u16",
    "cvt_f32_bf16": "f32 u16",
    "e4m3_to_f32": "f32 u8",
    "e5m2_to_f32": "f32 u8",
    "f32_to_f16": "u16 f32",
    "f32_to_bf16": "u16 f32",
    "f32_to_tf32_rna": "u32 f32",
    "f32_to_f16_mode": "u16 f32 mode flag",
    "f32_to_bf16_mode": "u16 f32 mode flag",
    "f32_to_e4m3": "u8 f32",
    "f32_to_e5m2": "u8 f32",
    "f64_to_f32_mode": "f32 f64 mode",
    "f64_to_f16": "u16 f64",
    "f64_to_bf16": "u16 f64",
    "f32_to_s32_rz": "s32 f32",
    "rint_f32": "f32 f32 mode",
    "rint_f64": "f64 f64 mode",
    **{f"{op}_{kind}": "u16 u16 u16" for op in ("add", "sub", "mul") for kind in ("f16", "bf16")},
    **{f"fma_{kind}": "u16 u16 u16 u16" for kind in ("f16", "bf16")},
    **{f"{op}_{kind}": "u16 u16 u16" for op in ("min", "max", "min_nan", "max_nan") for kind in ("f16", "bf16")},
    **{f"relu_{kind}": "u16 u16" for kind in ("f16", "bf16")},
    "saturate_f16": "u16 u16",
    "saturate_f32": "f32 f32",
    "flush_f32": "f32 f32",
    **{f"{op}_f32": "f32 f32 f32" for op in ("add", "sub", "mul", "div", "min", "max", "min_nan", "max_nan")},
    **{f"{op}_f64": "f64 f64 f64" for op in ("min", "max", "min_nan", "max_nan")},
    "fma_f32": "f32 f32 f32 f32",
    **{f"{op}_f32_mode": "f32 f32 f32 mode" for op in ("add", "sub", "mul", "div")},
    **{f"{op}_f64_mode": "f64 f64 f64 mode" for op in ("add", "sub", "mul", "div")},
    "fma_f32_mode": "f32 f32 f32 f32 mode",
    "fma_f64_mode": "f64 f64 f64 f64 mode",
    **{f"{op}_{kind}_mode": f"{kind} {kind} mode" for op in ("sqrt", "rcp") for kind in ("f32", "f64")},
    **{
        f"{op}{ftz}_f32": "f32 f32"
        for op in ("ex2", "lg2", "sin", "cos", "rcp_approx", "rsqrt", "sqrt_approx")
        for ftz in ("", "_ftz")
    },
    "tanh_f32": "f32 f32",
    **{f"div_{how}{ftz}_f32": "f32 f32 f32" for how in ("approx", "full") for ftz in ("", "_ftz")},
    "rcp_approx_ftz_f64": "f64 f64",
    "rsqrt_ftz_f64": "f64 f64",
    "ex2_f16": "u16 u16",
    "ex2_ftz_bf16": "u16 u16",
    "tanh_f16": "u16 u16",
    "tanh_bf16": "u16 u16",
}


def _loop(name: str, signature: str) -> str:
    result, *operands = signature.split()
    arrays = [o for o in operands if o not in ("mode", "flag")]
    scalars = [o for o in operands if o in ("mode", "flag")]
    parameters = [f"const {_C_TYPE[o]}* a{j}" for j, o in enumerate(arrays)] + [f"int {o}" for o in scalars]
    arguments = [f"a{j}[i]" for j in range(len(arrays))] + ["(tw_rounding)mode" if o == "mode" else o for o in scalars]
    return (
        f"void lanes_{name}(int n, {_C_TYPE[result]}* d, {', '.join(parameters)}) "
        f"{{ for (int i = 0; i < n; ++i) d[i] = tw_{name}({', '.join(arguments)}); }}"
    )


_CONVERT = """
void lanes_convert(int n, uint64_t* d, int conversion, const uint64_t* a, const uint64_t* b) {
  for (int i = 0; i < n; ++i) d[i] = tw_convert(conversion, a[i], b[i]);
}
"""


def _compile(*arguments: str) -> None:
    done = subprocess.run(["cc", *_FLAGS, f"-I{CORE}", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@lru_cache(maxsize=1)
def core() -> ctypes.CDLL:
    """What is not inline, once for both: its symbols are there for the libraries of loops."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "core.so"
        _compile(*(str(CORE / name) for name in _SOURCES), "-o", str(target), "-lm")
        library = ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)
    library.tw_fragment_offset.restype = ctypes.c_int64
    library.tw_fragment_offset.argtypes = [ctypes.c_int] * 4 + [ctypes.c_int64]
    return library


@lru_cache(maxsize=2)
def _loops(wide: bool) -> ctypes.CDLL:
    loops = "\n".join(_loop(name, signature) for name, signature in SIGNATURES.items())
    text = (_WIDE if wide else "") + '#include "numeric.h"\n' + loops + _CONVERT
    core()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "loops.c", Path(folder) / "loops.so"
        source.write_text(text)
        _compile(str(source), "-o", str(target), "-lm")
        return ctypes.CDLL(str(target))


class Functions:
    """`functions("add_f16", a, b)`: arrays in, an array out."""

    def __init__(self, wide: bool) -> None:
        self.native = core()
        self.loops = _loops(wide)

    def __call__(self, name: str, *arguments: NDArray[np.generic] | int) -> NDArray[np.generic]:
        result, *operands = SIGNATURES[name].split()
        assert len(arguments) == len(operands), (name, len(arguments))
        kept, passed = [], []
        count = 0
        for operand, argument in zip(operands, arguments, strict=True):
            if operand in ("mode", "flag"):
                passed.append(ctypes.c_int(int(argument)))
                continue
            array = np.ascontiguousarray(argument, dtype=_DTYPE[operand])
            kept.append(array)
            count = array.size
            passed.append(ctypes.c_void_p(array.ctypes.data))  # type: ignore[arg-type]
        out = np.empty(count, dtype=_DTYPE[result])
        getattr(self.loops, f"lanes_{name}")(ctypes.c_int(count), ctypes.c_void_p(out.ctypes.data), *passed)
        return out

    def convert(self, modifiers: str, a: NDArray[np.uint64], b: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
        conversion = self.native.tw_conversion_find(modifiers.encode())
        assert conversion >= 0, modifiers
        first = np.ascontiguousarray(a, dtype=np.uint64)
        second = np.ascontiguousarray(first if b is None else b, dtype=np.uint64)
        out = np.empty(first.size, dtype=np.uint64)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (out, first, second)]
        self.loops.lanes_convert(ctypes.c_int(first.size), pointers[0], ctypes.c_int(conversion), *pointers[1:])
        return out
