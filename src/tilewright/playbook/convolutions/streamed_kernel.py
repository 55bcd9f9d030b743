"""The kernel of streamed convolutions, as text: how weights are kept, x brought, multiplied and stored."""

from __future__ import annotations

from tilewright.playbook.templates import sections

_CUDA = sections("convolutions/streamed_kernel")

WEIGHTS = _CUDA["weights"]
DEVICE = _CUDA["device"]
BODY = _CUDA["body"]
AGAIN = _CUDA["again"]
STAGE = _CUDA["stage"]
DIRECT = _CUDA["direct"]
