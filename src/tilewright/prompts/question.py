"""The question of one attempt: what was tried, the file at hand, what is wrong with it or how fast it is."""

from __future__ import annotations

from tilewright.prompts.history import history_text, standing_text
from tilewright.prompts.rendering import render
from tilewright.prompts.system import cute_text, mentions_cute, wants_cute
from tilewright.prompts.verdict_text import verdict_text
from tilewright.records import Attempt, Declined, Modelled, Rejected, Situation, Stage, Unsupported

_LITTLE = 1.08


def question_text(situation: Situation) -> str:
    """What a model is asked for one attempt. Stages are templates of `templates/stages`."""
    hinted = mentions_cute(situation.hint) and not wants_cute(situation.task)
    return render(
        "question",
        situation=situation,
        history=history_text(situation.history, situation.noise, terms=situation.stage is Stage.PROFILED),
        body=_body(situation),
        cute=cute_text(situation.task, situation.emulated_only) if hinted else "",
        base=base_of(situation),
    )


def base_of(situation: Situation) -> str | None:
    """The file that edits are of: the one the question shows."""
    if situation.stage is Stage.DRAFT and situation.parent is not None:
        return None  # another candidate of this step has passed already; this one begins anew
    shown = situation.failing_text if situation.stage.is_repair else situation.parent_text
    return shown or None


def correction_text(problem: str, *, cut: bool, base: str | None) -> str:
    """The one further question after a reply that could not be used; `cut`: it ended at the limit on output."""
    return render("correction", problem=problem.rstrip("."), cut=cut, base=base)


def _body(situation: Situation) -> str:
    name = f"stages/{situation.stage.value}"
    failing = situation.failing
    if situation.stage.is_repair:
        if failing is None:
            raise ValueError(f"a {situation.stage.value} step needs the attempt to repair")
        return render(
            name,
            situation=situation,
            verdict=verdict_text(failing.verdict, situation.failing_text),
            unsupported=isinstance(failing.verdict, Unsupported),
            declined=isinstance(failing.verdict, Rejected) and isinstance(failing.verdict.evidence, Declined),
        )
    if situation.stage is Stage.DRAFT:
        before = situation.history[: len(situation.history) - situation.candidate]  # not of this step
        return render(name, start=base_of(situation), given_up=bool(before))
    if situation.parent is None:
        raise ValueError(f"a {situation.stage.value} step needs a file that passed")
    standing = standing_text(situation.parent, situation.noise, bound=situation.stage is Stage.STRUCTURE)
    return render(name, situation=situation, standing=standing, little_left=_little_left(situation.parent))


def _little_left(best: Attempt) -> bool:
    """Whether the best file is so near what the model gives the least traffic that hardly anything can be gained."""
    measurement = best.measurement
    return isinstance(measurement, Modelled) and measurement.time_us <= _LITTLE * measurement.reachable_us
