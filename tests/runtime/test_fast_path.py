"""Recognising calls: what makes two calls the same, and what must not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright.kernel_file.op_line import parse_op
from tilewright.runtime import fast_path
from tilewright.runtime.fast_path import CallLayout, EntryCache, is_plain, make_fast_path, make_key_function

OP = parse_op("f(x, mask?, n: int, eps: float, pad: int[]) -> y")
FORM = CallLayout(OP, frozenset({"n", "pad"}))


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


@pytest.mark.parametrize("shape", [(4, 6), (1,), ()])
def test_a_negated_view_is_no_plain_tensor(shape: tuple[int, ...]) -> None:
    """Of one element it is contiguous like any other."""
    one = torch.ones(shape)
    assert key(one, *CALL[1:]) != key(torch._neg_view(one), *CALL[1:])


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
    recent = EntryCache()
    slow_calls: list[tuple[Any, ...]] = []
    call = make_fast_path(FORM, recent, lambda *values: slow_calls.append(values))
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
    call = make_fast_path(FORM, EntryCache(), lambda *values: slow_calls.append(values))
    call(value, *CALL[1:])
    assert slow_calls[0][0] is value


def test_an_error_of_an_entry_is_not_taken_for_a_miss() -> None:
    recent = EntryCache()
    call = make_fast_path(FORM, recent, lambda *values: "slow")

    def fails(*values: object) -> None:
        raise KeyError("mine")

    recent.add(key(*CALL), fails)
    with pytest.raises(KeyError, match="mine"):
        call(*CALL)


# -- calls like the latest --

ALL_GIVEN = CallLayout(parse_op("f(x, w, n: int, eps: float, pad: int[]) -> y"), frozenset({"n", "pad"}))
W = torch.zeros(6)
GIVEN = (X, W, 3, 1e-5, (1, 2))


class Called:
    """A quick call whose entry is known by nothing but the latest call: the dictionary has been emptied."""

    def __init__(self) -> None:
        self.recent = EntryCache()
        self.call = make_fast_path(ALL_GIVEN, self.recent, lambda *values: "slow")
        self.recent.add(make_key_function(ALL_GIVEN)(*GIVEN), lambda tensors, addresses, numbers: (addresses, numbers))
        for _ in range(8):
            assert self.call(*GIVEN) != "slow"
        self.recent.entries.clear()

    def __call__(self, *values: Any) -> Any:
        return self.call(*values)


def test_a_call_like_the_latest_needs_no_key() -> None:
    called = Called()
    other = torch.ones(4, 6)
    assert called(other, W, 3, 7.5, [1, 2]) == ((other.data_ptr(), W.data_ptr()), (3, 7.5, (1, 2)))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, torch.zeros(6, 4)),
        (0, torch.zeros(6, 4).t()),
        (0, torch.zeros(4, 6, dtype=torch.float16)),
        (0, torch.zeros(4, 6, device="meta")),
        (0, torch.zeros(25)[1:].view(4, 6)),
        (0, torch.zeros(4, 6, requires_grad=True)),
        (0, torch._neg_view(torch.zeros(4, 6))),
        (0, torch._efficientzerotensor((4, 6))),
        (0, torch.nn.Parameter(X, requires_grad=False)),
        (0, X.numpy()),
        (1, torch.zeros(7)),
        (1, None),
        (2, 4),
        (2, True),
        (2, torch.tensor(3)),
        (3, 1),
        (4, (1, 3)),
        (4, (1, 2, 3)),
        (4, (1, 2.0)),
        (4, 1),
    ],
)
def test_a_call_that_is_not_like_the_latest(position: int, value: object) -> None:
    assert Called()(*GIVEN[:position], value, *GIVEN[position + 1 :]) == "slow"


class _Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "moment", [_Watching, FakeTensorMode, BaseTorchFunctionMode, forward_ad.dual_level], ids=lambda one: one.__name__
)
def test_a_moment_that_is_not_ordinary(moment: Any) -> None:
    called = Called()
    with moment():
        assert called(*GIVEN) == "slow"
    assert called(*GIVEN) != "slow"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit.trace is deprecated, and still traces
def test_wrappers_of_torch_func_are_not_like_the_latest() -> None:
    called, answers = Called(), []

    def function(x: torch.Tensor) -> torch.Tensor:
        answers.append(called(x, *GIVEN[1:]))
        return x.sum()

    torch.func.grad(function)(X)
    torch.vmap(function)(torch.zeros(2, 4, 6))
    torch.jit.trace(function, (X,), check_trace=False)
    assert answers == ["slow"] * 3


def test_another_state_of_torch_becomes_the_latest() -> None:
    called = Called()
    called.recent.add(make_key_function(ALL_GIVEN)(*GIVEN), lambda *values: "found")
    with torch.inference_mode():
        assert [called(*GIVEN) for _ in range(8)] == ["found"] * 8
        called.recent.entries.clear()
        assert called(*GIVEN) == "found"


def test_without_torchs_check_calls_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fast_path._is_trusted.cache_clear()
    monkeypatch.setattr(fast_path, "_torch_guard", lambda *tensors: lambda *others: True)  # accepts all
    try:
        called = Called()
        assert called(*GIVEN) == "slow"
    finally:
        fast_path._is_trusted.cache_clear()


def test_a_parameter_may_have_any_name() -> None:
    op = parse_op("f(lambda, entries: int) -> y")
    call = make_fast_path(CallLayout(op, frozenset()), EntryCache(), lambda *values: values)
    assert call(X, 1) == (X, 1)
    bare = parse_op("g() -> y")
    assert make_fast_path(CallLayout(bare, frozenset()), EntryCache(), lambda: "slow")() == "slow"


def test_what_is_used_again_is_kept_and_the_rest_is_bounded() -> None:
    recent = EntryCache(capacity=8)
    entries = {number: (lambda *_: None) for number in range(100)}
    for number, entry in entries.items():
        recent.add(number, entry)
        if 0 not in recent.entries:
            assert recent.find(0) is entries[0]  # swept aside, then used: recent again
        assert len(recent) <= 9
    assert recent.find(1) is None
