"""One small task of agents, and kernels for it: wrong, right, and with its fault found only by a checker."""

from __future__ import annotations

SOURCE = """import torch


def scaled_silu(x, scale: float = 2.0):
    y = torch.nn.functional.silu(x) * scale
    return y
"""
SHAPES = {"x": "8x64:f32"}
ASKED = {"source": SOURCE, "function": "scaled_silu", "shapes": SHAPES}

RIGHT = """//! op      scaled_silu(x, scale: float = 2.0) -> y
//! lead    x: 2
//! out     y: x.dtype[x.shape]
//! need    x.dtype == f32
//! let     n = x.numel
//! launch  scaled_silu<<<ceil_div(n, 128), 128>>>(x, y, n, scale)
__global__ void __launch_bounds__(128) scaled_silu(const float* x, float* y, long long n, float scale) {
  long long i = blockIdx.x * 128LL + threadIdx.x;
  if (i < n) y[i] = x[i] / (1.0f + expf(-x[i])) * scale;
}
"""
WRONG = RIGHT.replace(" * scale;", ";")
BEYOND = RIGHT.replace("if (i < n)", "if (i <= n)")
MENDED_BY_EDIT = """<<<<<<< SEARCH
  if (i < n) y[i] = x[i] / (1.0f + expf(-x[i]));
=======
  if (i < n) y[i] = x[i] / (1.0f + expf(-x[i])) * scale;
>>>>>>> REPLACE
"""
