"""What one call of a function launches on a GPU, told without one."""

import torch
import torch.nn.functional as F

from tilewright.frontends.finding.recording import record_function


def kernels(function, *args):
    with torch.device("meta"):
        return [one for one in record_function(function, *args) if not one.is_view]


def test_operations_with_a_kernel_of_their_own_on_a_gpu_are_one_operation():
    x, weight = torch.empty(8, 64, dtype=torch.bfloat16, device="meta"), torch.empty(64, device="meta")

    norm = kernels(lambda: F.rms_norm(x + 1, (64,), weight.bfloat16(), 1e-6))
    assert [one.name for one in norm] == ["aten.add", "aten._to_copy", "aten.rms_norm"]
    assert [str(one) for one in norm[-1].reads] == ["8x64:bf16", "64:bf16"]

    query, key = torch.empty(2, 4, 16, 32, device="meta"), torch.empty(2, 4, 48, 32, device="meta")
    (attention,) = kernels(lambda: F.scaled_dot_product_attention(query, key=key, value=key))
    assert attention.name == "aten.scaled_dot_product_attention"
    assert attention.flops == 4 * (2 * 4 * 16) * 48 * 32


def test_what_is_taken_apart_on_every_device_is_several_operations():
    x = torch.empty(8, 64, device="meta")
    assert [one.name for one in kernels(lambda: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))] == [
        "aten.pow",
        "aten.mean",
        "aten.add",
        "aten.rsqrt",
        "aten.mul",
    ]
