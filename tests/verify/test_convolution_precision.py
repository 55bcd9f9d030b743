"""What is measured of PyTorch's own convolutions: f32 is told from TF32, whatever is convolved and however."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.verify.tasks import CONVOLVE
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.reference.convolutions import F32Convolution, TensorLayout, computed_in_f32
from tilewright.reference.protocol import ConvolutionRequest
from tilewright.verify import wide_convolution
from tilewright.verify.wide_convolution import relative_error

LIMIT = 2.0**-15


class RoundedConvolutions(TorchDispatchMode):
    """Computes f32 convolutions as cuDNN does in TF32."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "convolution" in func._schema.name and args[0].dtype == torch.float32:
            args = (_rounded(args[0]), _rounded(args[1]), *args[2:])
        return func(*args, **(kwargs or {}))


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def lying(*shape: int, channels_last: bool = False) -> TensorLayout:
    made = torch.empty(shape, device="meta")
    return TensorLayout.of(made.to(memory_format=torch.channels_last) if channels_last else made)


KINDS = {
    "plain": F32Convolution(lying(2, 3, 12, 11), lying(4, 3, 3, 3), (1, 1), (0, 0), (1, 1), False, (0, 0), 1, False),
    "one dimension": F32Convolution(lying(2, 3, 40), lying(4, 3, 5), (2,), (2,), (3,), False, (0,), 1, False),
    "grouped": F32Convolution(lying(3, 8, 9, 9), lying(8, 2, 3, 3), (1, 2), (1, 1), (2, 1), False, (0, 0), 4, False),
    "transposed": F32Convolution(
        lying(2, 6, 4, 5, 6), lying(6, 4, 3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1), True, (1, 1, 1), 2, False
    ),
    "expanded": F32Convolution(
        TensorLayout.of(torch.empty(1, 3, 9, 9, device="meta").expand(2, 3, 9, 9)),
        TensorLayout.of(torch.empty(3, 1, 3, 3, device="meta")[:1].expand(3, 1, 3, 3)),
        (1, 1),
        (1, 1),
        (1, 1),
        False,
        (0, 0),
        3,
        False,
    ),
    "channels last": F32Convolution(
        lying(2, 16, 9, 9, channels_last=True), lying(8, 16, 3, 3), (1, 1), (1, 1), (1, 1), False, (0, 0), 1, False
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_f32_is_told_from_tf32(name: str) -> None:
    one = KINDS[name]
    assert relative_error(one, one.x.shape[0], "cpu") < LIMIT / 16
    assert relative_error(one, 1, "cpu") < LIMIT / 16
    with RoundedConvolutions():
        assert relative_error(one, one.x.shape[0], "cpu") > 4 * LIMIT


def test_cudnn_is_asked_as_it_is_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn, seen = torch.backends.cudnn, []

    def looked(one: F32Convolution, images: int, device: str) -> float:
        seen.append((cudnn.enabled, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic))
        return 2.0**-12

    monkeypatch.setattr(wide_convolution, "relative_error", looked)
    monkeypatch.setattr(wide_convolution, "convolutions_of", lambda function, task: [KINDS["plain"]])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cudnn, "benchmark", True)
    answer = wide_convolution.measure(torch.relu, ConvolutionRequest(CONVOLVE))
    assert answer.f32 is False
    assert seen == [(True, True, False, False)]
    assert cudnn.benchmark


def test_a_call_is_taken_for_f32_by_the_convolutions_it_makes() -> None:
    x, few, many = torch.randn(1, 3, 6, 6), torch.randn(16, 3, 3, 3), torch.randn(4, 16, 3, 3)
    convolve = torch.nn.functional.conv2d
    assert computed_in_f32(lambda: convolve(x, few))
    assert not computed_in_f32(lambda: convolve(convolve(x, few), many))
    assert not computed_in_f32(lambda: convolve(x.bfloat16(), few.bfloat16()))
    assert not computed_in_f32(lambda: x @ x)
