"""`make` and `@kernel` from Python: one real run on the emulator, with recorded replies; all after it is free."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.frontends.recordings import RIGHT, SPECIFICATION, kernel_text, put_into_library, record
from tests.tasks.in_process import ask_here

import tilewright as tw
from tilewright.frontends.api.decorator import DecoratedKernel
from tilewright.frontends.api.make import Made, NoKernelMade, NotAcceptedYet, read_arguments
from tilewright.runtime import NoKernelApplies, ReferenceUsed
from tilewright.tasks import TaskError
from tilewright.tasks.errors import BadArgument

FACTOR = 1.0

pytestmark = pytest.mark.usefixtures("home")


def scaled_silu(x: torch.Tensor, scale: float = 0.5) -> torch.Tensor:
    return torch.nn.functional.silu(x) * scale * FACTOR


def soft_capped(x: torch.Tensor, cap: float = 1.0) -> torch.Tensor:
    return torch.tanh(x / cap) * cap


@pytest.fixture(scope="module")
def decorated() -> DecoratedKernel:
    return tw.kernel(scaled_silu)


@pytest.fixture(scope="module")
def made(decorated: DecoratedKernel, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The kernel, after the decorated function was used without it."""
    x = torch.randn(2048)
    with pytest.warns(ReferenceUsed, match=r'scaled_silu\.make\(x="2048:f32", scale=0\.5\)'):
        torch.testing.assert_close(decorated(x), scaled_silu(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decorated(x)  # said once
    assert "the function itself runs" in decorated.explain(x)
    recording = record(tmp_path_factory.mktemp("recording"), ("0001-1", RIGHT))
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        made = decorated.make(x=x, model=f"replay:{recording}", attempts=1, gpu="H200")
    answers = (
        "speed: not timed against PyTorch: no GPU here",
        "works for: any n",
        "gradients: there is no backward kernel",
    )
    assert all(one in printed.getvalue() for one in answers), printed.getvalue()
    return made


def test_calls_of_other_dtypes_and_numbers_are_warned_of_each_once_and_not_for_ever() -> None:
    capped = tw.kernel(soft_capped)
    x = torch.randn(4)
    for given, said in ((x, 1), (x.double(), 1), (torch.randn(9), 0), (x.double(), 0), (torch.randn(2, 2), 1)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            capped(given)
        assert len(caught) == said, given
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(100):
            capped(x, 2.0 + number)
    assert len(caught) == 13
    assert 'the library has no kernel for x="4:f32", cap=2.0, so' in str(caught[0].message)
    assert "of further kinds no more" in str(caught[-1].message)


def test_what_is_made_is_called_and_says_where_it_comes_from(made: Made) -> None:
    x = torch.randn(2048)
    torch.testing.assert_close(made(x), scaled_silu(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(made(x, scale=2.0), scaled_silu(x, 2.0), rtol=1e-5, atol=1e-6)
    assert made.kernel.read_text().startswith("//! op      scaled_silu")
    assert made.run is not None
    assert made.entry.run == made.run.id
    assert "scaled_silu<<<" in made.explain(x)
    with pytest.warns(ReferenceUsed):
        assert made(x.double()).dtype is torch.float64  # no kernel takes it: the function itself runs


def test_the_decorated_function_uses_it(made: Made, decorated: DecoratedKernel) -> None:
    for size in (2048, 777):  # made for, and verified at others
        x = torch.randn(size)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(decorated(x), scaled_silu(x), rtol=1e-5, atol=1e-6)
        assert str(made.kernel) in decorated.explain(x)
    assert decorated.__name__ == "scaled_silu"


def test_a_global_that_has_become_another_is_noticed(
    made: Made, decorated: DecoratedKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2048)
    assert str(made.kernel) in decorated.explain(x)
    assert "always FACTOR = 1.0" in made.task.assumptions
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "FACTOR", 3.0)
        assert "the function itself runs" in decorated.explain(x)
        torch.testing.assert_close(decorated(x), 3.0 * made(x))
    assert str(made.kernel) in decorated.explain(x)


def test_a_module_of_ones_own_that_has_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_here(monkeypatch)
    (tmp_path / "tw_numbers.py").write_text("ONE = 1.0\n")
    (tmp_path / "tw_functions.py").write_text(
        "import torch, tw_numbers\n\n"
        "def scaled_silu(x, scale: float = 0.5):\n"
        "    return torch.nn.functional.silu(x) * scale * tw_numbers.ONE\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    numbers, functions = importlib.import_module("tw_numbers"), importlib.import_module("tw_functions")
    decorated, x = tw.kernel(functions.scaled_silu), torch.randn(64)
    put_into_library(functions.scaled_silu, kernel_text(RIGHT), x="64:f32")
    made = decorated.make(x=x, gpu="H200")
    assert "always tw_numbers_ONE = 1.0" in made.task.assumptions
    assert str(made.kernel) in decorated.explain(x)
    monkeypatch.setattr(numbers, "ONE", 3.0)
    with pytest.warns(ReferenceUsed):
        torch.testing.assert_close(decorated(x), 3.0 * made(x))


def test_what_the_kernel_was_not_made_for_runs_the_function(made: Made) -> None:
    strict = tw.kernel(strict=True)(scaled_silu)
    x = torch.randn(64)
    assert strict(x).shape == (64,)
    torch.testing.assert_close(strict(x.reshape(8, 8)), scaled_silu(x).reshape(8, 8))  # it does the same with each
    for call in ((x.double(),), (x, 0.25)):
        with pytest.raises(NoKernelApplies, match="make one with"):
            strict(*call)
    loose = tw.kernel(scaled_silu)
    wanted = torch.randn(64, requires_grad=True)
    with pytest.warns(ReferenceUsed, match="grad"):
        loose(wanted).sum().backward()
    assert wanted.grad is not None


@pytest.mark.slow
def test_a_later_process_finds_it_free(made: Made, home: Path) -> None:
    program = (
        "import sys, torch, tilewright as tw\n"
        "from tests.frontends.test_api import scaled_silu\n"
        "f = tw.make(scaled_silu, x='2048:f32', gpu='H200')\n"
        "assert f.run is None, f.run\n"
        "print(f.kernel, *sorted({'rich', 'typer', 'click', 'anthropic', 'openai'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(made.kernel)]  # and no terminal package was needed


def test_words_are_not_accepted_unseen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = record(tmp_path / "recording", ("0000-1", SPECIFICATION))
    with pytest.raises(NotAcceptedYet, match="yes=True") as caught:
        tw.make("scaled SiLU", x="64:f32", model=f"replay:{recording}")
    assert "def scaled_silu" in caught.value.specification.reference
    assert str(caught.value).count("def scaled_silu") == 1
    assert "def scaled_silu" not in capsys.readouterr().err  # once is enough, and the exception has it


def test_an_author_who_was_not_asked_is_named(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    tw.make(scaled_silu, x="2048:f32", gpu="H200", author="playbook", license="MIT")
    said = capsys.readouterr().err
    assert f"({made.entry.author}, " in said
    assert "so playbook was not asked for one; fresh=True has it made anew by playbook" in said
    assert "license='MIT'" in said
    tw.make(scaled_silu, x="2048:f32", gpu="H200")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("library already made by run ")
    assert line.endswith("; fresh=True makes it anew")
    tw.make(scaled_silu, x="2048:f32", gpu="H200", quiet=True)
    assert capsys.readouterr().err == ""


def test_a_call_with_strides_is_told_what_helps(made: Made) -> None:
    x = torch.randn(4096)[::2]
    with pytest.warns(ReferenceUsed, match=r"pass x\.contiguous\(\)") as caught:
        torch.testing.assert_close(tw.kernel(scaled_silu)(x), scaled_silu(x))
    said = str(caught[0].message)
    assert said.startswith("scaled_silu: no kernel takes this call, so the function itself runs (said once):\n")
    assert ".make(" not in said  # one made for these sizes would take no strides either
    assert "load(" not in said


def test_a_warning_points_at_the_call(made: Made) -> None:
    with pytest.warns(ReferenceUsed) as caught:
        tw.make(scaled_silu, x="2048:f32", gpu="H200")(torch.randn(8).double())
    assert caught[0].filename == __file__


def test_arguments_become_shapes_and_numbers() -> None:
    tensors, numbers = read_arguments(
        {"x": torch.zeros(2, 3, dtype=torch.bfloat16), "y": "8x8:f16", "eps": 1e-5, "k": 3}
    )
    assert tensors == {"x": "2x3:bf16", "y": "8x8:f16"}
    assert numbers == {"eps": "1e-05", "k": "3"}
    with pytest.raises(BadArgument, match="give a tensor"):
        read_arguments({"x": object()})


@pytest.mark.parametrize("thing", [torch.nn.ReLU(), 3, torch.relu], ids=["a module", "a number", "a builtin"])
def test_only_functions_are_decorated(thing: Any) -> None:
    with pytest.raises(BadArgument, match="is no plain Python function"):
        tw.kernel(thing)


def test_importing_and_decorating_spend_nothing(home: Path) -> None:
    before = sorted(home.rglob("*"))
    DecoratedKernel(scaled_silu)
    assert sorted(home.rglob("*")) == before


def test_a_mistake_is_said_in_terms_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("def add(x, y):\n    return x + y\n")
    with pytest.raises(TaskError, match='write y="8:f32", or y=VALUE if it is a number'):
        tw.make(f"{tmp_path}/ops.py:add", x="8:f32", attempts=2)
    assert {"make", "kernel", "load"} <= set(dir(tw))


def test_a_file_to_improve_is_not_answered_from_the_library(made: Made) -> None:
    with pytest.raises(NoKernelMade) as caught:  # a file that is refused is quick to be judged
        tw.make(scaled_silu, x="2048:f32", gpu="H200", start="// no plan\n", author="playbook", attempts=1, quiet=True)
    assert [one.summary for one in caught.value.run.attempts] == ["the kernel file to start from"]
