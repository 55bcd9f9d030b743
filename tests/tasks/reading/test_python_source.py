"""What a source says of its function, where a line may be put into it, and what a file keeps for one function."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.tasks.in_process import ask_here

from tilewright.records import Task
from tilewright.tasks import TaskOptions, open_task, task_from_module
from tilewright.tasks.reading.python_source import (
    find_function,
    names_in,
    needed_source,
    parameters_of,
    result_names,
    usable_name,
    with_neighbours,
)


def test_a_line_for_neighbours_goes_behind_docstring_and_future(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    source = '"""Words."""\n\nfrom __future__ import annotations\n\nimport helper\n\ndef f(x): return x\n'
    found, notes = with_neighbours(source, "mine.py", tmp_path)
    assert found.split("\n")[3] == f"import sys; sys.path.insert(0, {str(tmp_path)!r})  # for helper"
    compile(found, "mine.py", "exec")
    assert "imports helper from" in notes[0]
    assert with_neighbours("import math\n", "mine.py", tmp_path) == ("import math\n", ())


def test_parameters_and_results() -> None:
    head = "def f(x, /, y: int, *, z=(1, 2), w=torch.pi, v: float = 1):"
    source = f"{head}\n    def g(): return 3\n    a = b = x\n    return a, b\n"
    node = find_function(ast.parse(source), "f", "here")
    found = parameters_of(node, "here")
    assert [one.name for one in found] == ["x", "y", "z", "w", "v"]
    assert [one.positional_only for one in found] == [True, False, False, False, False]
    assert [one.default for one in found] == [None, None, "(1, 2)", "torch.pi", "1"]
    assert [one.value for one in found] == [None, None, (1, 2), None, 1]
    assert result_names(node) == ("a", "b")


@pytest.mark.parametrize(
    ("name", "usable"),
    [("36_RMSNorm_", "RMSNorm"), ("conv.weight", "conv_weight"), ("min", "min_in"), ("__", "op"), ("x", "x_2")],
)
def test_usable_names(name: str, usable: str) -> None:
    assert usable_name(name, ("x",)) == usable


FILE = '''"""Operations of ours."""
from __future__ import annotations

import math
import json
import torch
import torch.nn.functional as F
from torch import nn

EPS = 1e-5
LIMIT: float = 3.0
unused = json.dumps({})
torch.backends.cudn = None
table = {}
table["a"] = EPS


def helper(x: "Box"):
    return x * table["a"] + math.pi


# what nobody asks for
@torch.no_grad()
def other(x):
    return json.loads(x)


class Box(nn.Module):
    def forward(self, x):
        return F.silu(x)


def wanted(x, w):
    global LIMIT
    return helper(x) * w


wanted_too = wanted
if torch.cuda.is_available():
    helper = torch.compile(helper)
x = torch.ones(3)
if __name__ == "__main__":
    EPS = 2
    print(wanted(1, 2))
print(other)
'''


def kept(source: str, *names: str) -> set[str]:
    """The first lines of the statements that are left."""
    text = needed_source(source, names)
    return {ast.unparse(node).splitlines()[0] for node in ast.parse(text).body}


def test_what_the_function_reaches_is_kept_and_nothing_else() -> None:
    found = kept(FILE, "wanted")
    for needed in (
        "import math",
        "EPS = 1e-05",
        "LIMIT: float = 3.0",
        "table = {}",
        "table['a'] = EPS",
        "import torch",
    ):
        assert needed in found
    for needed in ("def helper(x: 'Box'):", "class Box(nn.Module):", "if torch.cuda.is_available():"):
        assert needed in found
    assert "torch.backends.cudn = None" in found  # it acts on what is used
    for gone in ("import json", "unused = json.dumps({})", "def other(x):", "x = torch.ones(3)", "print(other)"):
        assert gone not in found
    assert "if __name__ == '__main__':" not in found
    text = needed_source(FILE, {"wanted"})
    assert text.startswith('"""Operations of ours."""')
    assert "what nobody asks for" not in text
    assert "@torch.no_grad()" not in text


def test_what_comes_of_it_still_runs() -> None:
    space: dict[str, object] = {}
    exec(
        compile(needed_source(FILE.replace("from torch import nn", "import torch.nn as nn"), {"wanted"}), "f", "exec"),
        space,
    )
    assert callable(space["wanted"])
    assert "other" not in space


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return x\n",
        "not python at all (",
        "def f(x):\n    return globals()['g'](x)\n\n\ndef g(x):\n    return x\n",
        "import a; import b\n\n\ndef f(x):\n    return b.g(x)\n",
    ],
)
def test_what_cannot_be_told_apart_is_left_alone(source: str) -> None:
    assert needed_source(source, {"f"}) == source


def test_custom_ops_keep_every_import() -> None:
    source = "import torch\nimport my_ops\n\n\ndef f(x):\n    return torch.ops.my_ops.f(x)\n"
    assert "import my_ops" in needed_source(source, {"f"})


def test_names_of_an_expression() -> None:
    assert names_in("Block(WIDTH, bias=make())") == {"Block", "WIDTH", "make"}


def _task(path: Path) -> Task:
    task = open_task(f"{path}:f", {"x": "64:f32"}, {}, {}, TaskOptions())
    assert task is not None
    return task


def test_another_function_in_the_file_makes_no_other_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_here(monkeypatch)
    path = tmp_path / "ops.py"
    text = "import torch\n\n\ndef f(x):\n    return torch.relu(x) + 1\n"
    made = []
    for more in ("", "\n\ndef other(x):\n    return x + 1\n", "\n\nimport missing_module\n\nclass Later: pass\n"):
        path.write_text(text + more)
        made.append(_task(path))
    assert len({task.hash for task in made}) == 1
    path.write_text(text.replace("+ 1", "+ 2"))
    assert _task(path).hash != made[0].hash


def test_a_module_has_what_it_and_its_constructor_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_here(monkeypatch)
    path = tmp_path / "layers.py"
    path.write_text(
        "import torch\nimport missing_module\n\nWIDTH = 32\n\n\nclass Scale(torch.nn.Module):\n"
        "    def __init__(self, width):\n        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.ones(width))\n\n"
        "    def forward(self, x):\n        return x * self.weight\n\n\nclass Other:\n    pass\n"
    )
    task = task_from_module(path, "Scale", "WIDTH", {"x": "8x32:f32"}, TaskOptions())
    assert "missing_module" not in task.reference
    assert "class Other" not in task.reference
