"""What a source says of its function, and where a line may be put into it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tilewright.tasks.functions import with_neighbours
from tilewright.tasks.source import Computed, Literal, find_function, parameters_of, result_names, usable_name


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
    assert [one.default for one in found] == [None, None, Literal((1, 2)), Computed("torch.pi"), Literal(1)]
    assert result_names(node) == ("a", "b")


@pytest.mark.parametrize(
    ("name", "usable"),
    [("36_RMSNorm_", "RMSNorm"), ("conv.weight", "conv_weight"), ("min", "min_in"), ("__", "op"), ("x", "x_2")],
)
def test_usable_names(name: str, usable: str) -> None:
    assert usable_name(name, ("x",)) == usable
