"""What kind of work a PTX instruction is, and how many floating-point operations it does. By its opcode alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class InstructionClass(str, Enum):
    """The value is the name people see."""

    FP64 = "fp64"
    FP32 = "fp32"
    FP16 = "fp16"  # and bf16
    INTEGER = "integer"
    MOVE = "move"
    CONVERSION = "conversion"
    SPECIAL_FUNCTION = "special function"
    TENSOR = "tensor"
    GLOBAL_LOAD = "global load"
    GLOBAL_STORE = "global store"
    GLOBAL_ATOMIC = "global atomic"
    SHARED_LOAD = "shared load"
    SHARED_STORE = "shared store"
    SHARED_ATOMIC = "shared atomic"
    LOCAL_LOAD = "local load"
    LOCAL_STORE = "local store"
    GENERIC_LOAD = "generic load"  # the space is in the address
    GENERIC_STORE = "generic store"
    GENERIC_ATOMIC = "generic atomic"
    CONSTANT_LOAD = "constant load"
    PARAMETER = "parameter"
    ASYNC_COPY = "asynchronous copy"
    WARP = "warp exchange"
    SYNC = "synchronisation"
    CONTROL = "control"
    OTHER = "other"


class FlopKind(str, Enum):
    FP64 = "fp64"
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    SPECIAL_FUNCTION = "special function"
    TENSOR_FP64 = "tensor fp64"
    TENSOR_TF32 = "tensor tf32"
    TENSOR_FP16 = "tensor fp16"
    TENSOR_BF16 = "tensor bf16"
    TENSOR_FP8 = "tensor fp8"
    TENSOR_INT8 = "tensor int8"
    TENSOR_INT4 = "tensor int4"
    TENSOR_BIT = "tensor bit"

    @property
    def is_tensor(self) -> bool:
        return self.value.startswith("tensor")


@dataclass(frozen=True)
class Work:
    """What one execution does. `per_lane` counts for each active lane, `per_warp` once for the whole warp."""

    kind: FlopKind
    per_lane: int
    per_warp: int


_GUARD = re.compile(r"@\s*!?\s*\S+\s+")
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")

_FLOAT_TYPES = {
    "f64": (InstructionClass.FP64, FlopKind.FP64, 1),
    "f32": (InstructionClass.FP32, FlopKind.FP32, 1),
    "f32x2": (InstructionClass.FP32, FlopKind.FP32, 2),
    "f16": (InstructionClass.FP16, FlopKind.FP16, 1),
    "f16x2": (InstructionClass.FP16, FlopKind.FP16, 2),
    "bf16": (InstructionClass.FP16, FlopKind.BF16, 1),
    "bf16x2": (InstructionClass.FP16, FlopKind.BF16, 2),
}
_TENSOR_TYPES = {
    "f64": FlopKind.TENSOR_FP64,
    "tf32": FlopKind.TENSOR_TF32,
    "f16": FlopKind.TENSOR_FP16,
    "bf16": FlopKind.TENSOR_BF16,
    "e4m3": FlopKind.TENSOR_FP8,
    "e5m2": FlopKind.TENSOR_FP8,
    "s8": FlopKind.TENSOR_INT8,
    "u8": FlopKind.TENSOR_INT8,
    "s4": FlopKind.TENSOR_INT4,
    "u4": FlopKind.TENSOR_INT4,
    "b1": FlopKind.TENSOR_BIT,
}
_ONE_OPERATION = frozenset(("add", "sub", "mul"))
_TWO_OPERATIONS = frozenset(("fma", "mad"))
_NO_OPERATION = frozenset(("min", "max", "abs", "neg", "set", "setp", "testp", "copysign"))
_ARITHMETIC = _ONE_OPERATION | _TWO_OPERATIONS | _NO_OPERATION
_SPECIAL_FUNCTIONS = frozenset(("sin", "cos", "tanh", "ex2", "lg2", "rcp", "sqrt", "rsqrt"))
_INTEGER = frozenset(
    (
        *("and", "or", "xor", "not", "cnot", "lop3", "shl", "shr", "shf", "bfe", "bfi", "bfind", "brev", "bmsk"),
        *("szext", "popc", "clz", "fns", "prmt", "sad", "dp4a", "dp2a", "addc", "subc", "madc", "mul24", "mad24"),
        *("rem", "slct", "selp", "vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset"),
    )
)
_OPCODE_CLASSES = {
    **dict.fromkeys(_INTEGER, InstructionClass.INTEGER),
    **dict.fromkeys(_SPECIAL_FUNCTIONS, InstructionClass.SPECIAL_FUNCTION),
    **dict.fromkeys(("mov", "cvta", "isspacep", "mapa", "getctarank"), InstructionClass.MOVE),
    "cvt": InstructionClass.CONVERSION,
    **dict.fromkeys(("shfl", "vote", "match", "redux", "activemask", "elect", "movmatrix"), InstructionClass.WARP),
    **dict.fromkeys(("bar", "barrier", "fence", "membar", "mbarrier"), InstructionClass.SYNC),
    **dict.fromkeys(
        ("bra", "brx", "call", "ret", "exit", "trap", "brkpt", "nanosleep", "pmevent", "setmaxnreg", "griddepcontrol"),
        InstructionClass.CONTROL,
    ),
    "ldmatrix": InstructionClass.SHARED_LOAD,
    "stmatrix": InstructionClass.SHARED_STORE,
    "mma": InstructionClass.TENSOR,
}
_LOADS = {
    "global": InstructionClass.GLOBAL_LOAD,
    "shared": InstructionClass.SHARED_LOAD,
    "local": InstructionClass.LOCAL_LOAD,
    "const": InstructionClass.CONSTANT_LOAD,
    "param": InstructionClass.PARAMETER,
    "": InstructionClass.GENERIC_LOAD,
}
_STORES = {
    "global": InstructionClass.GLOBAL_STORE,
    "shared": InstructionClass.SHARED_STORE,
    "local": InstructionClass.LOCAL_STORE,
    "param": InstructionClass.PARAMETER,
    "": InstructionClass.GENERIC_STORE,
}
_ATOMICS = {
    "global": InstructionClass.GLOBAL_ATOMIC,
    "shared": InstructionClass.SHARED_ATOMIC,
    "": InstructionClass.GENERIC_ATOMIC,
}
_BY_SPACE = {"ld": _LOADS, "ldu": _LOADS, "st": _STORES, "atom": _ATOMICS, "red": _ATOMICS}
_PACKED_INTEGERS = frozenset(("s16x2", "u16x2", "pred"))
_GROUP_WARPS = 4  # a wgmma is executed by four warps, each of which counts once


def opcode_of(ptx_text: str) -> tuple[str, ...]:
    """Opcode and modifiers of an instruction as written: `@%p1 ld.global.f32 %f1, [%rd1]` -> `ld`, `global`, `f32`."""
    text = _GUARD.sub("", ptx_text, count=1) if ptx_text.startswith("@") else ptx_text
    words = text.split(None, 1)
    return tuple(words[0].rstrip(";").split(".")) if words else ("",)


def classify(parts: tuple[str, ...]) -> InstructionClass:
    """The class of an instruction, from what `opcode_of` gives."""
    opcode, modifiers = parts[0], parts[1:]
    if opcode in _BY_SPACE:
        return _BY_SPACE[opcode].get(_space(modifiers), InstructionClass.OTHER)
    if opcode in _ARITHMETIC or opcode == "div":
        kind = _FLOAT_TYPES.get(_type(parts))
        if kind is None:
            return InstructionClass.INTEGER
        return InstructionClass.SPECIAL_FUNCTION if opcode == "div" else kind[0]
    if opcode == "cp":
        waits = any("wait" in modifier or "commit" in modifier or modifier == "mbarrier" for modifier in modifiers)
        return InstructionClass.SYNC if waits else InstructionClass.ASYNC_COPY
    if opcode == "wmma" and modifiers[:1] in (("load",), ("store",)):
        return (_LOADS if modifiers[0] == "load" else _STORES).get(_space(modifiers), InstructionClass.OTHER)
    if opcode in ("wmma", "wgmma", "tcgen05"):
        return InstructionClass.TENSOR if modifiers[:1] in (("mma",), ("mma_async",)) else InstructionClass.SYNC
    return _OPCODE_CLASSES.get(opcode, InstructionClass.OTHER)


def work_of(parts: tuple[str, ...]) -> Work | None:
    """Floating-point (or tensor-core) operations of one execution; None for an instruction that does none."""
    opcode = parts[0]
    kind = classify(parts)
    if kind is InstructionClass.TENSOR:
        return _tensor_work(parts)
    if kind is InstructionClass.SPECIAL_FUNCTION:
        lanes = _FLOAT_TYPES.get(_type(parts), (kind, FlopKind.SPECIAL_FUNCTION, 1))[2]
        return Work(FlopKind.SPECIAL_FUNCTION, lanes, 0)
    if opcode not in _ONE_OPERATION and opcode not in _TWO_OPERATIONS:
        return None
    float_type = _FLOAT_TYPES.get(_type(parts))
    if float_type is None:
        return None
    return Work(float_type[1], float_type[2] * (2 if opcode in _TWO_OPERATIONS else 1), 0)


def _tensor_work(parts: tuple[str, ...]) -> Work | None:
    shape = next((found for part in parts if (found := _SHAPE.match(part)) is not None), None)
    if shape is None:
        return None
    rows, columns, depth = (int(extent) for extent in shape.groups())
    types = [part for part in parts if part in _TENSOR_TYPES or part in ("f32", "s32")]
    # d.a.b.c; a wmma on f16 names only d and c, and multiplies f16
    multiplied = types[1] if len(types) > 2 else "f16"
    kind = _TENSOR_TYPES.get(multiplied)
    if kind is None:
        return None
    operations = 2 * rows * columns * depth
    return Work(kind, 0, operations // _GROUP_WARPS if parts[0] == "wgmma" else operations)


def _space(modifiers: tuple[str, ...]) -> str:
    for modifier in modifiers:
        space = modifier.split("::")[0]
        if space in ("global", "shared", "local", "const", "param"):
            return space
    return ""


def _type(parts: tuple[str, ...]) -> str:
    """The type operated on: the last one written (`set.lt.u32.f32` compares f32)."""
    for part in reversed(parts):
        if part in _FLOAT_TYPES or (part[:1] in ("b", "s", "u") and part[1:].isdigit()) or part in _PACKED_INTEGERS:
            return part
    return ""
