"""Which of ATen's operations a kernel for rows or elements could take in, and which are the vendor's business."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.frontends.finding.recording import Operation


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRODUCTS = names("""
    mm bmm addmm addmv mv dot baddbmm linear matmul lstm gru _grouped_mm _scaled_mm convolution _convolution
    cudnn_convolution scaled_dot_product_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_flash_attention_for_cpu
""")
# Both ATen's operations and functions that models call.
ELEMENTWISE = names("""
    add sub mul div neg pow abs exp exp2 log log2 log1p expm1 sqrt rsqrt reciprocal square sigmoid tanh relu
    silu gelu leaky_relu elu softplus mish hardswish hardsigmoid erf sin cos where clamp clamp_min clamp_max
    maximum minimum floor ceil round sign lerp addcmul addcdiv masked_fill logical_not logical_and logical_or eq
    ne lt le gt ge mean sum amax amin var norm logsumexp softmax log_softmax rms_norm glu tril triu
""")
_FUSIBLE = ELEMENTWISE | names("""
    rsub hardtanh bitwise_and bitwise_or bitwise_not isnan _to_copy clone copy_ max min var_mean std
    linalg_vector_norm prod any all cumsum _softmax _log_softmax native_layer_norm _fused_rms_norm
    native_batch_norm _native_batch_norm_legit_no_training native_group_norm nll_loss_forward cross_entropy_loss
    cat stack slice select native_dropout ones_like zeros_like full_like fill_ zeros ones full scalar_tensor
    arange
""")


def base_name(operation: Operation) -> str:
    """`mul` of `aten.mul`, also where it is done in place."""
    name = operation.name.rpartition(".")[2]
    return name if name in _FUSIBLE else name.rstrip("_")


def is_product(operation: Operation) -> bool:
    return base_name(operation) in PRODUCTS or operation.flops > 0


def are_fusible(operations: Iterable[Operation]) -> bool:
    """Whether one kernel for rows or elements could do all of them."""
    return all(one.is_view or base_name(one) in _FUSIBLE for one in operations)


def is_attention(operations: Iterable[Operation]) -> bool:
    """Whether it is attention written out: a softmax between two products, and nothing else that is no kernel's."""
    listed = list(operations)
    names = [base_name(one) for one in listed if is_product(one) or base_name(one) in ("_softmax", "softmax")]
    rest = [one for one in listed if not is_product(one)]
    return [one in PRODUCTS for one in names] == [True, False, True] and are_fusible(rest)


def computing(operations: Iterable[Operation]) -> list[Operation]:
    """Those that launch a kernel."""
    return [one for one in operations if not one.is_view]
