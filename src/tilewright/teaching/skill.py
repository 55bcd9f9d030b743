"""An Agent Skill of what runs taught: SKILL.md, worked examples beside their references, and the evidence.

SKILL.md                    what to do and what to avoid, within the specification's limits
examples/NAME.cu, NAME.py   kernels that passed, unchanged, and the reference of each
references/pitfalls.md      every failure: what was tried, how it failed, what fixed it
references/steps.md         every step from one correct kernel to the next, with its gain
references/provenance.json  the runs it was made of, by which an exam knows tasks that are not held out
skill_meta.json             the same in short, as upskill keeps it

Its guidance is made of the records, or written by a model, which is asked once more if its reply cannot be used."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tilewright.prompts.rendering import render
from tilewright.prompts.replies import ReplyProblem
from tilewright.records import UNSTATED, Message, Question, RecordError, Reply, Role, StopReason, from_json, to_json
from tilewright.tasks import task_op_line
from tilewright.teaching.lessons import Example, Lessons, Pitfall, TaughtRun, TriedStep, check_options

PROVENANCE = "references/provenance.json"
NAME = re.compile(r"(?=.{1,64}$)[a-z0-9]+(-[a-z0-9]+)*")
_MOST_DESCRIPTION = 1024
_LISTED_STEPS, _LISTED_PITFALLS, _LISTED_EXAMPLES = 16, 24, 40
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


class NoSkill(ValueError):
    """A folder that is no skill, or none that can be examined; the message says why."""


@dataclass(frozen=True)
class SkillProvenance:
    """Where a skill comes from."""

    name: str
    created: str  # ISO 8601, UTC
    tilewright: str
    author: str  # the model that wrote the guidance, or "records"
    runs: tuple[TaughtRun, ...]


@dataclass(frozen=True)
class WorkedExample:
    """An example under its name in the skill, and what became of it when it was run again."""

    name: str
    example: Example
    tested: str  # "clean at x=3x40:f32"; "" where it cannot be run by `tilewright check`

    @property
    def check(self) -> str:
        """The command that runs it beside its reference."""
        options = check_options(self.example.task, self.example.sizes)
        if options is None:
            return ""
        reference = f"--reference examples/{self.name}.py:{self.example.task.function}"
        return " ".join([f"tilewright check examples/{self.name}.cu {reference}", *options])


def named(examples: tuple[Example, ...]) -> tuple[tuple[str, Example], ...]:
    """Each with a file name of its own."""
    seen: Counter[str] = Counter()
    made = []
    for one in examples:
        seen[one.task.name] += 1
        number = seen[one.task.name]
        made.append((one.task.name if number == 1 else f"{one.task.name}-{number}", one))
    return tuple(made)


def skill_files(
    provenance: SkillProvenance, lessons: Lessons, worked: tuple[WorkedExample, ...], guidance: str, licence: str
) -> dict[str, str]:
    """Every file of the skill by its path. `guidance`: what a model wrote; "" where it is assembled."""
    files = {f"examples/{one.name}.cu": one.example.kernel for one in worked}
    files |= {f"examples/{one.name}.py": one.example.task.reference.rstrip() + "\n" for one in worked}
    files["references/pitfalls.md"] = _pitfalls_page(lessons.pitfalls)
    files["references/steps.md"] = _steps_page(lessons.steps)
    files[PROVENANCE] = json.dumps(to_json(provenance), indent=2) + "\n"
    files["skill_meta.json"] = json.dumps(_upskill_meta(provenance, lessons), indent=2) + "\n"
    body = "\n\n".join([guidance or guidance_of(lessons), _examples_part(worked), _evidence_part()])
    head = [f"name: {provenance.name}", f"description: {description_of(lessons)}"]
    head += [f"license: {licence}"] if licence and licence != UNSTATED else []
    files["SKILL.md"] = "\n".join(["---", *head, "---", "", body, ""])
    return files


def description_of(lessons: Lessons) -> str:
    """One line without quotes or colons, which some readers of front matter take for more than they are."""
    ops = _listed([one.task for one in lessons.runs], 12)
    kinds = _listed([one.task.kind.value for one in lessons.examples] + [one.kind for one in lessons.pitfalls], 12)
    text = f"How to write fast and correct CUDA kernel files for Tilewright, learned from verified runs on {ops}. "
    text += f"Use when writing, repairing or speeding up a GPU kernel{f' of the kinds {kinds}' if kinds else ''}."
    return re.sub(r"[\"':<>]", "", text)[:_MOST_DESCRIPTION]


# -- the guidance that is assembled of the records --


def guidance_of(lessons: Lessons) -> str:
    """What to do and what to avoid, a line each, the most telling first."""
    count = len(lessons.runs)
    parts = [
        f"# What {count} run{'s' if count != 1 else ''} taught",
        f"Ops: {_listed([one.task for one in lessons.runs], 24)}. Every line below happened in a run; times marked "
        "modelled come from an emulator's counts and rank kernels only.",
    ]
    kept = sorted((one for one in lessons.steps if one.kept), key=lambda one: -one.gain)
    lost = sorted((one for one in lessons.steps if not one.kept), key=lambda one: one.gain)
    parts += _section("## What made kernels faster", [_step_line(one) for one in kept[:_LISTED_STEPS]])
    parts += _section(
        "## What was tried and did not pay (do not repeat it)", [_step_line(one) for one in lost[: _LISTED_STEPS // 2]]
    )
    parts += _section("## Pitfalls", [_pitfall_line(one) for one in _mended_first(lessons.pitfalls)[:_LISTED_PITFALLS]])
    return "\n\n".join(parts)


def _section(title: str, lines: list[str]) -> list[str]:
    return [title, "\n".join(f"- {line}" for line in lines)] if lines else []


def _step_line(one: TriedStep) -> str:
    how = "measured" if one.measured else "modelled"
    return f"{one.gain:.2f}x ({how}) in {one.op}, {one.kind}: {plain(one.summary)}"


def _pitfall_line(one: Pitfall) -> str:
    said = f"**{plain(one.words)}** in {one.op}, {one.kind}, by: {plain(one.summary)}."
    return f"{said} Fixed by: {plain(one.remedy)}." if one.mended_by else f"{said} It was given up."


def _mended_first(pitfalls: tuple[Pitfall, ...]) -> list[Pitfall]:
    """Those with a remedy first, and of each kind of fault one before the second of any."""
    seen: Counter[str] = Counter()
    keys: list[tuple[bool, int, int]] = []
    for one in pitfalls:
        seen[one.words] += 1
        keys.append((one.mended_by is None, seen[one.words], len(keys)))
    return [pitfalls[number] for *_, number in sorted(keys)]


def _examples_part(worked: tuple[WorkedExample, ...]) -> str:
    lines = [_example_line(one) for one in worked[:_LISTED_EXAMPLES]]
    if not lines:
        return "## Worked examples\n\nNone: no run has a kernel that is verified."
    left = len(worked) - len(lines)
    more = [f"- {left} more lie in `examples/`."] if left else []
    intro = "Each is the file that the referee passed, to the letter, beside its reference in PyTorch."
    return "\n".join(["## Worked examples", "", intro, "", *lines, *more])


def _example_line(one: WorkedExample) -> str:
    facts = [one.example.verdict, one.example.time, f"run again here: {one.tested}" if one.tested else ""]
    head = f"- [{one.name}](examples/{one.name}.cu), reference [{one.name}.py](examples/{one.name}.py): "
    said = f"{head}{plain(one.example.summary)}. {'; '.join(filter(None, facts))}."
    return f"{said} Try it: `{one.check}`" if one.check else said


def _evidence_part() -> str:
    return (
        "## Evidence\n\n"
        "- [references/pitfalls.md](references/pitfalls.md): each fault in full, with the change that fixed it\n"
        "- [references/steps.md](references/steps.md): each step, with its change and what it gained\n"
        f"- [{PROVENANCE}]({PROVENANCE}): where this comes from; an exam on the tasks of these runs is refused"
    )


# -- the evidence in full --


def _pitfalls_page(pitfalls: tuple[Pitfall, ...]) -> str:
    parts = ["# Pitfalls"]
    for one in pitfalls:
        parts.append(f"## {plain(one.words)}: {one.op}, attempt {one.attempt} of run {one.run}")
        parts += [f"Meant: {plain(one.summary)}", _fenced(one.evidence, "text")]
        if one.mended_by:
            parts += [f"Fixed by attempt {one.mended_by}: {plain(one.remedy)}", _fenced(one.change, "diff")]
        else:
            parts.append("No repair of it passed.")
    return "\n\n".join(parts if pitfalls else [*parts, "None: every kernel of these runs was right."]) + "\n"


def _steps_page(steps: tuple[TriedStep, ...]) -> str:
    parts = ["# Steps"]
    for one in steps:
        parts.append(f"## {_step_line(one)}")
        parts.append(f"{'Kept' if one.kept else 'Not kept'}: attempt {one.attempt} of run {one.run}.")
        parts.append(_fenced(one.change, "diff"))
    return "\n\n".join(parts if steps else [*parts, "None: no run has two kernels that are right."]) + "\n"


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def plain(text: str) -> str:
    """Somebody's line as part of ours: one line, and no link or tag of its own."""
    return re.sub(r"([\[\]<>|])", r"\\\1", " ".join(text.split())).rstrip(".")


def _listed(names: list[str], most: int) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - most} more" if len(unique) > most else ""
    return ", ".join(unique[:most]) + more


def _upskill_meta(provenance: SkillProvenance, lessons: Lessons) -> dict[str, object]:
    ops = "; ".join(task_op_line(one.task) for one in lessons.examples)
    return {
        "metadata": {
            "version": "1.0",
            "generated_by": f"tilewright {provenance.tilewright}, {provenance.author}",
            "generated_at": provenance.created,
            "source_task": ops or ", ".join(one.task for one in lessons.runs),
        },
        "tests": [],
    }


# -- a skill that is there --


def read_provenance(folder: Path) -> SkillProvenance | None:
    """Where a skill comes from; None of one that `teach` did not write."""
    path = folder / PROVENANCE
    if not path.is_file():
        return None
    try:
        found: SkillProvenance = from_json(SkillProvenance, json.loads(path.read_text("utf-8")))
    except (ValueError, RecordError) as error:
        raise NoSkill(f"{path}: not what `tilewright teach` wrote ({error}); teach the skill anew") from None
    return found


def missing_links(body: str, files: dict[str, str]) -> list[str]:
    """The links of a text that lead to no file of the skill; addresses elsewhere are no business of ours."""
    return [one for one in LINK.findall(body) if "://" not in one and one not in files]


MOST_GUIDANCE_LINES, MOST_GUIDANCE_CHARACTERS = 300, 24_000
_SHOWN_CHARACTERS = 60_000  # of each part of the evidence
_SHOWN_EXAMPLES = 6
_FENCED = re.compile(r"\A```+(?:markdown|md)?\n(.*)\n```+\Z", re.DOTALL)


def written_guidance(
    summary: str, files: dict[str, str], worked: tuple[WorkedExample, ...], ask: Callable[[int, Question], Reply]
) -> str:
    """What the model makes of the evidence; `ask` has the number of the question. Raises `ReplyProblem`."""
    links = {path: text for path, text in files.items() if path.startswith(("examples/", "references/"))}
    system = render(
        "teach_system",
        most_lines=MOST_GUIDANCE_LINES,
        most_characters=MOST_GUIDANCE_CHARACTERS,
        files=sorted(links),
    )
    user = render(
        "teach",
        summary=summary,
        pitfalls=_cut(files["references/pitfalls.md"]),
        steps=_cut(files["references/steps.md"]),
        examples=[(one.name, one.example.kernel.rstrip()) for one in worked[:_SHOWN_EXAMPLES]],
    )
    first = Message(Role.USER, user)
    reply = ask(1, Question("0001-1", system, (first,)))
    try:
        return _read(reply, links)
    except ReplyProblem as problem:
        said = reply.text.strip()[:MOST_GUIDANCE_CHARACTERS] or "(empty reply)"
        again = Message(Role.USER, f"That cannot be used: {problem}. Reply again with the whole text.")
        second = Question("0001-2", system, (first, Message(Role.ASSISTANT, said), again))
        return _read(ask(2, second), links)


def _read(reply: Reply, files: dict[str, str]) -> str:
    if reply.stop is not StopReason.END:
        raise ReplyProblem("the model refused" if reply.stop is StopReason.REFUSED else "the reply was cut off")
    text = reply.text.replace("\r\n", "\n").strip()
    fenced = _FENCED.match(text)
    text = fenced[1].strip() if fenced else text
    if not text.startswith("# "):
        raise ReplyProblem("the text does not begin with a `# ` heading")
    if len(text.splitlines()) > MOST_GUIDANCE_LINES or len(text) > MOST_GUIDANCE_CHARACTERS:
        raise ReplyProblem(
            f"the text has {len(text.splitlines())} lines and {len(text):,} characters; at most {MOST_GUIDANCE_LINES} "
            f"and {MOST_GUIDANCE_CHARACTERS:,} are allowed"
        )
    missing = missing_links(text, files)
    if missing:
        raise ReplyProblem(f"a link leads to {missing[0]}, which is no file of the skill")
    return text


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}\n(cut here)"
