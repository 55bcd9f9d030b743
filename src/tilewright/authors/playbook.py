"""The author that needs no model: a grammar for words, and structures for rows and elements."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.authors.protocol import Ask
from tilewright.playbook.analysis import row_program
from tilewright.playbook.catalogue import Structure, draft, structures
from tilewright.playbook.specification import specification
from tilewright.records import Attempt, Proposal, Situation, Specification, Stage
from tilewright.tasks import task_op_line

_INSTEAD = "; the playbook repairs no file but its own, so this is one"


class PlaybookAuthor:
    """Proposes structure after structure, the most promising first. The same situation always gets the same file.

    What was proposed before is known by the summaries of earlier attempts. A file that somebody else gave is never
    repaired: where it fails, the playbook's own draft takes its place, and its summary says so. Where there is no GPU,
    structures that the emulator cannot run are left out. `propose` raises `NotSupported`, a `ValueError`, for a task
    outside the playbook.
    """

    name = "playbook"

    def specify(self, words: str, shapes: Mapping[str, str], gpu: str, ask: Ask) -> Specification:
        """The reference for a request in words; raises `NotUnderstood` for words outside the grammar."""
        return specification(words, shapes)

    def propose(self, situation: Situation, ask: Ask) -> Proposal | None:
        program = row_program(situation.task)
        first = draft(program)
        later = tuple(step for step in structures(program) if step.emulable or not situation.emulated_only)
        everything = {step.summary: step for one in (first, *later) for step in _with_variants(one)}
        if situation.stage is Stage.DRAFT:
            offered: tuple[Structure, ...] = (first, *later)
        elif situation.stage is Stage.STRUCTURE:
            offered = later
        elif situation.stage is Stage.PROFILED:
            parent = everything.get(_known(situation.parent)) if situation.parent else None
            offered = (parent.polished,) if parent and parent.polished else ()
        else:
            failing = everything.get(_known(situation.failing)) if situation.failing else None
            offered = (failing.safer,) if failing and failing.safer else ()
        before = {_known(one) for one in situation.history if one.number < situation.number - situation.candidate}
        fresh = [step for step in offered if step.summary not in before]
        if situation.candidate >= len(fresh):
            return None
        step = fresh[situation.candidate]
        instead = situation.stage is Stage.DRAFT and bool(before) and not before & everything.keys()
        summary = step.summary + (_INSTEAD if instead else "")
        return Proposal(step.write(program, task_op_line(situation.task)), summary)


def _known(attempt: Attempt) -> str:
    """The summary of the step that an attempt was."""
    return attempt.summary.removesuffix(_INSTEAD)


def _with_variants(step: Structure) -> tuple[Structure, ...]:
    return tuple(one for one in (step, step.safer, step.polished) if one is not None)
