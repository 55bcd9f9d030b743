"""Names of regions, from what they call."""

from __future__ import annotations

import pytest

from tilewright.frontends.finding.naming import known_name

RMS = "pow mean add rsqrt mul mul"


@pytest.mark.parametrize(
    ("calls", "inputs", "name"),
    [
        (RMS, 1, "RMSNorm"),
        (f"add {RMS}", 2, "residual + RMSNorm"),
        ("add rms_norm", 2, "residual + RMSNorm"),
        ("add_ layer_norm", 2, "residual + LayerNorm"),
        (f"mul {RMS}", 2, "RMSNorm"),  # what is added there is the epsilon
        (f"silu mul {RMS}", 2, "gated RMSNorm"),  # as in Mamba
        (f"{RMS} sigmoid mul", 2, "gated RMSNorm"),
        ("silu mul", 2, "SwiGLU"),
        ("add mul", 2, ""),
    ],
)
def test_what_a_region_is_called(calls: str, inputs: int, name: str) -> None:
    assert known_name(calls.split(), inputs) == name
