"""A run of recorded replies, to be killed: `python -m tests.refine.killed_child HOME RECORDING LOG DELAY_SECONDS`.

It goes on with the only run under HOME, or begins it. Each reply that arrives is noted in LOG before it is handed on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.refine.runs import ENVIRONMENT, TASK
from tests.refine.silent import Silent

from tilewright.authors.model_author import ModelAuthor
from tilewright.devices.child_device import EmulatedDevice
from tilewright.measure import Stopwatch
from tilewright.models import open_model
from tilewright.records import Question, Reply, Settings
from tilewright.reference import Reference
from tilewright.refine import RunContext, refine
from tilewright.store import Store
from tilewright.verify import Referee

SETTINGS = Settings("replay", good_enough=2.0, structure_patience=3, profiled_patience=1)


def main(home: Path, recording: Path, log: Path, delay_seconds: float) -> None:
    store = Store(home)
    runs = store.runs().runs
    folder = store.open_run(runs[0].id) if runs else store.create_run(TASK, SETTINGS, ENVIRONMENT)
    model = open_model(f"replay:{recording}")
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def complete(question: Question, on_text: Callable[[str], None]) -> Reply:
        time.sleep(delay_seconds)
        reply = model.complete(question, on_text)
        os.write(notes, f"{question.id}\n".encode())
        return reply

    with (
        folder.lock(),
        Reference(TASK.reference, TASK.function) as reference,
        EmulatedDevice(TASK.profile) as emulator,
        Referee(TASK, reference, emulator=emulator) as referee,
        Stopwatch(TASK, reference, emulator=emulator) as stopwatch,
    ):
        refine(folder, RunContext(ModelAuthor(model.name), complete, referee, stopwatch, Silent()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
