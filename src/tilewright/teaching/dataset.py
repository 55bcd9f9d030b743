"""Verified records to train on: what was asked, what was answered, how it was judged, how fast it is.

One record for each reply of a run, with its prompt to the letter but for paths of this machine. The best kernel of an
author that is asked nothing, such as the playbook, becomes one record too: its prompt is the one a model would get for
a first draft, and says that it was rendered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tilewright.prompts.question import question_text, system_text
from tilewright.prompts.verdict_text import verdict_text, verdict_words
from tilewright.records import Attempt, Measured, Question, Reply, Run, Situation, Stage, from_json
from tilewright.store import RunFolder, write_text
from tilewright.teaching.lessons import KERNEL, Clean, licence_of

RECORDED, RENDERED = "recorded", "rendered"
UNREADABLE = "no usable reply"


@dataclass(frozen=True)
class ChatMessage:
    role: str  # "system", "user", "assistant"
    content: str


@dataclass(frozen=True)
class Sample:
    """One prompt, its reply and what became of it; the first two are as trainers of chat models take them."""

    id: str
    prompt: tuple[ChatMessage, ...]
    completion: tuple[ChatMessage, ...]
    prompt_source: str  # RECORDED or RENDERED
    kernel: str  # the whole file the reply stands for; "" where it stands for none
    author: str
    stage: str
    task: str
    task_hash: str
    kind: str
    gpu: str
    device: str  # where it was judged
    verdict: str
    evidence: str  # the verdict in full
    passed: bool
    verified: bool  # passed, and judged in all that it does at the task's own sizes
    kept: bool  # it became the best of its run
    best: bool  # it still was at the end
    time_us: float | None
    time_source: str  # "measured", "modelled", ""
    roofline_fraction: float | None
    speedup_over_eager: float | None
    speedup_over_compile: float | None
    speedup_over_parent: float | None  # over the best before it
    input_tokens: int
    output_tokens: int
    licence: str  # an SPDX expression, or NOASSERTION
    run: str
    attempt: int
    reply: int  # of the attempt, from 1; 0 where it was rendered
    created: str  # of the run
    tilewright: str
    prompt_sha256: str  # of the recorded question, to the letter


def samples_of(
    folders: Iterable[RunFolder], clean: Clean, licence: str = "", passed_only: bool = False
) -> list[Sample]:
    """The records of all runs, in order. `licence` is stated for all of them, in place of what each run says."""
    found = [one for folder in folders for one in _samples(folder, clean, licence)]
    return [one for one in found if one.passed or not passed_only]


def _samples(folder: RunFolder, clean: Clean, licence: str) -> Iterator[Sample]:
    run = folder.load()
    licence = licence or licence_of(folder, run)
    before: Attempt | None = None
    for attempt in run.attempts:
        kept = run.takes(attempt, before)
        made = _Judged(folder, run, attempt, before, kept, clean, licence)
        recorded = tuple(made.recorded())
        yield from recorded
        if not recorded and attempt is run.best:
            yield made.rendered()
        before = attempt if kept else before


@dataclass(frozen=True)
class _Judged:
    folder: RunFolder
    run: Run
    attempt: Attempt
    before: Attempt | None
    kept: bool
    clean: Clean
    licence: str

    def recorded(self) -> Iterator[Sample]:
        """Of several replies the last is the one that was judged: those before it could not be read."""
        place = self.folder.attempt(self.attempt.number)
        texts, replies = place.question_texts(), place.replies()
        for number, (text, reply) in enumerate(zip(texts, replies, strict=False), start=1):
            question: Question = from_json(Question, json.loads(text))
            messages = [("system", question.system), *((one.role.value, one.text) for one in question.messages)]
            digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
            yield self._sample(messages, reply.text, number, reply, digest, judged=number == len(replies))

    def rendered(self) -> Sample:
        """The kernel as the answer to a first question: what its author was never asked."""
        task, emulated = self.run.task, self.run.environment.emulated
        situation = Situation(task, Stage.DRAFT, 1, emulated_only=emulated)
        messages = [("system", system_text(task, emulated)), ("user", question_text(situation))]
        reply = f"Summary: {self.attempt.summary}\n\n```cuda\n{self._kernel().rstrip()}\n```\n"
        return self._sample(messages, reply, 0, None, "", judged=True)

    def _kernel(self) -> str:
        return self.folder.attempt(self.attempt.number).find_text(KERNEL) or ""

    def _sample(
        self,
        messages: list[tuple[str, str]],
        reply_text: str,
        number: int,
        reply: Reply | None,
        digest: str,
        judged: bool,
    ) -> Sample:
        run, attempt, clean = self.run, self.attempt, self.clean
        passed, measurement = judged and attempt.passed, attempt.measurement if judged and attempt.passed else None
        measured = measurement if isinstance(measurement, Measured) else None
        before_us = self.before.time_us if self.before else None
        kernel = self._kernel() if judged else ""
        evidence = verdict_text(attempt.verdict, kernel) if judged else UNREADABLE
        return Sample(
            id=f"{run.id}/{attempt.number}/{number}",
            prompt=tuple(ChatMessage(role, clean(text)) for role, text in messages),
            completion=(ChatMessage("assistant", clean(reply_text)),),
            prompt_source=RECORDED if reply else RENDERED,
            kernel=clean(kernel),
            author=clean(reply.model if reply else run.settings.author),
            stage=attempt.stage.value,
            task=run.task.name,
            task_hash=run.task.hash,
            kind=run.task.kind.value,
            gpu=run.task.gpu,
            device=clean(run.environment.device),
            verdict=clean(verdict_words(attempt.verdict)) if judged else UNREADABLE,
            evidence=clean(evidence),
            passed=passed,
            verified=passed and not attempt.is_provisional and not run.task.degenerate,
            kept=judged and self.kept,
            best=judged and attempt is run.best,
            time_us=measurement.time_us if measurement else None,
            time_source="" if measurement is None else "measured" if measured else "modelled",
            roofline_fraction=measurement.fraction if measurement else None,
            speedup_over_eager=measured.speedup("eager") if measured else None,
            speedup_over_compile=measured.speedup("torch.compile") if measured else None,
            speedup_over_parent=before_us / measurement.time_us if before_us and measurement else None,
            input_tokens=reply.usage.all_input_tokens if reply else 0,
            output_tokens=reply.usage.output_tokens if reply else 0,
            licence=self.licence,
            run=run.id,
            attempt=attempt.number,
            reply=number,
            created=run.created,
            tilewright=run.environment.tilewright,
            prompt_sha256=digest,
        )


# -- files --


def write_jsonl(path: Path, samples: list[Sample]) -> None:
    write_text(path, "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in samples))
