"""Inside the child: calls that refuse sizes which do not fit, where torch itself does not look.

Without content torch makes a convolution of channels, biases and images that do not fit its filter. With content its
LSTM on a CPU takes weights that do not fit, and reads what lies behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class StrictFunctions(TorchFunctionMode):
    """For calls with content: an LSTM whose sizes do not fit raises `ValueError`. It costs nothing elsewhere."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.lstm:
            return func(*args, **(kwargs or {}))
        with StrictCalls():
            return func(*args, **(kwargs or {}))


class StrictCalls(TorchDispatchMode):
    """For calls without content: a convolution or an LSTM whose sizes do not fit raises `ValueError`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to ask would import the compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            _check_convolution(*args)
        elif func is torch.ops.aten.mkldnn_rnn_layer.default:
            _check_layer(*args[:7])
        return func(*args, **(kwargs or {}))


def _check_convolution(
    given: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> None:
    filter_text = f"a filter of {list(weight.shape)} in {groups} groups"
    taken, made = (
        (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, weight.shape[0])
    )
    if given.shape[1] != taken or taken % groups or made % groups:
        raise ValueError(f"{filter_text} does not fit {list(given.shape)}")
    if bias is not None and tuple(bias.shape) != (made,):
        raise ValueError(f"{filter_text} does not fit a bias of {list(bias.shape)}")
    if not transposed:
        for axis, (size, window) in enumerate(zip(given.shape[2:], weight.shape[2:], strict=True)):
            reach = dilation[axis % len(dilation)] * (window - 1) + 1
            if size + 2 * padding[axis % len(padding)] < reach:
                raise ValueError(f"{filter_text} is larger than {list(given.shape)}")


def _check_layer(given: torch.Tensor, *state: torch.Tensor) -> None:
    """One layer in one direction: two weights, two biases, the hidden state and the cell's."""
    to_input, to_hidden, *biases, hidden, cell = (tuple(one.shape) for one in state)
    width = to_hidden[1]
    fits = (
        to_input[1] == given.shape[-1]
        and to_hidden[0] == 4 * width
        and {hidden[-1], cell[-1]} == {width}
        and {to_input[0], *(bias[0] for bias in biases)} == {to_hidden[0]}
    )
    if not fits:
        raise ValueError(f"weights of {list(to_input)} and {list(to_hidden)} do not fit {list(given.shape)}")
