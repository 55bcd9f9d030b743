"""What is said of the sizes that files take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.kernel_file.supported_sizes import size_limits
from tilewright.records import Dimension, DType, Task, TaskOutput, TensorInput

TASK = Task(
    "same",
    "def same(x):\n    return x\n",
    "same",
    (TensorInput("x", DType.F32, ("cols",)),),
    (TaskOutput("y", DType.F32, ("cols",)),),
    (Dimension("cols", 1000),),
)


@pytest.mark.parametrize(
    ("takes", "said"),
    [
        (lambda cols: cols % 8 == 0, (None, None, 8)),
        (lambda cols: cols % 8 == 0 and cols <= 3000, (None, 3000, 8)),
        (lambda cols: cols % 40 == 0, (None, None, 40)),
        (lambda cols: cols % 200 == 0 and cols <= 2200, (None, 2200, 200)),
        (lambda cols: cols <= 1003, (None, 1003, 1)),
        (lambda cols: 500 <= cols <= 1500, (500, 1500, 1)),
        (lambda cols: cols == 1000, (1000, 1000, 1)),
        (lambda cols: cols != 1001, (None, None, 1)),
    ],
)
def test_edges_and_multiples_are_found(takes: Callable[[int], bool], said: tuple[int | None, int | None, int]) -> None:
    (limit,) = size_limits(TASK, lambda sizes: takes(sizes["cols"]))
    assert (limit.at_least, limit.at_most, limit.multiple_of) == said
    assert limit.declined
    assert not any(takes(size) for size in limit.declined)


def test_nothing_is_said_where_all_are_taken() -> None:
    assert size_limits(TASK, lambda sizes: True) == ()
