"""Forward and backward of one request: two runs of the playbook on the emulator; all after them is free."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from tests.frontends.in_process import tilewright
from tests.tasks.in_process import HereReference, ask_here

import tilewright as tw
from tilewright.frontends.api import requests
from tilewright.frontends.api.make import Made
from tilewright.frontends.api.running import backward_output
from tilewright.runtime import ReferenceUsed
from tilewright.store import Store
from tilewright.tasks import TaskError

pytestmark = pytest.mark.usefixtures("home")

SHAPES = {"gate": "8x24:f32", "up": "8x24:f32"}
FILE = """
import torch

def gated(gate, up):
    return torch.tanh(gate) * up

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient

def lying(x):
    return Wrong.apply(x)

def shifted(x):
    return x - x.max(-1, keepdim=True).values
"""


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.tanh(gate) * up


@pytest.fixture(scope="module")
def made(home: Path) -> Made:
    found = tw.make(gated, backward=True, attempts=1, quiet=True, **SHAPES)
    assert isinstance(found, Made)
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "functions.py"
    path.write_text(FILE)
    return path


def _pulled(function: object, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(1)
    tensors = [torch.randn(5, 24, dtype=dtype, requires_grad=True) for _ in range(2)]
    function(*tensors).square().sum().backward()  # type: ignore[operator]
    return [one.grad for one in tensors if one.grad is not None]


@pytest.mark.slow
def test_both_are_made_each_in_a_run_that_knows_of_the_other(made: Made) -> None:
    assert made.backward is not None
    derivative = made.backward.task.derivative
    assert derivative is not None
    assert derivative.forward == made.task.hash
    assert [one.name for one in derivative.saved] == ["gate", "up"]
    runs = {run.task.name: run for run in Store().runs().runs}
    assert set(runs) == {"gated", "gated_backward"}
    assert runs["gated"].settings.backward
    library = Store().library
    found = library.backward_of(made.task.hash)
    assert found is not None
    assert found.entry.run == runs["gated_backward"].id
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReferenceUsed)
        grads = _pulled(made)
    torch.testing.assert_close(grads, _pulled(gated))


@pytest.mark.slow
def test_found_again_they_cost_nothing_and_go_together(made: Made) -> None:
    before = len(Store().runs().runs)
    again = tw.make(gated, backward=True, attempts=1, quiet=True, **SHAPES)
    plain = tw.make(gated, attempts=1, quiet=True, **SHAPES)
    copied = pickle.loads(pickle.dumps(made))
    assert len(Store().runs().runs) == before
    for one in (again, plain, copied):
        assert one.backward.kernel == made.backward.kernel  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_decorated_function_uses_both(made: Made) -> None:
    decorated = tw.kernel(gated)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReferenceUsed)
        torch.testing.assert_close(_pulled(decorated), _pulled(gated))
        compiled = torch.compile(lambda *given: decorated(*given), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(_pulled(compiled), _pulled(gated))


@pytest.mark.slow
def test_the_command_says_what_is_kept_and_show_tells(made: Made, home: Path, file: Path, tmp_path: Path) -> None:
    shapes = [text for name, shape in SHAPES.items() for text in ("--shape", f"{name}={shape}")]
    output = tmp_path / "gated.cu"
    done = tilewright(home, "make", f"{file}:gated", *shapes, "--backward", "--attempts", "1", "-o", output, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["problem"] == ""
    assert Path(report["backward"]["kernel"]) == Path(backward_output(str(output)))
    assert Path(report["backward"]["kernel"]).read_text().count("//! op      gated_backward(") == 1
    shown = tilewright(home, "show", next(r.id for r in Store().runs().runs if r.task.name == "gated"))
    assert "gradients: run gated-backward-" in shown.stdout
    shown = tilewright(home, "show", next(r.id for r in Store().runs().runs if r.task.name == "gated_backward"))
    assert "keeps gate (768 bytes), up (768 bytes) from the forward" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [(), ("--fresh",)], ids=["found", "made"])
def test_the_call_that_is_printed_uses_the_backward_kernel(
    fresh: tuple[str, ...], made: Made, home: Path, file: Path, tmp_path: Path
) -> None:
    shapes = [text for name, shape in SHAPES.items() for text in ("--shape", f"{name}={shape}")]
    wanted = ("--backward", "--attempts", "1", "-o", tmp_path / "g.cu", *fresh)
    done = tilewright(home, "make", f"{file}:gated", *shapes, *wanted)
    assert done.returncode == 0, done.stderr
    said, snippet = done.stdout.split("call it:")  # one call alone: that of the forward would leave the other out
    assert "gradients are computed by the backward kernel, from gate, up" in said
    gate, up = (torch.randn(2, 3, 24, requires_grad=True) for _ in range(2))
    names = {"gate": gate, "up": up, "tilewright": tw}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReferenceUsed)
        exec(snippet.strip(), names)
        found = torch.autograd.grad(names["y"].sum(), (gate, up))
    torch.testing.assert_close(found, torch.autograd.grad(gated(gate, up).sum(), (gate, up)))


def test_gradients_that_lie_are_refused_before_anything_is_made(
    home: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_here(monkeypatch)
    monkeypatch.setattr(requests, "Reference", HereReference)
    before = len(Store().runs().runs)
    done = tilewright(home, "make", f"{file}:lying", "--shape", "x=8x16:f32", "--backward")
    assert done.returncode == 2
    assert "lying: its gradients are not those of what it computes" in done.stderr
    assert len(Store().runs().runs) == before
    with pytest.raises(TaskError, match="in place"):
        tw.make(lambda x: x.mul_(2.0), backward=True, quiet=True, x="8x16:f32")


@pytest.mark.slow
def test_where_nobody_writes_the_backward_it_is_said_what_runs(home: Path, file: Path) -> None:
    done = tilewright(home, "make", f"{file}:shifted", "--shape", "x=8x16:f32", "--backward", "--attempts", "1")
    assert done.returncode == 1
    assert (
        "gradients are computed by the function's own autograd, not by a kernel: the playbook does not" in done.stdout
    )
    assert "kernel: " in done.stdout
