"""Element types as torch names them."""

from __future__ import annotations

import torch

from tilewright.records import DType

TORCH_DTYPE: dict[DType, torch.dtype] = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F8E4M3: torch.float8_e4m3fn,
    DType.F8E5M2: torch.float8_e5m2,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}

DTYPE_OF_TORCH: dict[torch.dtype, DType] = {ours: name for name, ours in TORCH_DTYPE.items()}
