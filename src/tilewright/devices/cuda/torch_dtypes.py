"""Element types as torch names them."""

from __future__ import annotations

import torch

from tilewright.records import DType

TORCH_DTYPE: dict[DType, torch.dtype] = {one: getattr(torch, one.torch_name) for one in DType}
DTYPE_OF_TORCH: dict[torch.dtype, DType] = {ours: name for name, ours in TORCH_DTYPE.items()}
