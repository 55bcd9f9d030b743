"""Messages during a run, and refusals phrased with options, with keywords, or with the arguments of a tool."""

from __future__ import annotations

import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib import resources

from tilewright.frontends.api.choices import PLAYBOOK, ChosenAuthor
from tilewright.frontends.report import document as doc
from tilewright.frontends.report.rendering import plain_text
from tilewright.frontends.report.runs import attempt_words, rows, seconds_words, spend_words
from tilewright.records import Attempt, Carried, Question, Reply, Run, Situation, Specification
from tilewright.store import RunFolder
from tilewright.tasks.errors import ArgumentKind, GivenArgument, RefusedRequest, RemedyKind

REMIND_SECONDS = 30.0  # between two reminders


class NotAcceptedYet(Carried, RuntimeError):
    """A request in words has a specification that was not accepted yet; `specification` is what to read."""

    def __init__(self, message: str, run: str, specification: Specification) -> None:
        self.run = run
        self.specification = specification
        super().__init__(message)


class Reporter:
    """Receives the messages of a run as a `refine.Watcher`; a front end must implement `accept`."""

    stage = ""  # of the present attempt

    def say(self, text: str, title: str = "") -> None:
        """A line for a person, after a short title if there is one."""

    def remind(self, text: str) -> None:
        """A line that says what the program waits for, where no live line shows it."""

    def accept(self, folder: RunFolder, specification: Specification) -> None:
        """Have a person accept the specification of a run in words; raises `NotAcceptedYet`."""
        raise NotImplementedError

    def live(self, what: str = "") -> AbstractContextManager[None]:
        """Shows `what` on a live line while the block runs."""
        return nullcontext()

    def following(self, chosen: ChosenAuthor, every_s: float = REMIND_SECONDS) -> ChosenAuthor:
        """The same author, with reminders while it has not replied."""

        def complete(question: Question, on_text: Callable[[str], None]) -> Reply:
            number, characters = question.id.partition("-")[0].lstrip("0"), 0  # 3 of `0003-1`
            about = f"attempt {number}, {self.stage}" if number else "specification"

            def count(text: str) -> None:
                nonlocal characters
                characters += len(text)
                on_text(text)

            def remind(seconds: float) -> None:
                progress = f"{characters:,} characters so far" if characters else "no reply yet"
                self.remind(f"{about}: waiting for {chosen.name} for {seconds_words(seconds)}, {progress}")

            self.remind(f"{about}: asking {chosen.name}")
            with reminding(remind, every_s):
                return chosen.complete(question, count)

        return replace(chosen, complete=complete)

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
def reminding(remind: Callable[[float], None], every_s: float = REMIND_SECONDS) -> Iterator[None]:
    """Calls `remind` every so many seconds while the block runs, with the seconds it has taken."""
    began, ended = time.monotonic(), threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            remind(time.monotonic() - began)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class PlainReporter(Reporter):
    """Prints plain lines on stderr. `yes` accepts every specification; `quiet` prints nothing."""

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
        text = f"\n\n{plain_text(specification_blocks(specification))}"
        if sys.stdin.isatty():
            print(text, file=sys.stderr, flush=True)
            if input("Is this what is meant? [y/N] ").strip().lower() in ("y", "yes"):
                return
            text = ""
        raise NotAcceptedYet(
            f"the specification of run {folder.id} waits to be accepted: read it, then call make again with yes=True "
            f"(it is not paid for again), or `tilewright resume {folder.id} --yes`{text}",
            folder.id,
            specification,
        )

    def attempted(self, run: Run, attempt: Attempt) -> None:
        row = next(one for one in rows(run) if one.attempt.number == attempt.number)
        self.say(f"attempt {attempt.number}, {attempt.stage.value}, {attempt_words(row)}: {row.summary}")
        for note in row.notes:
            self.say(f"by algebra: {note}")

    def ended(self, run: Run) -> None:
        self.say(f"{run.ending_words or 'stopped'}; {spend_words(run)}")


def specification_blocks(specification: Specification) -> list[doc.Block]:
    """What words are taken to mean: the reference that decides what is right, its inputs, what else was assumed."""
    unsaid = [one for one in specification.assumptions if one not in specification.description]
    parts = {"the reference, which decides what is right:": specification.reference}
    parts["its inputs:"] = specification.description
    blocks: list[doc.Block] = []
    for title, text in parts.items():
        blocks += [doc.say(title, tone=doc.Tone.STRONG), doc.Source(text.strip()), doc.say("")]
    return [*blocks, doc.say("assumed:", tone=doc.Tone.STRONG), doc.Items(tuple(unsaid))] if unsaid else blocks


# -- refusals of `tasks` and `playbook`, phrased for each front end --

_OPTIONS = {ArgumentKind.SHAPE: "--shape", ArgumentKind.NUMBER: "--set", ArgumentKind.VALUES: "--fill"}

_TABLE = tomllib.loads(resources.files("tilewright.frontends.api").joinpath("refusals.toml").read_text("utf-8"))
_WORDS = {
    front: {RemedyKind[kind.upper()]: words[front] for kind, words in _TABLE.items()}
    for front in ("option", "keyword", "argument")
}


def in_options(error: RefusedRequest) -> str:
    """The refusal with the options of the command line."""
    given = error.given
    place = f"{_OPTIONS[given.kind]} {given.name}{given.text and '='}{given.text}" if given else ""
    return error.sentence(place, _WORDS["option"])


def in_keywords(error: RefusedRequest) -> str:
    """The refusal with the keywords of `make`."""
    return error.sentence(_keyword(error.given) if error.given else "", _WORDS["keyword"])


def in_arguments(error: RefusedRequest) -> str:
    """The refusal with the arguments of a tool."""
    given = error.given
    place = f"{given.kind.value} of {given.name}{given.text and ', '}{given.text}" if given else ""
    return error.sentence(place, _WORDS["argument"])


def _keyword(one: GivenArgument) -> str:
    if one.kind is ArgumentKind.VALUES:
        return f'values={{"{one.name}": "{one.text}"}}' if one.text else f"values: {one.name}"
    text = f'"{one.text}"' if one.kind is ArgumentKind.SHAPE else one.text
    return f"{one.name}={text}" if one.text else one.name
