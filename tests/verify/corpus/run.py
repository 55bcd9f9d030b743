"""The whole corpus, or a part of it, before the referee, on several cores.

    python -m tests.verify.corpus.run [--jobs 14] [--device emulator|gpu|both] [--only GLOB] [--side wrong|honest]
                                      [--seeds N] [-o rows.jsonl]

Prints one JSON line for every file as its verdict comes, then what differs from what was expected, and totals. A file
that kills its process or takes too long is a row with the verdict `error`; the others go on in a new process.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.verify.corpus.court import ERROR, Court, Row
from tests.verify.corpus.entries import HONEST, WRONG, Entry, load

_GROUP = 6  # entries of a task that are judged by one process, so that it starts one reference
_MOST_SECONDS = 150.0  # for one entry


@dataclass(frozen=True)
class Job:
    """One entry to be judged."""

    entry: str
    device: str
    seed: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=("emulator", "gpu", "both"), default="emulator")
    parser.add_argument("--only", default="*", help="a pattern of names")
    parser.add_argument("--side", choices=(WRONG, HONEST))
    parser.add_argument("--seeds", type=int, default=1, help="how often each is judged, with other values each time")
    parser.add_argument("-o", "--output", type=Path, help="where the lines go as well")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return _serve()
    entries = [
        one for one in load(*([options.side] if options.side else [])) if fnmatch.fnmatch(one.name, options.only)
    ]
    devices = ("emulator", "gpu") if options.device == "both" else (options.device,)
    began = time.monotonic()
    sink = options.output.open("w") if options.output else None

    def say(row: Row) -> None:
        line = json.dumps(asdict(row))
        print(line, flush=True)
        if sink:
            sink.write(line + "\n")
            sink.flush()

    rows = judge_all(entries, devices, options.seeds, options.jobs, say)
    print("\n".join(summary(rows, time.monotonic() - began)))
    return 0 if all(row.right for row in rows) else 1


def judge_all(
    entries: Iterable[Entry], devices: Iterable[str], seeds: int, jobs: int, say: Callable[[Row], None]
) -> list[Row]:
    """Every entry on every device with every seed; `say` is called with each row as it comes."""
    known = {one.name: one for one in entries}
    groups: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
    for group in _groups(known.values(), tuple(devices), seeds):
        groups.put(group)
    rows: list[Row] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            try:
                group = groups.get_nowait()
            except queue.Empty:
                return
            for row in _judged(group, known):
                with lock:
                    rows.append(row)
                    say(row)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


def _groups(entries: Iterable[Entry], devices: tuple[str, ...], seeds: int) -> Iterator[list[Job]]:
    """Jobs of one task and device together, a few at a time."""
    ordered = sorted(entries, key=lambda one: one.task)
    for device in devices:
        jobs = [(one.task, Job(one.name, device, seed)) for one in ordered for seed in range(seeds)]
        for task in dict.fromkeys(name for name, _ in jobs):
            members = [job for name, job in jobs if name == task]
            for first in range(0, len(members), _GROUP):
                yield members[first : first + _GROUP]


def _judged(group: list[Job], known: dict[str, Entry]) -> Iterator[Row]:
    """The rows of a group, by as many processes as it takes."""
    left = list(group)
    while left:
        with _Server() as server:
            while left:
                job, began = left.pop(0), time.monotonic()
                row = server.judge(job)
                if row is None:
                    entry, seconds = known[job.entry], round(time.monotonic() - began, 2)
                    lost = (job.device, ERROR, "Lost", "its process ended or took too long", seconds)
                    yield Row(entry.name, entry.task, entry.kind, entry.reasons, *lost)
                    break
                yield row


class _Server:
    """A process that judges one job after another."""

    def __enter__(self) -> _Server:
        command = [sys.executable, "-m", "tests.verify.corpus.run", "--serve"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def judge(self, job: Job) -> Row | None:
        """None where no answer came."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(_MOST_SECONDS, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(asdict(job)) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith('{"name"'):
                    return row_from(json.loads(line))
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        return None


def _serve() -> int:
    """Answers jobs on standard input with rows on standard output."""
    known = {one.name: one for one in load()}
    courts: dict[str, Court] = {}
    try:
        for line in sys.stdin:
            job = Job(**json.loads(line))
            if job.device not in courts:
                courts[job.device] = Court(on_gpu=job.device == "gpu").__enter__()
            print(json.dumps(asdict(courts[job.device].judge(known[job.entry], seed=job.seed))), flush=True)
    finally:
        for court in courts.values():
            court.__exit__(None, None, None)
    return 0


def row_from(data: dict[str, Any]) -> Row:
    return Row(**{**data, "expected": tuple(data["expected"])})


def summary(rows: list[Row], seconds: float) -> list[str]:
    """What is not as it should be, then totals."""
    lines = []
    for row in sorted(rows, key=lambda one: (one.device, one.right, one.name)):
        if not row.for_the_right_reason:
            word = "MISS  " if not row.right else "REASON"
            wanted = "/".join(row.expected) or "accepted"
            lines.append(
                f"{word} {row.device} {row.name} [{row.task}] {row.verdict} {row.reason} not {wanted}: {row.detail}"
            )
    for device in dict.fromkeys(row.device for row in rows):
        for honest in (False, True):
            side = [row for row in rows if row.device == device and (not row.expected) == honest]
            counts = Counter(row.verdict for row in side)
            slow = sorted(row.seconds for row in side)
            if side:
                said = ", ".join(f"{number} {word}" for word, number in counts.most_common())
                middle, longest = slow[len(slow) // 2], slow[-1]
                lines.append(
                    f"{device}, {HONEST if honest else WRONG}: {len(side)} judged, {said}; {middle} s at the median, {longest} s at most"
                )
    return [*lines, f"{len(rows)} verdicts in {seconds:.0f} s"]


if __name__ == "__main__":
    sys.exit(main())
