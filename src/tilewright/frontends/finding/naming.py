"""What an expert would call a region, from what it computes."""

from __future__ import annotations

from collections.abc import Collection

_GATES = {"silu": "SwiGLU", "gelu": "GeGLU", "relu": "ReGLU", "sigmoid": "GLU"}


def known_name(calls: Collection[str], inputs: int) -> str:
    """`RMSNorm`, `SwiGLU`, `rotary`, ...; "" where it is none that has a name.

    `calls` are names of functions, each as often as it is called.
    """
    names = {one.strip("_") for one in calls}
    gate = next((title for one, title in _GATES.items() if one in names), "")
    if "softmax" in names and names & {"bmm", "matmul", "baddbmm"}:
        return "attention"
    if names & {"softmax", "log_softmax"}:
        if names & {"nll_loss", "nll_loss_forward", "gather"}:
            return "cross entropy"
        masked = names & {"masked_fill", "where"} or ("add" in names and inputs > 1)
        return "masked softmax" if masked else "softmax"
    if names & {"cross_entropy", "cross_entropy_loss", "nll_loss_forward"}:
        return "cross entropy"
    norm = ""
    if names & {"native_layer_norm", "layer_norm"} or {"var_mean", "rsqrt"} <= names or {"var", "sqrt"} <= names:
        norm = "LayerNorm"
    elif names & {"rms_norm", "fused_rms_norm"} or ({"mean", "rsqrt"} <= names and names & {"pow", "square"}):
        norm = "RMSNorm"
    if norm and gate and "mul" in names:
        return f"gated {norm}"  # by another tensor, as after a state space: nothing is added to it
    if norm:
        adds = sum(one.strip("_") in ("add", "iadd") for one in calls)
        to_variance = 1 if names & {"rsqrt", "sqrt"} else 0  # the epsilon of a norm that is written out
        return f"residual + {norm}" if inputs > 1 and adds > to_variance else norm
    if {"cat", "neg"} <= names and names & {"slice", "getitem"}:
        return "rotary embedding"
    if {"cos", "sin"} <= names:
        return "rotary angles"
    if gate and names & {"mul"} and inputs > 1:
        return gate
    return ""
