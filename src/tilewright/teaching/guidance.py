"""The guidance of a skill as a model writes it of the evidence; one further question where its reply cannot be used."""

from __future__ import annotations

import re
from collections.abc import Callable

from tilewright.prompts.rendering import render
from tilewright.prompts.replies import ReplyProblem
from tilewright.records import Message, Question, Reply, Role, StopReason
from tilewright.teaching.skill import WorkedExample, missing_links

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
