"""Who judges a case: the reference here, or the one where the GPU is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.verify import tasks

from tilewright.records import Case, Dimension, Task
from tilewright.verify.candidate import LARGEST_DATA, Judges, drawn_by_seed
from tilewright.verify.distributions import TASK


@dataclass(frozen=True)
class Named:
    """A reference that is asked nothing."""

    name: str
    sees_gpu: bool
    most_bytes: int | None = None

    def call(self, handler: str, request: Any, answer: Any, seconds: float = 60.0) -> Any:
        raise AssertionError("nobody is to be asked")

    def close(self) -> None:
        pass


CPU, LOCAL = Named("a CPU here", False), Named("a GPU here", True)
FAR = Named("a GPU elsewhere", True, 256 << 20)
SMALL, MIDDLE, SEEDED, HUGE = 1000, 1 << 22, 1 << 25, 1 << 27  # elements of f32


def judge(judges: Judges, elements: int, values: str = TASK, task: Task = tasks.DOUBLE) -> str | None:
    sized = replace(task, dimensions=(Dimension(task.dimensions[0].name, elements),))
    found = judges.of(sized, Case(sized.sizes, 1, values))
    assert found is None or isinstance(found, Named)
    return found.name if found else None


@pytest.mark.parametrize(
    ("elements", "values", "alone", "local", "spooled"),
    [
        (SMALL, TASK, CPU, LOCAL, CPU),
        (SMALL, "impulse", CPU, LOCAL, CPU),
        (MIDDLE, TASK, CPU, LOCAL, FAR),  # a CPU would take long
        (MIDDLE, "impulse", CPU, LOCAL, FAR),  # its bytes travel, so whoever gets them can judge
        (SEEDED, TASK, None, LOCAL, FAR),
        (SEEDED, "impulse", None, None, None),  # no device draws these
        (HUGE, TASK, None, LOCAL, None),  # the results are too large to send
    ],
)
def test_who_judges_what(
    elements: int, values: str, alone: Named | None, local: Named | None, spooled: Named | None
) -> None:
    found = [judge(one, elements, values) for one in (Judges(CPU), Judges(LOCAL), Judges(CPU, FAR))]
    assert found == [one.name if one else None for one in (alone, local, spooled)]


def test_inputs_that_travel_count_as_sent_and_those_drawn_by_seed_do_not() -> None:
    narrow = Judges(CPU, Named("narrow", True, 48 << 20))
    travelling, seeded = (LARGEST_DATA // 8, LARGEST_DATA // 4 + 1)  # elements of 4 bytes, as many made as given
    assert judge(narrow, travelling) == CPU.name  # 32 MiB given and 32 made: too much, and a CPU can do it
    assert judge(narrow, travelling // 2) == "narrow"
    assert judge(narrow, seeded) is None
    assert judge(Judges(CPU, Named("wide", True, 65 << 20)), seeded) == "wide"


def test_what_is_changed_in_place_is_sent_back() -> None:
    task = tasks.ACCUMULATE
    dimension = task.dimensions[0].name
    sized = replace(task, dimensions=(Dimension(dimension, 1 << 24),))  # y and delta, 64 MiB each
    case = Case(sized.sizes, 1)
    assert drawn_by_seed(sized, case)
    assert Judges(CPU, Named("narrow", True, 63 << 20)).of(sized, case) is None
    assert Judges(CPU, wide := Named("wide", True, 64 << 20)).of(sized, case) is wide
