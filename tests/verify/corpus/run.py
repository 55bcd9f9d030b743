"""The whole corpus, or a part of it, before the referee, on several cores.

    python -m tests.verify.corpus.run [--jobs 14] [--device emulator|gpu|both] [--only GLOB...] [--side wrong|honest]
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.verify.corpus.court import ERROR, Court, Row
from tests.verify.corpus.entries import HONEST, WRONG, Entry, entry_from, load

_GROUP = 6  # entries of a task that are judged by one process, so that it starts one reference
_MOST_SECONDS = 150.0  # for one entry


@dataclass(frozen=True)
class Job:
    """One entry to be judged, or another text as if it were that entry's."""

    entry: str
    device: str
    seed: int = 0
    text: str | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=("emulator", "gpu", "both"), default="emulator")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--side", choices=(WRONG, HONEST))
    parser.add_argument("--seeds", type=int, default=1, help="how often each is judged, with other values each time")
    parser.add_argument("-o", "--output", type=Path, help="where the lines go as well")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return _serve()
    entries = [
        one
        for one in load(*([options.side] if options.side else []))
        if any(fnmatch.fnmatch(one.name, pattern) for pattern in options.only)
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

    known = {one.name: one for one in entries}
    jobs = [Job(name, device, seed) for device in devices for name in known for seed in range(options.seeds)]
    rows = judge_jobs(jobs, known, options.jobs, say)
    print("\n".join(summary(rows, time.monotonic() - began)))
    return 0 if all(row.right for row in rows) else 1


def judge_jobs(jobs: Iterable[Job], known: Mapping[str, Entry], workers: int, say: Callable[[Row], None]) -> list[Row]:
    """Every job by as many processes as are wanted; `say` is called with each row as it comes."""
    groups: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
    for group in _groups(jobs, known):
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

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


def _groups(jobs: Iterable[Job], known: Mapping[str, Entry]) -> Iterator[list[Job]]:
    """Jobs of one task and device together, a few at a time."""
    together: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        together.setdefault((job.device, known[job.entry].task), []).append(job)
    for members in together.values():
        for first in range(0, len(members), _GROUP):
            yield members[first : first + _GROUP]


def _judged(group: list[Job], known: Mapping[str, Entry]) -> Iterator[Row]:
    """The rows of a group, by as many processes as it takes."""
    left = list(group)
    while left:
        with _Server() as server:
            while left:
                job, began = left.pop(0), time.monotonic()
                row = server.judge(known[job.entry], job)
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

    def judge(self, entry: Entry, job: Job) -> Row | None:
        """None where no answer came."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(_MOST_SECONDS, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"entry": asdict(entry), "job": asdict(job)}) + "\n")
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
    courts: dict[str, Court] = {}
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            entry, job = entry_from(asked["entry"]), Job(**asked["job"])
            if job.device not in courts:
                courts[job.device] = Court(on_gpu=job.device == "gpu").__enter__()
            row = courts[job.device].judge(entry, job.text, seed=job.seed)
            print(json.dumps(asdict(row)), flush=True)
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
                head = f"{device}, {HONEST if honest else WRONG}: {len(side)} judged, {said}"
                lines.append(f"{head}; {middle} s at the median, {longest} s at most")
    return [*lines, f"{len(rows)} verdicts in {seconds:.0f} s"]


if __name__ == "__main__":
    sys.exit(main())
