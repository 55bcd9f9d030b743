"""A run with a fault, its repair and a correction, put together of records: nothing is built or run for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tilewright.records import (
    BadPlan,
    Message,
    PlanProblem,
    Question,
    Rejected,
    Reply,
    Role,
    Settings,
    Stage,
    StopReason,
    Usage,
)
from tilewright.store import RunFolder, Store

EARLIER = Path(__file__).parents[1] / "store" / "earlier_home" / "runs" / "relu-of-x-then-times-3-7mqq"
SECRET = "sk-" + "a1" * 20  # in the form of a key
SAID = f"It lies in /home/alice/secret/kernel.cu, my key is {SECRET}"


def mended_run(home: Path) -> RunFolder:
    """Attempt 1: unreadable, then refused; attempt 2: the kernel of a stored run, which passed."""
    earlier = RunFolder(EARLIER)
    run, text = earlier.load(), earlier.attempt(2).text("kernel.cu")
    settings = Settings("replay:/home/alice/recording", licence="MIT")
    folder = Store(home).create_run(run.task, settings, run.environment)
    refused = Rejected(BadPlan((PlanProblem(3, 1, "need", "the need does not hold", "take any size", ""),)))
    first = replace(
        run.attempts[0], verdict=refused, measurement=None, tune=None, summary="an [odd] `need`", kernel="0", replies=2
    )
    second = replace(run.attempts[1], step=2, stage=Stage.REPAIR_BUILD, parent=None, summary="any size is taken")
    replies = {1: ("no file", f"the first file. {SAID}"), 2: ("the mended file",)}
    for attempt, kernel in ((first, text.replace("x.ndim == 2", "x.ndim == 7")), (second, text)):
        place = folder.attempt(attempt.number)
        for k, said in enumerate(replies[attempt.number], start=1):
            question = Question(f"{attempt.number:04d}-{k}", f"system. {SAID}", (Message(Role.USER, "write it"),))
            reply = Reply("replay:/home/alice/recording", said, StopReason.END, Usage(100, 10), 0.0)
            place.reply_to(k, question, lambda _, reply=reply: reply)
        place.save_text("kernel.cu", kernel)
        place.finish(attempt)
    return folder
