"""Recognising calls: what makes two calls the same, and what must not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilewright.kernel_file.op_line import parse_op
from tilewright.runtime.quick_call import KeyForm, Recent, is_plain, make_key_function, make_quick_call

OP = parse_op("f(x, mask?, n: int, eps: float, pad: int[]) -> y")
FORM = KeyForm(OP, frozenset({"n", "pad"}), frozenset({"x"}))


def key(*values: Any) -> Any:
    return make_key_function(FORM)(*values)


X = torch.zeros(4, 6)
CALL = (X, None, 3, 1e-5, (1, 2))


def changed(position: int, value: object) -> tuple[object, ...]:
    return (*CALL[:position], value, *CALL[position + 1 :])


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, torch.ones(4, 6)), (3, 1e-3), (3, -0.0), (4, [1, 2])],
    ids=["content", "a late number", "another", "list or tuple"],
)
def test_calls_that_run_alike(position: int, value: object) -> None:
    assert key(*changed(position, value)) == key(*CALL)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, torch.zeros(6, 4)),
        (0, torch.zeros(6, 4).t()),
        (0, torch.zeros(4, 6, dtype=torch.float16)),
        (0, torch.zeros(4, 6, device="meta")),
        (0, torch.zeros(25)[1:].view(4, 6)),
        (0, torch.zeros(4, 6, requires_grad=True)),
        (1, torch.zeros(1)),
        (2, 4),
        (2, True),
        (3, 1),
        (4, (1, 3)),
        (4, (1, 2, 3)),
        (4, (1, 2.0)),
    ],
)
def test_calls_that_do_not(position: int, value: object) -> None:
    assert key(*changed(position, value)) != key(*CALL)


def test_negated_views_differ_where_strides_are_free() -> None:
    view = torch.zeros(4, 6, dtype=torch.complex64)
    assert key(view.imag, *CALL[1:]) != key(view.conj().imag, *CALL[1:])


@pytest.mark.parametrize(
    ("position", "value", "plain"),
    [
        (0, torch.nn.Parameter(torch.zeros(4, 6)), True),
        (0, torch.nn.Buffer(torch.zeros(4, 6)) if hasattr(torch.nn, "Buffer") else X, True),
        (3, 2, True),
        (3, True, False),
        (2, 3.0, False),
        (2, None, False),
        (4, 1, False),
        (4, (1, True), False),
        (0, X.numpy(), False),
    ],
)
def test_plain_calls(position: int, value: object, plain: bool) -> None:
    assert is_plain(OP, changed(position, value)) is plain


def test_known_calls_go_straight_to_their_entry() -> None:
    recent = Recent()
    slow_calls: list[tuple[Any, ...]] = []
    call = make_quick_call(FORM, recent, lambda *values: slow_calls.append(values))
    call(*CALL)
    recent.add(key(*CALL), lambda tensors, addresses, numbers: (tensors, addresses, numbers))
    assert len(slow_calls) == 1
    tensors, addresses, numbers = call(X, None, 3, 7.5, [1, 2])
    assert tensors[0] is X
    assert tensors[1] is None
    assert addresses == (X.data_ptr(), 0)
    assert numbers == (3, 7.5, (1, 2))
    mask = torch.zeros(3)
    recent.add(key(X, mask, *CALL[2:]), lambda tensors, addresses, numbers: addresses)
    assert call(X, mask, *CALL[2:]) == (X.data_ptr(), mask.data_ptr())


@pytest.mark.parametrize("value", [None, 3, "x", X.numpy(), [X], torch.eye(4).to_sparse()])
def test_whatever_is_no_tensor_takes_the_slow_way(value: object) -> None:
    slow_calls: list[tuple[Any, ...]] = []
    call = make_quick_call(FORM, Recent(), lambda *values: slow_calls.append(values))
    call(value, *CALL[1:])
    assert slow_calls[0][0] is value


def test_an_error_of_an_entry_is_not_taken_for_a_miss() -> None:
    recent = Recent()
    call = make_quick_call(FORM, recent, lambda *values: "slow")

    def fails(*values: object) -> None:
        raise KeyError("mine")

    recent.add(key(*CALL), fails)
    with pytest.raises(KeyError, match="mine"):
        call(*CALL)


def test_a_parameter_may_have_any_name() -> None:
    op = parse_op("f(lambda, entries: int) -> y")
    call = make_quick_call(KeyForm(op, frozenset(), frozenset()), Recent(), lambda *values: values)
    assert call(X, 1) == (X, 1)
    bare = parse_op("g() -> y")
    assert make_quick_call(KeyForm(bare, frozenset(), frozenset()), Recent(), lambda: "slow")() == "slow"


def test_what_is_used_again_is_kept_and_the_rest_is_bounded() -> None:
    recent = Recent(capacity=8)
    entries = {number: (lambda *_: None) for number in range(100)}
    for number, entry in entries.items():
        recent.add(number, entry)
        if 0 not in recent.entries:
            assert recent.find(0) is entries[0]  # swept aside, then used: recent again
        assert len(recent) <= 9
    assert recent.find(1) is None
