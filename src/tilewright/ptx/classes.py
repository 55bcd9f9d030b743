"""Instruction classes and floating-point operation counts of PTX instructions, by opcode and modifiers.

Each opcode's class is defined with its lowering; this module covers classes that depend on types and state spaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class InstructionClass(str, Enum):
    """The values are shown to users."""

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
class OpcodeWork:
    """Operations of one execution: `per_lane` for each active lane, `per_warp` once per warp."""

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
_PACKED_INTEGERS = frozenset(("s16x2", "u16x2", "pred"))


def opcode_of(ptx_text: str) -> tuple[str, ...]:
    """Opcode and modifiers: `@%p1 ld.global.f32 %f1, [%rd1]` -> `ld`, `global`, `f32`."""
    text = _GUARD.sub("", ptx_text, count=1) if ptx_text.startswith("@") else ptx_text
    words = text.split(None, 1)
    return tuple(words[0].rstrip(";").split(".")) if words else ("",)


def class_of_type(parts: tuple[str, ...]) -> InstructionClass:
    """The class of arithmetic on integers or floats."""
    kind = _FLOAT_TYPES.get(_type(parts))
    return InstructionClass.INTEGER if kind is None else kind[0]


def class_of_division(parts: tuple[str, ...]) -> InstructionClass:
    return InstructionClass.SPECIAL_FUNCTION if _type(parts) in _FLOAT_TYPES else InstructionClass.INTEGER


def class_of_load(parts: tuple[str, ...]) -> InstructionClass:
    return _LOADS[_space(parts)]


def class_of_store(parts: tuple[str, ...]) -> InstructionClass:
    return _STORES.get(_space(parts), InstructionClass.OTHER)


def class_of_atomic(parts: tuple[str, ...]) -> InstructionClass:
    return _ATOMICS.get(_space(parts), InstructionClass.OTHER)


def work_of(parts: tuple[str, ...], kind: InstructionClass) -> OpcodeWork | None:
    """Floating-point or tensor-core operations of one execution; None if there are none."""
    opcode = parts[0]
    if kind is InstructionClass.TENSOR:
        return _tensor_work(parts)
    if kind is InstructionClass.SPECIAL_FUNCTION:
        lanes = _FLOAT_TYPES.get(_type(parts), (kind, FlopKind.SPECIAL_FUNCTION, 1))[2]
        return OpcodeWork(FlopKind.SPECIAL_FUNCTION, lanes, 0)
    if opcode not in _ONE_OPERATION and opcode not in _TWO_OPERATIONS:
        return None
    float_type = _FLOAT_TYPES.get(_type(parts))
    if float_type is None:
        return None
    return OpcodeWork(float_type[1], float_type[2] * (2 if opcode in _TWO_OPERATIONS else 1), 0)


def _tensor_work(parts: tuple[str, ...]) -> OpcodeWork | None:
    shape = next((found for part in parts if (found := _SHAPE.match(part)) is not None), None)
    if shape is None:
        return None
    rows, columns, depth = (int(extent) for extent in shape.groups())
    if parts[0] == "wgmma":  # of four warps
        rows //= 4
    types = [part for part in parts if part in _TENSOR_TYPES or part in ("f32", "s32")]
    # d.a.b.c; a wmma on f16 names only d and c, and multiplies f16
    multiplied = types[1] if len(types) > 2 else "f16"
    kind = _TENSOR_TYPES.get(multiplied)
    if kind is None:
        return None
    return OpcodeWork(kind, 0, 2 * rows * columns * depth)


def _space(parts: tuple[str, ...]) -> str:
    for part in parts:
        space = part.split("::")[0]
        if space in ("global", "shared", "local", "const", "param"):
            return space
    return ""


def _type(parts: tuple[str, ...]) -> str:
    """The operand type: the last one (`set.lt.u32.f32` compares f32)."""
    for part in reversed(parts):
        if part in _FLOAT_TYPES or (part[:1] in ("b", "s", "u") and part[1:].isdigit()) or part in _PACKED_INTEGERS:
            return part
    return ""
