"""What a request is taken for, and what is said of one that cannot be taken; nothing here starts a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tasks.functions import SOURCE
from tests.tasks.in_process import ask_here

from tilewright.reference import ReferenceProblem
from tilewright.tasks import TaskError, TaskOptions, open_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("requests")
    (made / "ops.py").write_text(SOURCE)
    (made / "broken.py").write_text("def f(x:\n")
    (made / "binary.py").write_bytes(b"\xff\xfe\x00")
    (made / "star.py").write_text("def f(*xs): return xs\n")
    (made / "relative.py").write_text("from . import other\ndef f(x): return other.g(x)\n")
    (made / "module.py").write_text("import torch\nclass M(torch.nn.Module):\n    pass\n")
    (made / "empty").mkdir()
    return made


@pytest.mark.parametrize(
    "words",
    ["softmax over the last dimension", "GELU (exact) of x + y", "port old.py of mine.py", "like a.py: gelu"],
)
def test_words_are_words(words: str) -> None:
    assert open_task(words, {}, {}, {}, TaskOptions()) is None


@pytest.mark.parametrize(
    ("request_text", "shapes", "numbers", "message"),
    [
        (" ", {}, {}, "the request is empty"),
        ("nowhere.py:f", {}, {}, "nowhere.py: no such file; give FILE.py:FUNCTION, a folder, or words"),
        ("{}/ops.py:layernorm", {}, {}, "defines no function 'layernorm'; it has layernorm_gelu, matmul_bias"),
        ("{}/ops.py", {}, {}, "defines layernorm_gelu, .*; say which: "),
        ("{}/broken.py:f", {}, {}, "line 1: this is not Python"),
        ("{}/binary.py:f", {}, {}, "is not a text in UTF-8"),
        ("{}/star.py:f", {}, {}, r"f takes \*xs; an op has named parameters"),
        (
            "{}/relative.py:f",
            {"x": "8"},
            {},
            "cannot be imported: ImportError: cannot import name 'other' from 'requests",
        ),
        ("{}/module.py:M", {}, {}, "M defines no forward"),
        ("{}/empty", {}, {}, "is a folder without task.toml"),
        ("tests", {}, {}, "tests is a folder without task.toml; .* or say in more words what is wanted"),
        (
            "{}/ops.py:layernorm_gelu",
            {"x": "8x8:bf16"},
            {},
            r"layernorm_gelu\(x, weight, bias, eps=1e-05, approximate='none'\): no shape is given for weight; "
            "give a shape for weight, such as 8x8:bf16",
        ),
        ("{}/ops.py:scale_", {"x": "8"}, {}, "no value is given for factor; give a number for factor"),
        ("{}/ops.py:add", {"x": "8", "z": "8"}, {}, "shape of z: add has no such parameter; it has x, y"),
        ("{}/ops.py:add", {"x": "8", "y": "8:bfloat17"}, {}, "'bfloat17' is not a dtype; write one of"),
        ("{}/ops.py:add", {"x": "8", "y": "8by8"}, {}, "'8by8' is not a shape; write sizes and a dtype"),
        ("{}/ops.py:scale_", {"x": "8"}, {"factor": "big"}, "number of factor, big: scale_'s factor takes a number"),
        ("{}/ops.py:add(3)", {"x": "8"}, {}, "add is no class, so it takes no arguments here"),
        ("{}/module.py:M(32", {"x": "8"}, {}, r"M\(32: a bracket is not closed; write .*module.py:CLASS\(ARGUMENTS\)"),
        ("{}/ops.py:add now", {"x": "8"}, {}, "'add now' is no name in a file; write .*ops.py:FUNCTION"),
        ("{}/ops.py:", {}, {}, "'' is no name in a file"),
    ],
)
def test_requests_that_make_no_task(
    folder: Path,
    request_text: str,
    shapes: dict[str, str],
    numbers: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask_here(monkeypatch)
    with pytest.raises((TaskError, ReferenceProblem), match=message):
        open_task(request_text.format(folder), shapes, numbers, {}, TaskOptions())


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        ({"q": "normal"}, "values of q: add has no such parameter; it has x, y"),
        (
            {"x": "weird"},
            "values of x, weird: 'weird' describes no values; write normal, normal:MEAN:DEVIATION, uniform",
        ),
        ({"y": "normal"}, "values of y, normal: i32 cannot hold normal; write integers:LOW:HIGH"),
    ],
)
def test_values_that_cannot_be_held(folder: Path, fill: dict[str, str], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        open_task(f"{folder}/ops.py:add", {"x": "8", "y": "8:i32"}, {}, fill, TaskOptions())


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(TaskError, match="'H900' is no known GPU; write one of"):
        TaskOptions(gpu="H900")


PACKAGE = {
    "pieces_of_it/__init__.py": "",
    "pieces_of_it/base.py": """
import torch
from dataclasses import dataclass

@dataclass
class Config:
    size: int = 64
    eps: float = 1e-5

class Base(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.weight = torch.nn.Parameter(torch.ones(config.size))

    def forward(self, hidden):
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.config.eps) * self.weight
""",
    "pieces_of_it/inner/__init__.py": "",
    "pieces_of_it/inner/helper.py": "def two(): return 2.0\n",
    "pieces_of_it/inner/model.py": """
from ..base import (
    Base, Config,
)
from . import helper

class Inheriting(Base):
    pass

class Louder(Base):
    def forward(self, hidden, mode: str = "plain"):
        return super().forward(hidden) * helper.two()
""",
}


@pytest.mark.parametrize("name", ["Inheriting", "Louder", "Base"])
def test_a_file_of_a_package_with_what_it_imports_and_inherits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ask_here(monkeypatch)
    for place, text in PACKAGE.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    request = f"{tmp_path}/pieces_of_it/inner/model.py:{name}(Config(size=16))"
    task = open_task(request, {"x": "4x16:f32"}, {}, {}, TaskOptions())
    assert task is not None
    assert [one.name for one in task.tensors] == ["hidden", "weight"]
    assert {one.name: one.varies for one in task.dimensions} == {"rows": True, "cols": True}
    assert f"the reference imports pieces_of_it from {tmp_path}, and can be run only where they are found" in (
        task.assumptions
    )
