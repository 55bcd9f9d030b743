"""Kernels in a plain model: in all their places, with the same outputs, and out again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.frontends.finding import plain_models
from tests.frontends.finding.drafts import drafting
from tests.frontends.finding.plain_models import Capped, Model, RMSNorm, inputs
from tests.frontends.in_process import tilewright
from tests.tasks.in_process import ask_here
from torch import nn

import tilewright as tw
from tilewright.frontends.finding.checking import Judge
from tilewright.frontends.finding.finding import Finding
from tilewright.frontends.finding.kernels import is_by_rows
from tilewright.playbook.errors import PlaybookProblem
from tilewright.runtime import ReferenceUsed
from tilewright.tasks.errors import BadArgument


@pytest.fixture(scope="module", autouse=True)
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        ask_here(patch)
        drafting(patch)
        yield


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    made = Model().eval()
    with torch.no_grad():
        for one in made.modules():
            if isinstance(one, RMSNorm):
                one.weight.normal_(1.0, 0.1)
    return made


@pytest.fixture(scope="module")
def given() -> tuple[torch.Tensor, ...]:
    return inputs()


@pytest.fixture(scope="module")
def made(model: Model, given: tuple[torch.Tensor, ...]) -> Finding:
    return tw.find(model, *given, gpu="H200").make()


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


REPLACED = {"RMSNorm": 3, "residual + RMSNorm (in Block)": 2, "SwiGLU (in GatedMlp)": 2, "rotated": 1}


def test_what_the_playbook_can_write_is_made_and_the_rest_is_left(made: Finding) -> None:
    by_rows = {made.found.regions[number - 1].name: one.by_rows for number, one in made.kernels.items()}
    assert by_rows == {"RMSNorm": True, "residual_rmsnorm": True, "swiglu": True, "rotated": False}


def test_kernels_are_swapped_in_and_out_again(made: Finding, model: Model, given: tuple[torch.Tensor, ...]) -> None:
    before, keys = model(*given), list(model.state_dict())
    with made.swap() as swap:
        assert swap.replaced == REPLACED
        assert swap.refused == {}
        after = model(*given)
        assert not torch.equal(after, before)  # something else computes it
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
        assert list(model.state_dict()) == keys
    assert torch.equal(model(*given), before)
    assert not any("forward" in vars(one) for one in model.modules())


def test_a_swapped_model_follows_its_weights_other_inputs_and_its_copies(made: Finding, model: Model) -> None:
    other = inputs(batch=1, length=7)
    with made.swap():
        copied = copy.deepcopy(model)
        copied.last.weight.mul_(3.0)
        torch.testing.assert_close(copied(*other), 3.0 * model(*other), rtol=1e-4, atol=1e-5)
        swapped = model(*other)
        with pytest.warns(ReferenceUsed):  # no kernel takes f64
            wide = copy.deepcopy(model).double()(*(one.double() for one in other))
        torch.testing.assert_close(wide.float(), swapped, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(*other), swapped, rtol=1e-4, atol=1e-5)


def test_a_shallow_copy_runs_with_what_is_its_own(made: Finding, model: Model) -> None:
    x = torch.randn(4, 64)
    with made.swap():
        norm, block = model.last, next(one for one in model.modules() if type(one).__name__ == "Block")
        copied, block_copied = copy.copy(norm), copy.copy(block)
        copied.eps = 10.0
        assert copied.forward.__self__ is copied
        assert block_copied.forward.__self__ is block_copied
        assert copy.deepcopy(block).forward.__self__ is not block
    torch.testing.assert_close(copied(x), x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 10.0) * norm.weight)
    again = copy.copy(copied)
    again.eps = norm.eps
    torch.testing.assert_close(again(x), norm(x), rtol=1e-4, atol=1e-5)


def test_a_forward_that_somebody_else_put_there_is_left_alone(made: Finding, given: tuple[torch.Tensor, ...]) -> None:
    other = Model().eval()
    block = next(one for one in other.modules() if type(one).__name__ == "Block")
    for patched in (other.last, block):
        patched.forward = lambda *args, _own=patched.forward, **kwargs: 2.0 * _own(*args, **kwargs)  # type: ignore[method-assign]
    before = other(*given)
    with made.swap(other, *given) as swap:
        assert swap.replaced == {
            "RMSNorm": 2,
            "residual + RMSNorm (in Block)": 1,
            "SwiGLU (in GatedMlp)": 2,
            "rotated": 1,
        }
        assert "RMSNorm, 1 places" in swap.refused
        torch.testing.assert_close(other(*given), before, rtol=1e-4, atol=1e-5)
    assert torch.equal(other(*given), before)


def test_another_model_like_it_takes_the_kernels(made: Finding, given: tuple[torch.Tensor, ...]) -> None:
    other = Model().eval()
    other.last.eps = 1e-2  # so that this place holds another number
    before = other(*given)
    with made.swap(other, *given) as swap:
        assert swap.replaced["RMSNorm"] == 2
        assert "RMSNorm, 1 places" in swap.refused
        torch.testing.assert_close(other(*given), before, rtol=1e-4, atol=1e-5)


def test_a_kernel_that_is_wrong_is_put_back(
    model: Model, given: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    before = model(*given)
    drafting(monkeypatch, spoil=("rsqrt", "sqrt"))
    swap = tw.find(model, *given, gpu="H200").make("RMSNorm", "swiglu").swap()
    assert swap.replaced == {"SwiGLU (in GatedMlp)": 2}
    assert "outputs differ by" in swap.refused["RMSNorm"]
    swap.undo()
    assert torch.equal(model(*given), before)


class PostNorm(nn.Module):
    """Two chains in one forward, of the same kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.one, self.two = RMSNorm(32), RMSNorm(32)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        x = self.one(x + self.first(x))
        return self.two(x + self.second(x)) * scale


def test_two_chains_of_one_forward_are_both_swapped() -> None:
    model, x = PostNorm().eval(), torch.randn(4, 32)
    before, doubled = model(x), model(x, 2.0)
    found = tw.find(model, x, gpu="H200")
    with found.make().swap() as swap:
        assert sum(swap.replaced.values()) == 2
        after = model(x)
        assert not torch.equal(after, before)
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
        assert torch.equal(model(x, 2.0), doubled)  # a call that it was not made for
        model.train()
        assert torch.equal(model(x), before)  # and so is one in training mode
    assert torch.equal(model(x), before)


def test_gradients_of_a_swapped_model_are_those_of_the_model(
    made: Finding, model: Model, given: tuple[torch.Tensor, ...]
) -> None:
    weights = torch.randn(given[0].shape)

    def gradients() -> list[torch.Tensor]:
        with torch.enable_grad():
            loss = (model(*given) * weights).sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    before = gradients()
    with made.swap(), pytest.warns(ReferenceUsed, match="no backward kernel"):
        after = gradients()
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_kernels_for_gradients_go_in_with_the_others(
    model: Model, given: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    found = tw.find(model, *given, gpu="H200").make("RMSNorm", "swiglu", backward=True)
    assert all(one.plain.backward is not None for one in found.kernels.values())
    weights = torch.randn(given[0].shape)

    def gradients() -> list[torch.Tensor]:
        with torch.enable_grad():
            loss = (model(*given) * weights).sum()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    before = gradients()
    with found.swap() as swap, warnings.catch_warnings():
        warnings.simplefilter("error", ReferenceUsed)  # no reference is run again
        assert set(swap.replaced) == {"RMSNorm", "SwiGLU (in GatedMlp)"}
        after = gradients()
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_swapped_model_is_compiled_whole(made: Finding, model: Model, given: tuple[torch.Tensor, ...]) -> None:
    with made.swap():
        expected = model(*given)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*given), expected)
        other = inputs(batch=3, length=5)
        torch.testing.assert_close(compiled(*other), model(*other))


class Masking(nn.Module):
    """A mask that is worked out from a buffer, and a dictionary as the answer."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(8, 8).tril().bool())
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.linear(x).masked_fill(~self.mask, -1e9)
        return {"mixed": torch.softmax(scores * 0.5, -1), "x": x}


def test_buffers_are_followed_and_dictionaries_returned() -> None:
    model, x = Masking().eval(), torch.randn(2, 8, 8)
    found = tw.find(model, x, gpu="H200")
    assert [one.title for one in found.found.regions] == ["masked softmax (in Masking)"]
    before = model(x)
    with found.make().swap() as swap:
        assert swap.replaced == {"masked softmax (in Masking)": 1}
        torch.testing.assert_close(model(x), before)
        model.mask.logical_not_()
        other = model(x)
        model.mask.logical_not_()
    model.mask.logical_not_()
    torch.testing.assert_close(model(x), other)  # the kernel saw the mask change


class Constant(nn.Module):
    """A tensor that is made on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x) + torch.arange(8.0)) * 2.0


def test_a_forward_with_tensors_of_its_own_is_left_alone() -> None:
    assert tw.find(Constant(), torch.randn(4, 8), gpu="H200").found.regions == ()


class OverTokens(nn.Module):
    """A norm over the last two dimensions: its rows are no rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean((-1, -2), keepdim=True) + 1e-6)


def test_rows_are_laid_together_only_where_each_is_worked_out_by_itself(made: Finding) -> None:
    found = tw.find(OverTokens(), torch.randn(2, 8, 16), gpu="H200")
    assert [is_by_rows(one) for one in found._searched.regions] == [False]
    others = {one.region.name for one in made.kernels.values() if not is_by_rows(one.region)}
    assert others == {"rotated"}, "which has its own place in the sequence"


def test_what_cannot_be_done_is_said(made: Finding, given: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(BadArgument, match="no region is called softmax; there are 1 "):
        made.make("softmax")
    wide = tw.find(Capped(), torch.randn(4, 8), gpu="H200")
    with pytest.raises(PlaybookProblem, match="does not compute in uint16"):
        wide.make("abs_mul_to_float_mul")
    with pytest.raises(BadArgument, match=r"find takes an nn\.Module"):
        tw.find(lambda x: x, 3)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="no kernel has been made yet"):
        tw.find(Model(), *given, gpu="H200").swap()
    with torch.device("meta"):
        empty = Model()
    with pytest.raises(BadArgument, match="meta device has no weights"):
        made.swap(empty, *given)


def test_outputs_are_judged_by_the_model_in_a_wider_type(model: Model, given: tuple[Any, ...]) -> None:
    judge = Judge(model, given, {})
    own = judge.agreement()
    assert own.is_honest
    assert own.difference == 0.0
    weight = model.last.weight
    saved = weight.clone()
    weight.mul_(1.0 + 1e-4)
    assert not judge.agreement().is_honest
    weight.copy_(saved)
    weight[0] = float("nan")
    assert not judge.agreement().is_honest
    weight.copy_(saved)


def test_the_command_makes_and_tries(tmp_path: Path) -> None:
    (tmp_path / "tiny_model_to_swap.py").write_text(Path(plain_models.__file__).read_text())
    shapes = ("--shape", "x=2x16x64:f32", "--shape", "cos=16x16:f32", "--shape", "sin=16x16:f32")
    name = f"{tmp_path}/tiny_model_to_swap.py:Model(layers=1)"
    done = tilewright(tmp_path, "find", name, *shapes, "--gpu", "H200", "--make", "swiglu", "--make", "RMSNorm")
    assert done.returncode == 0, done.stderr
    assert "in 1 places: SwiGLU (in GatedMlp)" in done.stdout
    assert "in 2 places: RMSNorm" in done.stdout
    assert "outputs differ by" in done.stdout
    assert ".swap()" in done.stdout
    done = tilewright(tmp_path, "find", name, *shapes, "--gpu", "H200", "--make", "7")
    assert done.returncode == 2
    assert "no region is called 7; there are 1 " in done.stderr
