"""Tasks whose results have other sizes than their inputs, and the check of every structure for them on the emulator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.playbook.agreement import check, load_structure
from tests.playbook.functions import Function, ask_of

from tilewright.playbook.families import Answer, Structure
from tilewright.playbook.tracing import TraceRequest, Traces
from tilewright.playbook.understanding import answer
from tilewright.records import Dimension, DType, Precision, SizeFormula, Task, TaskOutput, TensorInput

SIZES = {"rows": 64, "cols": 256, "batch": 3, "heads": 2, "words": 20, "depth": 12, "height": 32, "width": 64}
SIZES |= {"keys": 70, "size": 64, "few": 1, "wide": 512, "long": 2048}
SIZES |= {"three": 3, "five": 5, "two": 2, "one": 1}
ARCHITECTURES = {"sm_80": "A100", "sm_89": "L4", "sm_90a": "H200"}


@dataclass(frozen=True)
class Placed:
    """A body in PyTorch over inputs such as `x: f32[rows, half = cols / 2]`, and results written in the same way."""

    name: str
    body: str
    inputs: str
    results: str
    at: tuple[dict[str, int], ...]  # sizes to check at, beside the task's own for the rest
    multiples: tuple[tuple[str, int], ...] = ()
    precision: Precision = Precision.DTYPE

    @property
    def function(self) -> Function:
        names = re.sub(r"(\w+) = [^,\]]+", r"\1", self.inputs)
        return Function(self.name, self.body, names)

    @property
    def task(self) -> Task:
        dimensions: dict[str, Dimension] = {}

        def sizes(text: str) -> tuple[str | int, ...]:
            found: list[str | int] = []
            for one in (part.strip() for part in text.split(",") if part.strip()):
                name, _, formula = (part.strip() for part in one.partition("="))
                if name.isdigit():
                    found.append(int(name))
                    continue
                if formula:
                    parsed = SizeFormula.parse(formula)
                    own = parsed.at({key: value.size for key, value in dimensions.items()})
                    dimensions.setdefault(name, Dimension(name, own, formula=parsed))
                multiple = dict(self.multiples).get(name, 1)
                dimensions.setdefault(name, Dimension(name, SIZES.get(name, 8), name != "one", multiple))
                found.append(name)
            return tuple(found)

        inputs = []
        for text in self.inputs.split(";"):
            name, spec = (one.strip() for one in text.split(":"))
            kind, shape = _parsed(spec)
            inputs.append(TensorInput(name, DType(kind), tuple(str(one) for one in sizes(shape))))
        outputs = []
        for place, text in enumerate(self.results.split(";")):
            kind, shape = _parsed(text.strip())
            outputs.append(TaskOutput(f"y{place}", DType(kind), sizes(shape)))
        return Task(
            self.name,
            self.function.source,
            self.name,
            tuple(inputs),
            tuple(outputs),
            tuple(dimensions.values()),
            precision=self.precision,
        )

    @property
    def answer(self) -> Answer:
        return answer(self.task, self.ask)

    def ask(self, request: TraceRequest) -> Traces:
        return ask_of(self.function)(request)


def _parsed(spec: str) -> tuple[str, str]:
    found = re.fullmatch(r"(\w+)\[(.*)\]", spec)
    assert found is not None
    return found[1], found[2]


def check_structure(case: Placed, step: Structure, folder: Path, only: int | None = None, slack: float = 1.0) -> None:
    """Every checker of the emulator, and every result against f64; `slack` where what is added up is rounded first."""
    task = case.task
    op = load_structure(step, task, folder)
    for sizes in case.at[:only]:
        check(op, case.function, task, task.complete({**task.sizes, **sizes}), slack=slack)


def structure(case: Placed, id: str) -> Structure:
    return next(one for one in case.answer.every if one.id == id)
