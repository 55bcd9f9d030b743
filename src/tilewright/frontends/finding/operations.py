"""Which of ATen's operations a kernel for rows or elements could take in, and which are the vendor's business."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.frontends.finding.recording import Operation


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PRODUCTS = (
    _names("mm bmm addmm addmv mv dot baddbmm linear matmul lstm gru _grouped_mm _scaled_mm")
    | _names("convolution _convolution cudnn_convolution scaled_dot_product_attention")
    | _names("_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention")
    | _names("_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu")
)
_FUSIBLE = (
    _names("add sub rsub mul div neg pow abs exp exp2 log log2 log1p expm1 sqrt rsqrt reciprocal square sigmoid tanh")
    | _names("relu silu gelu leaky_relu elu softplus mish hardswish hardsigmoid hardtanh erf sin cos where clamp")
    | _names("clamp_min clamp_max maximum minimum floor ceil round sign lerp addcmul addcdiv masked_fill logical_not")
    | _names("logical_and logical_or bitwise_and bitwise_or bitwise_not eq ne lt le gt ge isnan _to_copy clone copy_")
    | _names("mean sum amax amin max min var var_mean std norm linalg_vector_norm logsumexp prod any all cumsum")
    | _names("_softmax _log_softmax softmax log_softmax native_layer_norm rms_norm _fused_rms_norm native_batch_norm")
    | _names("_native_batch_norm_legit_no_training native_group_norm nll_loss_forward cross_entropy_loss glu")
    | _names("cat stack slice select native_dropout tril triu")
    | _names("ones_like zeros_like full_like fill_ zeros ones full scalar_tensor arange")
)


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
