"""The author that needs no model: a catalogue for words, and structures for rows and elements."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from tilewright.authors import Ask
from tilewright.playbook.families import Structure
from tilewright.playbook.file_text import with_least_sizes
from tilewright.playbook.understanding import understand
from tilewright.records import Proposal, Situation, Specification, Stage, Task
from tilewright.tasks import task_op_line
from tilewright.words import read

_COMMENT_WIDTH = 100
_INSTEAD = "; the playbook repairs no file but its own, so this is one"


class PlaybookAuthor:
    """Proposes structure after structure, the most promising first; without a GPU a simple draft before them. The same
    situation always gets the same file.

    What was proposed before is known by the recipes of earlier attempts. A file of another author is never
    repaired: if it fails, the playbook's own draft replaces it, and its summary says so. `propose` raises
    `NotSupported`, a `ValueError`, for a task outside the playbook.
    """

    name = "playbook"
    reads_evidence = False

    def specify(self, words: str, shapes: Mapping[str, str], gpu: str, ask: Ask) -> Specification:
        """The reference for a request in words; raises `NotUnderstood` for words without a reading."""
        return read(words, shapes)

    def propose(self, situation: Situation, ask: Ask) -> Proposal | None:
        answer = understand(situation.task)
        first = answer.draft
        later = answer.structures
        everything = {step.id: step for one in (first, *later) for step in with_variants(one)}
        # A GPU judges a structure as soon as it would the draft, which therefore comes last there: at times it wins.
        in_order = (first, *later) if situation.emulated_only else (*later, first)
        passed = {one.recipe for one in situation.history if one.passed}
        if any(step.id in passed for one in later if not one.resort for step in with_variants(one)):
            in_order, later = (tuple(one for one in some if not one.resort) for some in (in_order, later))
        if situation.stage is Stage.DRAFT:
            offered: tuple[Structure, ...] = in_order
        elif situation.stage is Stage.STRUCTURE:
            offered = later if situation.emulated_only else in_order
        elif situation.stage is Stage.PROFILED:
            parent = everything.get(situation.parent.recipe) if situation.parent else None
            offered = (parent.polished,) if parent and parent.polished else ()
        else:
            failing = everything.get(situation.failing.recipe) if situation.failing else None
            offered = (failing.safer,) if failing and failing.safer else ()
        before = {one.recipe for one in situation.history if one.number < situation.number - situation.candidate}
        fresh = [step for step in offered if step.id not in before]
        if situation.candidate >= len(fresh):
            return None
        step = fresh[situation.candidate]
        instead = situation.stage is Stage.DRAFT and bool(before) and not before & everything.keys()
        summary = step.summary + (_INSTEAD if instead else "")
        return Proposal(kernel_text(step, situation.task), summary, recipe=step.id, notes=step.notes)


def kernel_text(step: Structure, task: Task) -> str:
    """The kernel file of one structure."""
    return _with_notes(with_least_sizes(step.write(task_op_line(task)), task), step.notes)


def _with_notes(text: str, notes: tuple[str, ...]) -> str:
    """The file, whose first comment lists what algebra has removed."""
    if not notes:
        return text
    lines_of_notes = [line for one in notes for line in textwrap.wrap(f"By algebra: {one}", _COMMENT_WIDTH)]
    comment, blank, rest = text.partition("\n\n")
    lines = [*comment.splitlines(), "//"] if comment.startswith("// ") else []
    remark = "\n".join([*lines, *(f"// {line}" for line in lines_of_notes)])
    return f"{remark}{blank}{rest}" if lines else f"{remark}\n\n{text}"


def with_variants(step: Structure) -> tuple[Structure, ...]:
    return tuple(one for one in (step, step.safer, step.polished) if one is not None)
