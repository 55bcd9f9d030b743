"""The corpus: kernel files whose verdict is known beforehand, and the tasks they are judged by.

`wrong/` holds files that cheat or are subtly wrong, `honest/` unusual ones that are right; `wrong.jsonl` and
`honest.jsonl` say for each its task, what kind of fault or liberty it has, and for wrong ones which evidence is the
right reason to reject it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.records import Task
from tilewright.tasks import TaskOptions, task_from_folder

FOLDER = Path(__file__).resolve().parent
HONEST, WRONG = "honest", "wrong"


@dataclass(frozen=True)
class Entry:
    """One kernel file. `reasons` are names of records of evidence; none for a file that is right."""

    name: str
    task: str
    kind: str
    why: str = ""  # it is wrong, or unusual; "" where the name says it
    reasons: tuple[str, ...] = ()
    open: str = ""  # why the verdict is not yet as it should be; "" where it is
    choice: dict[str, int | bool] = field(default_factory=dict)  # of its `tune` constants, where only that one is wrong

    @property
    def honest(self) -> bool:
        return not self.reasons

    @property
    def path(self) -> Path:
        return FOLDER / (HONEST if self.honest else WRONG) / f"{self.name}.cu"

    @property
    def text(self) -> str:
        return self.path.read_text()


def load(*sides: str) -> tuple[Entry, ...]:
    """The entries of `HONEST` or `WRONG`; of both where neither is said."""
    lines = [line for side in sides or (WRONG, HONEST) for line in (FOLDER / f"{side}.jsonl").read_text().splitlines()]
    return tuple(entry_from(json.loads(line)) for line in lines if line.strip())


def entry_from(row: dict[str, Any]) -> Entry:
    return Entry(**{**row, "reasons": tuple(row.get("reasons", ()))})


def task_of(name: str) -> Task:
    return task_from_folder(FOLDER / "tasks" / name, TaskOptions())
