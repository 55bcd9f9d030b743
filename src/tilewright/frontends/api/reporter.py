"""What is said and asked during a run. `Reporter` is what a front end implements; `PlainReporter` is Python's.

It prints plain lines on stderr and needs no terminal packages; the command line has a reporter of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from tilewright.frontends.api.choices import PLAYBOOK, ChosenAuthor
from tilewright.frontends.report.runs import rows, seconds_words, speedup_words, spend_words, time_words
from tilewright.records import Attempt, Carried, Question, Reply, Run, Situation, Specification
from tilewright.store import RunFolder
from tilewright.tasks.errors import ArgumentKind, GivenArgument, RefusedRequest, RemedyKind

REMIND_SECONDS = 30.0  # between two lines on something that is awaited


class NotAcceptedYet(Carried, RuntimeError):
    """A request in words was specified, and nobody has accepted the specification; it is here to be read."""

    def __init__(self, message: str, run: str, specification: Specification) -> None:
        self.run = run
        self.specification = specification
        super().__init__(message)


class Reporter:
    """A front end as the making of a kernel sees it: it is told what goes on, and asked to accept a specification.

    It is a `refine.Watcher`, once there is a run.
    """

    stage = ""  # of the attempt under way

    def say(self, text: str, title: str = "") -> None:
        """A line for a person, after a short title where there is one."""
        raise NotImplementedError

    def remind(self, text: str) -> None:
        """A line that somebody is at work, for where no live line shows it."""
        raise NotImplementedError

    def accept(self, folder: RunFolder, specification: Specification) -> None:
        """Have a person accept what an author took the words of a run to mean; raises `NotAcceptedYet`."""
        raise NotImplementedError

    def live(self, what: str = "") -> AbstractContextManager[None]:
        """While something goes on: what it is may be seen on a live line."""
        return nullcontext()

    def following(self, chosen: ChosenAuthor, every_s: float = REMIND_SECONDS) -> ChosenAuthor:
        """The same author; it is said when it is asked and, from time to time, that it has not answered yet."""

        def complete(question: Question, on_text: Callable[[str], None]) -> Reply:
            about, characters = _about(question, self.stage), 0

            def heard(text: str) -> None:
                nonlocal characters
                characters += len(text)
                on_text(text)

            def still(seconds: float) -> None:
                came = f"{characters:,} characters so far" if characters else "no word yet"
                self.remind(f"{about}: {chosen.name} at it for {seconds_words(seconds)}, {came}")

            self.remind(f"{about}: asking {chosen.name}")
            with reminding(still, every_s):
                return chosen.complete(question, heard)

        return replace(chosen, complete=complete)

    # -- what a watcher is told --

    def started(self, run: Run) -> None:
        if run.settings.author == PLAYBOOK and run.settings.hints and run.settings.hints[-1][0] == len(run.attempts):
            self.say(f"the playbook reads no hints; a model does: tilewright resume {run.id} --model PROVIDER:NAME")

    def asking(self, situation: Situation) -> None:
        self.stage = situation.stage.value

    def text(self, text: str) -> None: ...

    def working(self, what: str) -> None: ...

    def attempted(self, run: Run, attempt: Attempt) -> None: ...

    def ended(self, run: Run) -> None: ...


@contextmanager
def reminding(still: Callable[[float], None], every_s: float = REMIND_SECONDS) -> Iterator[None]:
    """While the block goes on, call `still` from time to time with the seconds it has taken."""
    began, over = time.monotonic(), threading.Event()

    def remind() -> None:
        while not over.wait(every_s):
            still(time.monotonic() - began)

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        over.set()
        reminder.join()


def _about(question: Question, stage: str) -> str:
    """`attempt 3, structure`, from the id of a question: `0003-1`."""
    number = question.id.partition("-")[0].lstrip("0")
    return f"attempt {number}, {stage}" if number else "specification"


class PlainReporter(Reporter):
    """Plain lines on stderr. `yes` accepts every specification unseen; `quiet` says nothing at all."""

    def __init__(self, yes: bool = False, quiet: bool = False) -> None:
        self._yes = yes
        self._quiet = quiet

    def say(self, text: str, title: str = "") -> None:
        if not self._quiet:
            print(f"{title:<8}{text}" if title else text, file=sys.stderr, flush=True)

    def remind(self, text: str) -> None:
        self.say(text)

    def accept(self, folder: RunFolder, specification: Specification) -> None:
        if self._yes:
            return
        asked = sys.stdin.isatty()
        if asked:
            print(specification_text(specification), file=sys.stderr, flush=True)
            if input("Is this what is meant? [y/N] ").strip().lower() in ("y", "yes"):
                return
        text = "" if asked else f"\n\n{specification_text(specification)}"
        raise NotAcceptedYet(
            f"the specification of run {folder.id} waits to be accepted: read it, then call make again with yes=True "
            f"(it is not paid for again), or `tilewright resume {folder.id} --yes`{text}",
            folder.id,
            specification,
        )

    def attempted(self, run: Run, attempt: Attempt) -> None:
        row = next(one for one in rows(run) if one.attempt.number == attempt.number)
        words = [f"attempt {attempt.number}", attempt.stage.value, row.verdict]
        words += [time_words(attempt.measurement)] if attempt.passed else []
        words += [speedup_words(row.speedup)] if row.speedup is not None else []
        words += ["kept"] if row.kept else []
        self.say(f"{', '.join(words)}: {row.summary}")
        for note in row.notes:
            self.say(f"by algebra: {note}")

    def ended(self, run: Run) -> None:
        self.say(f"{run.ending_words or 'stopped'}; {spend_words(run)}")


def specification_text(specification: Specification) -> str:
    """The reference, its inputs, and what was assumed beyond what they say."""
    unsaid = [one for one in specification.assumptions if one not in specification.description]
    parts = [specification.reference.strip(), "", specification.description.strip()]
    return "\n".join([*parts, *(f"assumed: {one}" for one in unsaid)])


# -- refusals of `tasks` and `playbook` in the words of each front end: --

_OPTIONS = {ArgumentKind.SHAPE: "--shape", ArgumentKind.NUMBER: "--set", ArgumentKind.VALUES: "--fill"}

OPTION_WORDS = {
    RemedyKind.GIVE_SHAPE: "write --shape {name}={example}",
    RemedyKind.GIVE_NUMBER: "write --set {name}=VALUE",
    RemedyKind.GIVE_SHAPE_OR_NUMBER: "write --shape {name}={example}, or --set {name}=VALUE if it is a number",
    RemedyKind.GIVE_SHAPE_OF_EACH: "give each tensor's with --shape NAME=SIZES:DTYPE",
    RemedyKind.GIVE_VALUES: "give other values, such as --fill {name}={example}",
    RemedyKind.GIVE_ARGUMENTS: "give them with --shape and --set",
    RemedyKind.ALLOW_DEGENERATE: "--allow-degenerate makes it anyway",
    RemedyKind.WRITE_FUNCTION: "give it as a PyTorch function, FILE.py:function with --shape",
    RemedyKind.CHOOSE_MODEL: (
        "--model PROVIDER:NAME asks a model instead, and --model relay:DIR anybody who answers files"
    ),
}

KEYWORD_WORDS = {
    RemedyKind.GIVE_SHAPE: 'write {name}="{example}"',
    RemedyKind.GIVE_NUMBER: "write {name}=VALUE",
    RemedyKind.GIVE_SHAPE_OR_NUMBER: 'write {name}="{example}", or {name}=VALUE if it is a number',
    RemedyKind.GIVE_SHAPE_OF_EACH: 'give each tensor\'s as NAME="SIZES:DTYPE"',
    RemedyKind.GIVE_VALUES: 'give other values, such as values={{"{name}": "{example}"}}',
    RemedyKind.GIVE_ARGUMENTS: "give them as keywords",
    RemedyKind.ALLOW_DEGENERATE: "allow_degenerate=True makes it anyway",
    RemedyKind.WRITE_FUNCTION: "give a PyTorch function instead of words",
    RemedyKind.CHOOSE_MODEL: (
        'model="PROVIDER:NAME" asks a model instead, and model="relay:DIR" anybody who answers files'
    ),
}

ARGUMENT_WORDS = {
    RemedyKind.GIVE_SHAPE: 'give shapes={{"{name}": "{example}"}}',
    RemedyKind.GIVE_NUMBER: 'give numbers={{"{name}": "VALUE"}}',
    RemedyKind.GIVE_SHAPE_OR_NUMBER: 'give shapes={{"{name}": "{example}"}}, or numbers if it is one',
    RemedyKind.GIVE_SHAPE_OF_EACH: 'give shapes={{"NAME": "SIZES:DTYPE", ...}}',
    RemedyKind.GIVE_VALUES: 'give other values, such as values={{"{name}": "{example}"}}',
    RemedyKind.GIVE_ARGUMENTS: "give them as shapes and numbers",
    RemedyKind.ALLOW_DEGENERATE: "specify a function whose result depends on its inputs",
    RemedyKind.WRITE_FUNCTION: "say it otherwise",
    RemedyKind.CHOOSE_MODEL: "write the PyTorch function yourself and give it as source",
}


def in_options(error: RefusedRequest) -> str:
    """What was found and what to do, for the command line."""
    given = error.given
    place = f"{_OPTIONS[given.kind]} {given.name}{given.text and '='}{given.text}" if given else ""
    return error.sentence(place, OPTION_WORDS)


def in_keywords(error: RefusedRequest) -> str:
    """The same for a call of `make`."""
    return error.sentence(_keyword(error.given) if error.given else "", KEYWORD_WORDS)


def in_arguments(error: RefusedRequest) -> str:
    """The same for a call of a tool."""
    given = error.given
    place = f"{given.kind.value} of {given.name}{given.text and ', '}{given.text}" if given else ""
    return error.sentence(place, ARGUMENT_WORDS)


def _keyword(one: GivenArgument) -> str:
    if one.kind is ArgumentKind.VALUES:
        return f'values={{"{one.name}": "{one.text}"}}' if one.text else f"values: {one.name}"
    text = f'"{one.text}"' if one.kind is ArgumentKind.SHAPE else one.text
    return f"{one.name}={text}" if one.text else one.name
