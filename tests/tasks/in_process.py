"""A reference without its process: the same handlers on the same loaded function, for tests of what they find."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright.devices.protocol import Closing, Device
from tilewright.playbook import understanding
from tilewright.records import Dimension, Execution, Job, Origin, Task, TensorInput, from_json, to_json
from tilewright.reference import ReferenceProblem, loading
from tilewright.reference.loading import load_function, write_source
from tilewright.tasks import drafts, gradients
from tilewright.tasks.drafts import Draft, TaskOptions, probe_task
from tilewright.tasks.questions import degenerate_reason, lint_reference
from tilewright.tasks.reading import folders, modules
from tilewright.tasks.reading.parameters import match_arguments, read_shape
from tilewright.tasks.reading.python_source import find_function, parameters_of, parse_source, result_names


class HereReference(Closing):
    sees_gpu = False

    def __init__(self, source: str, function: str, folder: str | os.PathLike[str] = "") -> None:
        self._home = tempfile.TemporaryDirectory()
        with pytest.MonkeyPatch.context() as patch:  # which a child would keep for itself
            patch.setattr(sys, "argv", sys.argv)
            patch.setattr(sys, "path", [*sys.path])
            self.function = load_function(write_source(source, Path(self._home.name)), function, os.fspath(folder))

    def call(self, handler: str, request: Any, answer: Any, seconds: float = 60.0, *results: Any) -> Any:
        module, _, name = handler.partition(":")
        made = getattr(importlib.import_module(module), name)(self.function, request, *results)
        return from_json(answer, to_json(made))

    def call_on_run(
        self, device: Device, job: Job, handler: str, request: Any, answer: Any, seconds: float = 60.0
    ) -> tuple[Execution, Any]:
        execution = device.execute(job)
        results = loading.results_of(execution)
        return execution, self.call(handler, request, answer, seconds, results) if results else None


class JudgingReference(HereReference):
    """Says, as a child would, that it was the reference that failed."""

    def call(self, handler: str, request: Any, answer: Any, seconds: float = 60.0, *results: Any) -> Any:
        try:
            return super().call(handler, request, answer, seconds, *results)
        except Exception as error:
            raise ReferenceProblem(str(error)) from error


@pytest.fixture(scope="module", autouse=True)
def references_here() -> Iterator[None]:
    """For the modules below a conftest.py that imports it: tasks and programs are found without a child."""
    with pytest.MonkeyPatch.context() as patch:
        ask_here(patch)
        yield


def ask_here(patch: pytest.MonkeyPatch, reference: type[HereReference] = HereReference) -> None:
    for asking in (understanding, drafts, folders, gradients, modules):
        patch.setattr(asking, "Reference", reference)


def probed(
    source: str,
    function: str,
    shapes: dict[str, str],
    numbers: dict[str, str] | None = None,
    values: dict[str, str] | None = None,
    **options: Any,
) -> tuple[Task, HereReference]:
    """The task of a function, without the lint."""
    node = find_function(parse_source(source, "source"), function, "source")
    arguments = match_arguments(source, function, parameters_of(node, "source"), shapes, numbers or {}, values or {})
    draft = Draft(
        function,
        arguments.source,
        arguments.function,
        arguments.inputs,
        arguments.dimensions,
        arguments.unspecified,
        Origin.FUNCTION,
        result_names(node),
    )
    reference = HereReference(arguments.source, arguments.function)
    return probe_task(draft, TaskOptions(**options), reference), reference  # type: ignore[arg-type]


def unprobed(source: str, function: str, shapes: dict[str, str]) -> tuple[Task, HereReference]:
    """A task of tensors alone and without outputs, at one size: for what only calls its reference."""
    specs = {name: read_shape(name, text) for name, text in shapes.items()}
    dimensions = {f"d{size}": Dimension(f"d{size}", size) for spec in specs.values() for size in spec.shape}
    inputs = tuple(
        TensorInput(name, spec.dtype, tuple(f"d{size}" for size in spec.shape)) for name, spec in specs.items()
    )
    task = Task(function, source, function, inputs, (), tuple(dimensions.values()))
    return task, HereReference(source, function)


def lint_of(source: str, function: str, shapes: dict[str, str], values: dict[str, str] | None = None) -> str:
    task, reference = probed(source, function, shapes, values=values)
    return degenerate_reason(lint_reference(task, reference))  # type: ignore[arg-type]
