"""What an agent can read beside its tools: the kernel format, the advice authors are given, the records of runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tilewright.frontends.agents import answers
from tilewright.frontends.agents.desk import Desk
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.agents.talk import AgentTalk
from tilewright.frontends.agents.tools import Toolbox
from tilewright.frontends.terminal import finite
from tilewright.kernel_file import contract
from tilewright.prompts.advice import GPU_FAMILIES, card, family_card
from tilewright.records import Kind, to_json
from tilewright.store import StoreError

SCHEME = "tilewright://"
_MARKDOWN, _JSON, _CUDA = "text/markdown", "application/json", "text/x-cuda"
_LISTED_RUNS = 20
_RUN = re.compile(r"runs/([^/]+)(?:/(task|kernel|attempts/(\d{1,4})))?")


@dataclass(frozen=True)
class Described:
    """Something to be read, as a list shows it. `uri` has a name in braces where it stands for many."""

    uri: str
    name: str
    description: str
    mime_type: str = _MARKDOWN


@dataclass(frozen=True)
class Text:
    text: str
    mime_type: str = _MARKDOWN


TEMPLATES = (
    Described(f"{SCHEME}runs/{{run}}", "run", "A run's record: task, settings, attempts.", _JSON),
    Described(f"{SCHEME}runs/{{run}}/task", "task", "The reference of a run's task.", "text/x-python"),
    Described(f"{SCHEME}runs/{{run}}/kernel", "kernel", "The best kernel file of a run.", _CUDA),
    Described(f"{SCHEME}runs/{{run}}/attempts/{{number}}", "attempt", "An attempt: verdict, times, file."),
)


def listed(desk: Desk) -> tuple[Described, ...]:
    """What there is: the fixed texts, and the newest runs."""
    fixed = [Described(f"{SCHEME}kernel-format", "kernel format", "What a kernel file is and may do.")]
    fixed += [
        Described(f"{SCHEME}advice/{kind.value}", f"advice: {kind.value}", f"What pays for {kind.value} kernels.")
        for kind in Kind
    ]
    fixed += [
        Described(f"{SCHEME}gpu/{family}", f"GPU family {family}", f"What pays on {family}.") for family in GPU_FAMILIES
    ]
    runs = desk.store.runs().runs[:_LISTED_RUNS]
    return (*fixed, *(Described(f"{SCHEME}runs/{one.id}", one.id, f"A run of {one.task.name}.", _JSON) for one in runs))


def read(toolbox: Toolbox, uri: str) -> Text:
    """The text behind a URI; raises `Refused`."""
    path = uri.removeprefix(SCHEME)
    if path == "kernel-format":
        return Text(contract())
    kind, _, name = path.partition("/")
    if kind == "advice" and name in {one.value for one in Kind}:
        return Text(card(Kind(name)))
    if kind == "gpu" and name in GPU_FAMILIES:
        return Text(family_card(name))
    found = _RUN.fullmatch(path)
    if not uri.startswith(SCHEME) or found is None:
        raise Refused(f"there is no {uri[:80]!r} to read; the list of resources has what there is")
    return _of_run(toolbox, found[1], found[2] or "", int(found[3] or 0))


def _of_run(toolbox: Toolbox, name: str, part: str, number: int) -> Text:
    if number:
        return Text(toolbox.call("history", {"run": name, "attempt": number}, AgentTalk()).text)
    try:
        folder, run = toolbox.desk.opened(name)
    except StoreError as error:
        raise Refused(toolbox.veil(str(error))) from None
    if part == "task":
        return Text(run.task.reference, "text/x-python")
    if part == "kernel":
        if run.best is None:
            raise Refused(f"no attempt of run {name} has passed, so it has no kernel")
        return Text(folder.attempt(run.best.number).text(answers.KERNEL), _CUDA)
    return Text(toolbox.veil(json.dumps(finite(to_json(run)), indent=1, allow_nan=False)), _JSON)
