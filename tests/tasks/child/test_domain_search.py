"""References that branch on sizes or numbers: what their tasks say of it, and that honest ones are not restricted."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from tests.tasks.in_process import ask_here, probed

from tilewright.kernel_file import needs_of_task
from tilewright.records import Dimension, NumberBounds, Task
from tilewright.tasks import TaskOptions, task_from_folder

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\n\n\n"
X = {"x": "64x256"}

Limits = tuple[bool, int, int, int | None]  # varies, multiple of, at least, at most


def task_of(source: str, shapes: dict[str, str] | None = None, **numbers: str) -> Task:
    return probed(HEAD + source, "f", shapes or X, numbers)[0]


def limits(one: Dimension) -> Limits:
    return one.varies, one.multiple_of, one.at_least, one.at_most


def branching(task: Task) -> dict[str, Limits]:
    return {one.name: limits(one) for one in task.dimensions if one.branches}


FREE: Limits = (True, 1, 1, None)
BY_COLUMNS = "def f(x):\n    return F.softmax(x, -1) if x.shape[1] > 512 else F.log_softmax(x, -1)\n"
BY_NUMBER = "def f(x, t: float = 2.0):\n    return x * t if t > 1.0 else x + t\n"


def test_a_branch_on_columns_bounds_them_and_says_where() -> None:
    task = task_of(BY_COLUMNS)
    assert branching(task) == {"cols": (True, 1, 1, 512)}
    assert limits(task.dimensions[0]) == FREE
    (said,) = task.assumptions
    assert said.startswith("cols is at most 512, because the reference does something else otherwise (line 7: return F")


@pytest.mark.parametrize(("shape", "least"), [("64x1024", 513), ("64x513", 513)])
def test_the_other_side_is_bounded_below(shape: str, least: int) -> None:
    assert branching(task_of(BY_COLUMNS, {"x": shape})) == {"cols": (True, 1, least, None)}


@pytest.mark.parametrize(
    ("given", "bounds"),
    [("2.0", NumberBounds(1.0, None, low_excluded=True)), ("0.5", NumberBounds(None, 1.0))],
)
def test_a_branch_on_a_number_bounds_it(given: str, bounds: NumberBounds) -> None:
    task = task_of(BY_NUMBER, t=given)
    assert task.numbers[0].bounds == bounds
    assert not branching(task)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x * 2 if x.shape[0] % 2 else x * 3", {"rows": (True, 2, 1, None)}),
        ("x * 2 if len(x) > 100 else x * 3", {"rows": (True, 1, 1, 100)}),
        ("x * 2 if x.size(-1) in (128, 256) else x * 3", {"cols": (False, 1, 1, None)}),
        ("x * 2 if x.numel() > 65536 else x * 3", {"rows": (False, 1, 1, None), "cols": (True, 1, 1, 1024)}),
        ("x * 2 if x.shape[1:].numel() > 300 else x * 3", {"cols": (True, 1, 1, 300)}),
        ("x * 2 if (x @ x.T)[:, :9].shape[0] > 300 else x * 3", {"rows": (True, 1, 1, 300)}),
        ("x * 2 if math.ceil(x.shape[1] / 64) > 8 else x * 3", {"cols": (True, 1, 1, 512)}),
        ("x * 2 if int(x.shape[1] ** 0.5) > 20 else x * 3", {"cols": (True, 1, 1, 440)}),
        ("x.topk(min(x.shape[1], 400), -1).values.sum(-1)", {"cols": (True, 1, 1, 400)}),
        ("x * {256: 2.0}.get(x.shape[1], 3.0)", {"cols": (False, 1, 1, None)}),
        ("x * 2 if x.shape[1] == 1 else x * 3", {"cols": (True, 1, 2, None)}),
    ],
)
def test_kinds_of_questions(body: str, found: dict[str, Limits]) -> None:
    assert branching(task_of(f"def f(x):\n    return {body}\n")) == found


def test_a_branch_in_a_module_and_in_a_function_within_a_function() -> None:
    module = (
        "class Model(torch.nn.Module):\n    limit = 300\n\n    def forward(self, x):\n"
        "        def wide(n):\n            return n > self.limit\n\n"
        "        return x * 2 if wide(x.shape[1]) else x * 3\n\n\n"
        "def f(x):\n    return Model()(x)\n"
    )
    assert branching(task_of(module)) == {"cols": (True, 1, 1, 300)}


def test_a_branch_in_a_module_that_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_it.py").write_text("def is_wide(x):\n    return len(x.T) > 300\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    task = task_of("import beside_it\n\n\ndef f(x):\n    return x * 2 if beside_it.is_wide(x) else x * 3\n")
    sys.modules.pop("beside_it")
    assert branching(task) == {"cols": (True, 1, 1, 300)}
    assert "(line 2 of beside_it.py: return len(x.T) > 300)" in task.assumptions[0]


def test_a_branch_on_a_loops_index() -> None:
    source = "def f(x):\n    for i in range(x.shape[1]):\n        if i > 40:\n            x = x + 1\n    return x * 2\n"
    assert branching(task_of(source, {"x": "8x16"})) == {"cols": (True, 1, 1, 41)}


def test_what_only_calls_can_answer_is_bounded_by_calls() -> None:
    pieces = (
        "def g(x):\n    return x * 2 if x.shape[1] > 300 else x * 3\n\n\n"
        "def f(x):\n    n = x.shape[1] // 3\n    return torch.cat([g(one) for one in (x[:, :n], x[:, n:])], 1)\n"
    )
    assert branching(task_of(pieces)) == {"cols": (True, 1, 1, 450)}
    loops = (
        "def f(x):\n    for i in range(x.shape[0]):\n        for j in range(i):\n"
        "            if j > 20:\n                x = x + 1\n    return x * 2\n"
    )
    assert branching(task_of(loops, {"x": "8x16"})) == {"rows": (True, 1, 1, 22)}


def test_whole_numbers_and_numbers_beside_sizes() -> None:
    modes = "def f(x, mode: int = 1):\n    if mode == 0:\n        return x * 2\n    return x * 3 if mode == 1 else x\n"
    assert task_of(modes).numbers[0].bounds == NumberBounds(1, 1)
    beside = task_of("def f(x, k: int = 3):\n    return x * 2 if x.shape[1] > k else x * 3\n")
    assert beside.numbers[0].bounds == NumberBounds(3, 3)
    assert branching(beside) == {"cols": (True, 1, 4, None)}


def test_a_size_that_is_broadcast_is_not_another() -> None:
    source = "def f(x, b):\n    return x * b * 2 if b.shape[0] == 1 else x * b\n"
    assert branching(task_of(source, {"x": "64x256", "b": "1"})) == {"one": (False, 1, 1, None)}


# -- what is no branch, or one that decides nothing --

HONEST = {
    "a choice of elements": "def f(x, t: float = 0.5):\n    return torch.where(x > t, x, t * x)\n",
    "a recurrence": (
        "def f(x):\n    made = [x[:, 0]]\n    for i in range(1, x.shape[1]):\n"
        "        made.append(made[-1] * 0.5 + x[:, i])\n    return torch.stack(made, 1)\n"
    ),
    "ever longer steps": (
        "def f(x):\n    step = 1\n    while step < x.shape[1]:\n"
        "        x = x + F.pad(x[:, :-step], (step, 0))\n        step *= 2\n    return x\n"
    ),
    "pieces, the last one shorter": (
        "def f(x):\n    made = []\n    for i in range(0, x.shape[1], 64):\n"
        "        made.append(x[:, i : min(i + 64, x.shape[1])].cumsum(1))\n    return torch.cat(made, 1)\n"
    ),
    "pieces where there is much": (
        "def f(x):\n    if x.shape[1] > 512:\n        return torch.cat([F.softmax(one, -1) for one in x.split(8)])\n"
        "    return F.softmax(x, -1)\n"
    ),
    "nothing to do": "def f(x, a: float = 0.5):\n    if a != 1.0:\n        x = x * a\n    return x.relu()\n",
    "one column": "def f(x):\n    return torch.zeros_like(x) if x.shape[1] == 1 else x - x.mean(-1, keepdim=True)\n",
    "a number of times": "def f(x, k: int = 3):\n    for _ in range(k):\n        x = x * 0.5 + 1\n    return x\n",
    "a flag": "def f(x, causal: bool = True):\n    return x.tril() if causal else x * 2\n",
    "torch's own": "def f(x):\n    return F.scaled_dot_product_attention(x[None], x[None], x[None])[0]\n",
    "a kind as a value": "def f(x):\n    return x * torch.arange(len(x), dtype=int)[:, None]\n",
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_honest_references_are_not_bounded(source: str) -> None:
    task = task_of(source, {"x": "24x40"})
    assert [limits(one) for one in task.dimensions] == [FREE, FREE]
    assert all(one.bounds is None for one in task.numbers)
    assert task.assumptions == ()


def test_sizes_that_a_person_fixes_are_declined_where_it_branches_on_what_follows_from_them() -> None:
    source = "def f(x, w):\n    y = x @ w\n    return y * 2 if y.shape[1] > 100 else y\n"
    task, _ = probed(HEAD + source, "f", {"x": "64x256", "w": "256x96"}, fixed_all=True)
    assert [(one.size, one.varies) for one in task.dimensions if one.branches] == [(96, False)]


def test_what_is_only_refused_bounds_cases_and_no_file() -> None:
    task = task_of("def f(x):\n    assert x.shape[1] <= 1024, 'too wide'\n    return x * 2\n")
    assert limits(task.dimensions[1]) == (True, 1, 1, 1024)
    number = task_of("def f(x, p: float = 0.8):\n    assert 0 <= p <= 1\n    return x * p\n")
    assert number.numbers[0].bounds == NumberBounds(0.0, 1.0, branches=False)
    for one in (task, number):
        assert not branching(one)
        assert needs_of_task(one) == one.assumptions == ()


def test_axes_that_are_asked_to_be_equal_stay_together() -> None:
    source = "def f(a, b):\n    return a * 2 + b.sum() if a.shape[0] == b.shape[0] else a * 3 + b.sum()\n"
    task = task_of(source, {"a": "64x32", "b": "64"})
    assert [one.dimensions for one in task.tensors] == [("rows", "cols"), ("rows",)]


def test_what_cannot_be_watched_is_found_by_calls_alone_and_says_so() -> None:
    source = (
        "def f(x):\n    if type(x.shape[1]) is not int:\n        raise TypeError('no int')\n"
        "    return x * 2 if x.shape[1] > 512 else x * 3\n"
    )
    task = task_of(source)
    assert [limits(one) for one in task.dimensions] == [FREE, FREE]
    assert task.assumptions[0].startswith("branches of the reference were found by calls alone (TypeError: no int")


@pytest.mark.parametrize(
    "body", ["x * 2 if x.numel() > 65536 else x * 3", "x * t if t > 1.0 and x.shape[0] % 2 == 0 else x + t"]
)
def test_a_folder_is_bounded_too(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_here(monkeypatch)
    source = f"def f(x, t: float = 2.0):\n    return ({body}) * t\n"
    task = task_of(source, {"x": "64x256:f32"})
    names = task.tensors[0].dimensions
    sizes = "".join(f"{name} = {task.sizes[name]}\n" for name in names)
    inputs = f'x = "f32[{", ".join(names)}]"\nt = 2.0\n'
    (tmp_path / "reference.py").write_text(source)
    (tmp_path / "task.toml").write_text(f'name = "f"\n\n[dimensions]\n{sizes}\n[inputs]\n{inputs}')
    again = task_from_folder(tmp_path, TaskOptions())
    assert branching(again).keys() == branching(task).keys()
    assert again.numbers == task.numbers


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_what_is_scripted_is_not_seen_and_an_assumption_says_so() -> None:
    source = (
        "@torch.jit.script\ndef g(x):\n    return x * 2 if x.size(1) > 300 else x * 3\n\n\ndef f(x):\n    return g(x)\n"
    )
    reason = "torch.jit.script hides the branches of g"
    assert task_of(source).assumptions == (f"branches of the reference were found by calls alone ({reason})",)


def test_heads_that_are_repeated_may_be_as_many_as_they_are() -> None:
    source = (
        "def f(q, k):\n    times = q.shape[1] // k.shape[1]\n    if times > 1:\n"
        "        k = k.repeat_interleave(times, 1)\n    return q @ k.mT\n"
    )
    task = task_of(source, {"q": "2x8x32x16", "k": "2x2x32x16"})
    assert not branching(task)
    assert next(one for one in task.dimensions if one.size == 8).at_least <= 2


def test_the_reference_is_left_as_it_was() -> None:
    _, reference = probed(HEAD + BY_COLUMNS, "f", X)
    names = vars(sys.modules[reference.function.__module__])
    assert {"len", "range", "int", "float"}.isdisjoint(names)
    assert names["math"] is math
