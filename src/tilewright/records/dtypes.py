"""Element types, with the names used in launch plans."""

from __future__ import annotations

import re
from enum import Enum


class DType(str, Enum):
    """An element type; the value is its name in plans."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"

    @classmethod
    def read(cls, text: str) -> DType:
        """Parse a dtype; PyTorch's names work too: bf16, bfloat16, torch.float16, half, int64. Raises `ValueError`."""
        name = text.strip().lower().removeprefix("torch.")
        short = re.sub(r"^(float|fp|uint|int)(?=\d)", lambda found: found[1][0], name)
        try:
            return cls(_OTHER_NAMES.get(name, short))
        except ValueError:
            raise ValueError(f"{text!r} is not a dtype; write one of {', '.join(cls)}") from None

    @property
    def itemsize(self) -> int:
        return _BYTES.get(self, 1)

    @property
    def cpp(self) -> str:
        return _CPP[self]

    @property
    def torch_name(self) -> str:
        """`float32`, `bfloat16`, `int64`."""
        return _TORCH.get(self) or self.value.replace("f", "float").replace("i", "int")

    @property
    def is_float(self) -> bool:
        return self.value[0] in "f" or self is DType.BF16

    @property
    def whole_numbers(self) -> tuple[int, int]:
        """The minimum and maximum of an integer type."""
        if self in (DType.BOOL, DType.U8):
            return 0, 1 if self is DType.BOOL else 255
        return -(1 << 8 * self.itemsize - 1), (1 << 8 * self.itemsize - 1) - 1

    def __str__(self) -> str:
        return self.value


_OTHER_NAMES = {"bfloat16": "bf16", "half": "f16", "float": "f32", "double": "f64", "long": "i64", "int": "i32"}
_TORCH = {DType.F8E4M3: "float8_e4m3fn", DType.F8E5M2: "float8_e5m2", DType.U8: "uint8"}  # all others follow a rule
_BYTES = {DType.F64: 8, DType.I64: 8, DType.F32: 4, DType.I32: 4, DType.F16: 2, DType.BF16: 2, DType.I16: 2}
_CPP = {
    DType.F64: "double",
    DType.F32: "float",
    DType.F16: "__half",
    DType.BF16: "__nv_bfloat16",
    DType.F8E4M3: "__nv_fp8_e4m3",
    DType.F8E5M2: "__nv_fp8_e5m2",
    DType.I64: "long long",
    DType.I32: "int",
    DType.I16: "short",
    DType.I8: "signed char",
    DType.U8: "unsigned char",
    DType.BOOL: "bool",
}
