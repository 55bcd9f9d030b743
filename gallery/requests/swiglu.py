import torch.nn.functional as F


def swiglu(gate_up):
    """The gated unit of Llama-like models: the two halves of a row come out of one projection."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate.float()).to(up.dtype) * up
