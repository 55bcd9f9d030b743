"""Which tasks a folder holds, and what is said where it holds none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.suites import NoTasks, folder_tasks, kernelbench_tasks
from tilewright.suites.collecting import numbers_in

PROBLEM = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for level, names in ((1, ("2_b", "10_j", "1_a")), (2, ("1_x",))):
        folder = tmp_path / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.py").write_text(PROBLEM)
    (tmp_path / "KernelBench" / "level1" / "notes.py").write_text("")
    return tmp_path


def test_numbers_and_ranges() -> None:
    assert numbers_in("1-3,7, 5 - 5,2") == (1, 2, 3, 7, 5)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "1-2-3", "-4"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(NoTasks, match="1-49,51"):
        numbers_in(text)


def test_problems_of_a_level_in_the_order_of_their_numbers(checkout: Path) -> None:
    for folder in (checkout, checkout / "KernelBench", checkout / "KernelBench" / "level1"):
        tasks = kernelbench_tasks(folder, 1)
        assert [(one.id, one.name) for one in tasks] == [("1", "1_a"), ("2", "2_b"), ("10", "10_j")]
    assert Path(tasks[0].request.text) == checkout / "KernelBench" / "level1" / "1_a.py"
    assert [one.id for one in kernelbench_tasks(checkout, 1, "10,1")] == ["10", "1"]
    with pytest.raises(NoTasks, match=r"no problem 3; it has 1 to 10"):
        kernelbench_tasks(checkout, 1, "1-3")
    with pytest.raises(NoTasks, match="level3"):
        kernelbench_tasks(checkout, 3)


def test_a_folder_without_a_listing_has_its_problem_files_and_task_folders(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "task.toml").write_text("")
    (tmp_path / "relu.py").write_text(PROBLEM)
    (tmp_path / "helpers.py").write_text("def f(x): return x\n")
    assert [one.id for one in folder_tasks(tmp_path)] == ["norm", "relu"]
    with pytest.raises(NoTasks, match=r"suite\.toml"):
        folder_tasks(tmp_path / "norm")


def test_a_listing_gives_functions_their_shapes(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("def f(x, eps): return x + eps\n")
    (tmp_path / "suite.toml").write_text(
        '[[task]]\nrequest = "ops.py:f"\nshape = { x = "4x8:f32" }\nset = { eps = 1e-5, flag = true }\n'
        '[[task]]\nname = "words"\nrequest = "softmax over the last dimension"\n'
        f'[[task]]\nname = "long"\nrequest = "{"softmax, then " * 60}"\n'
    )
    first, words, long = folder_tasks(tmp_path)
    assert long.request.text == "softmax, then " * 60
    assert first.id == "ops-f"
    assert first.request.text == f"{tmp_path / 'ops.py'}:f"
    assert (first.request.shapes, first.request.numbers) == ({"x": "4x8:f32"}, {"eps": "1e-05", "flag": "true"})
    assert (words.id, words.request.text) == ("words", "softmax over the last dimension")


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        ("[[task]]\nname = 'a'\n", "has no request"),
        ("[[task]]\nrequest = 'a'\nshapes = {}\n", "'shapes' is unknown"),
        ("[[task]]\nrequest = 'a'\nshape = 'x'\n", "no table"),
        ("[[task]]\nrequest = 'a'\n[[task]]\nrequest = 'a'\n", "two tasks are called 'a'"),
        ("task = 3\n", r"\[\[task\]\]"),
        ("[[task\n", "suite.toml"),
    ],
)
def test_a_listing_that_cannot_be_read_says_what_is_wrong(tmp_path: Path, listing: str, said: str) -> None:
    (tmp_path / "suite.toml").write_text(listing)
    with pytest.raises(NoTasks, match=said):
        folder_tasks(tmp_path)
