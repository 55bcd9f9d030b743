"""Works on a run as the loop does, for ever, until it is killed: `python writing_child.py RUN LEDGER`.

The ledger is what a paid model would know: a line for each question asked, and `TWICE` where the reply lay on disk.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from tests.store.records_for_store import PASSED, attempt, modelled, question, reply

from tilewright.records import Ending, Measurement, Question, Reply, Verdict
from tilewright.store import RunFolder


def work(folder: RunFolder, ledger: Path) -> None:
    run = folder.load()
    number = len(run.attempts) + 1
    place = folder.attempt(number)
    for k in (1, 2):

        def ask(asked: Question, k: int = k) -> Reply:
            twice = (place.path / f"reply-{k}.json").exists()
            with open(ledger, "a") as stream:
                stream.write(f"{asked.id}{' TWICE' if twice else ''}\n")
                stream.flush()
                os.fsync(stream.fileno())
            for _ in range(20):
                place.stream(k, "piece ")
            return reply(f"answer {asked.id}", 0.5)

        # Every third attempt is asked anew in other words, as after a hint.
        place.reply_to(k, question(number, k, f"{number % 3 == 0 and len(run.settings.hints)}"), ask)
    place.save_text("kernel.cu", f"// {number}\n" * 500)
    place.remember("verdict", Verdict, lambda: PASSED)
    place.remember("measurement", Measurement | None, lambda: modelled(float(number)))
    place.finish(attempt(number, 100.0 / number, text=f"// {number}\n" * 500))
    if number % 4 == 0:
        folder.end(Ending.ATTEMPTS)
        hints = (*run.settings.hints, (number, "go on"))
        folder.reopen(replace(run.settings, hints=hints))


if __name__ == "__main__":
    with RunFolder(Path(sys.argv[1])).lock():
        print("working", flush=True)
        while True:
            work(RunFolder(Path(sys.argv[1])), Path(sys.argv[2]))
