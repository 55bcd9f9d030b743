"""`Court`: puts a file of the corpus before the referee and says in one row what came of it.

    with Court() as court:
        row = court.judge(entry)          # row.verdict, row.reason, row.seconds, row.right

References and devices are started once and kept for all entries that follow.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any
from unittest import mock

import pytest
import torch
from tests.tasks.in_process import JudgingReference, ask_here
from tests.verify.corpus.entries import Entry, task_of

from tilewright.devices.child_device import CudaDevice, EmulatedDevice
from tilewright.records import PROFILES, Case, Passed, Rejected, Verdict
from tilewright.reference import Reference, ReferenceLimits
from tilewright.verify import Referee
from tilewright.verify import referee as referee_module
from tilewright.verify.trial import CaseOutcome, Trial

ACCEPTED, REJECTED, UNSUPPORTED, PROVISIONAL, ERROR = "accepted", "rejected", "unsupported", "provisional", "error"
_SEEDS = 10_000  # more than a referee numbers its cases with


@dataclass(frozen=True)
class Row:
    """What was said of one file."""

    name: str
    task: str
    kind: str
    expected: tuple[str, ...]  # the evidence it should be rejected with; none where it should be accepted
    device: str
    verdict: str
    reason: str  # the name of the evidence
    detail: str
    seconds: float

    @property
    def right(self) -> bool:
        """An honest file is accepted; for a wrong one nobody vouches."""
        if not self.expected:
            return self.verdict == ACCEPTED
        return self.verdict not in (ACCEPTED, ERROR)

    @property
    def for_the_right_reason(self) -> bool:
        return self.right and (not self.expected or self.reason in self.expected)


class Court:
    """One emulator, a GPU where asked for, and a reference for the task judged last."""

    def __init__(self, *, on_gpu: bool = False) -> None:
        self._on_gpu = on_gpu
        self._stack = ExitStack()
        self._of_task = ExitStack()
        self._named = ""

    def __enter__(self) -> Court:
        torch.set_num_threads(1)
        self._emulator = self._stack.enter_context(EmulatedDevice(PROFILES["H200"]))
        self._gpu = self._stack.enter_context(CudaDevice()) if self._on_gpu else None
        ask_here(self._stack.enter_context(pytest.MonkeyPatch.context()))
        self._stack.enter_context(self._of_task)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    def judge(self, entry: Entry, text: str | None = None, *, seed: int = 0) -> Row:
        """The entry's file, or another text in its place; `seed` draws other values."""
        began = time.monotonic()
        try:
            self._open(entry.task)
            with mock.patch.object(referee_module, "Trial", partial(_Reseeded, seed)):
                verdict = self._referee.judge(entry.text if text is None else text, entry.choice or None)
            word, reason, detail = _said(verdict)
        except Exception as error:  # one entry's failure is its own row
            word, reason, detail = ERROR, type(error).__name__, str(error)
        device = "gpu" if self._on_gpu else "emulator"
        seconds = round(time.monotonic() - began, 2)
        return Row(entry.name, entry.task, entry.kind, entry.reasons, device, word, reason, detail, seconds)

    def _open(self, name: str) -> None:
        """The referee of a task, kept until another task's is asked for."""
        if self._named == name:
            return
        self._of_task.close()
        self._named = ""
        task = task_of(name)
        reference = self._of_task.enter_context(self._reference(task.reference, task.function))
        self._referee = Referee(task, reference, emulator=self._emulator, gpu=self._gpu)
        self._named = name

    def _reference(self, source: str, function: str) -> Any:
        """With a GPU in a child, as ever; else in this process, for the corpus is nobody's but ours."""
        if self._on_gpu:
            return Reference(source, function, limits=ReferenceLimits.on_gpu())
        return JudgingReference(source, function)


class _Reseeded(Trial):
    """A trial whose cases are drawn from other seeds; the same ones as ever for seed 0."""

    def __init__(self, seed: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._seed = seed

    def run(self, case: Case, *arguments: Any, **how: Any) -> CaseOutcome:
        return super().run(replace(case, seed=case.seed % _SEEDS + _SEEDS * self._seed), *arguments, **how)


def _said(verdict: Verdict) -> tuple[str, str, str]:
    if isinstance(verdict, Passed):
        word, reason = (PROVISIONAL, "Provisional") if verdict.is_provisional else (ACCEPTED, "")
        said = "; ".join((*verdict.unjudged, *verdict.notes))
        return word, reason, f"ratio {verdict.error_ratio:.2f}; {len(verdict.cases)} cases; {said}"
    if isinstance(verdict, Rejected):
        return REJECTED, type(verdict.evidence).__name__, _shortened(verdict.evidence)
    return UNSUPPORTED, "Unsupported", verdict.message


def _shortened(evidence: object) -> str:
    """The evidence's own words, where it has some, with the case."""
    outputs = [one.description for one in getattr(evidence, "outputs", ()) if hasattr(one, "description")]
    found = [f"{one.kind.value} at line {one.line}" for one in getattr(evidence, "findings", ())[:2]]
    problems = [f"{one.line}: {one.message}" for one in getattr(evidence, "problems", ())[:2]]
    built = [str(getattr(one, "message", one)) for one in getattr(evidence, "diagnostics", ())[:2]]
    parts = [str(getattr(evidence, "case", "")), getattr(evidence, "message", ""), *outputs, *found, *problems, *built]
    return "; ".join(one.replace("\n", " ")[:240] for one in parts if one)
