"""Follows the addresses of whole calls at full size: of every structure that the playbook tries, and of the gallery.

    python benchmarks/address_slices.py FOLDER [-o FILE] [--only NAME ...] [--seconds 900]

FOLDER is a checkout of KernelBench; its levels 1 and 2 are taken, then the kernels of gallery/ and examples/. For each
file it says whether the addresses of its own call could be followed, why not, and what CPU time that took, without
building. Each problem has a process of its own. FILE is written after every problem, and a problem that is in it is not
done again unless `--only` names it. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recording import ROOT, write_result
from tilewright.devices.emulation.engine import EmulatorEngine
from tilewright.kernel_file import KernelFile
from tilewright.records import Case, Execution, GpuProfile, Job, Task
from tilewright.reference import Reference
from tilewright.store import RunFolder
from tilewright.tasks import TaskError, TaskOptions, task_from_kernelbench, task_op_line
from tilewright.verify.block_sample import OWN_SEED
from tilewright.verify.candidate import Candidate, Times, read_kernel
from tilewright.verify.independence import independent_dimensions
from tilewright.verify.own_addresses import follow_own_call

Row = dict[str, Any]


class Here:
    """An emulated device in this process, whose CPU time can be told."""

    def __init__(self, profile: GpuProfile) -> None:
        self.profile = profile
        self.seconds = 0.0
        self._engine = EmulatorEngine(profile)

    def execute(self, job: Job) -> Execution:
        began = time.process_time()
        done = self._engine.run(job, lambda progress: None)
        self.seconds += time.process_time() - began
        return done.execution


def structures(task: Task) -> Iterator[tuple[str, str]]:
    """The names and texts of the draft and what the playbook tries after it."""
    from tilewright.playbook.file_text import with_least_sizes
    from tilewright.playbook.understanding import understand

    answer = understand(task)
    for step in (answer.draft, *(one for one in answer.structures if not one.resort)):
        yield step.id, with_least_sizes(step.write(task_op_line(task)), task)


def followed(task: Task, name: str, text: str) -> Row:
    file = read_kernel(text, task)
    if not isinstance(file, KernelFile):
        return {"structure": name, "outcome": "plan refused", "why": str(file)[:200]}
    candidate = Candidate(file, task, None, Times())
    if candidate.emulated_job(Case(task.sizes, OWN_SEED), task.profile, ()) is None:
        return {"structure": name, "outcome": "declined"}
    with Reference(task.reference, task.function) as reference:
        independent = independent_dimensions(task, reference)
    here = Here(task.profile)
    found = follow_own_call(candidate, here, independent, {})  # type: ignore[arg-type]
    wrong = [str(one) for one in found.findings]
    return {
        "structure": name,
        "outcome": "wrong" if wrong else "followed" if not found.doubt and not found.twice else "in doubt",
        "why": "; ".join(wrong[:2]) or found.doubt or ("written twice" if found.twice else ""),
        "reads": found.reads_left or "followed",
        "unread": [one.name for one in found.read if not one.whole],
        "launches": len({one.launch for one in found.paths}),
        "paths": len(found.paths),
        "instructions": found.thread_instructions,
        "cpu_s": round(here.seconds, 3),
    }


def survey(path: Path) -> None:
    """Print a JSON object for each file of a problem, or of a recorded run."""
    try:
        if path.is_dir():
            folder = RunFolder(path)
            run = folder.load()
            best = run.best
            assert best is not None
            task, texts = run.task, [("best", folder.attempt(best.number).text("kernel.cu"))]
        else:
            task = task_from_kernelbench(path, TaskOptions(allow_degenerate=True))
            texts = list(structures(task))
    except (TaskError, ValueError) as error:
        say({"structure": "", "outcome": "not written", "why": str(error)[:200]})
        return
    for name, text in texts:
        try:
            say(followed(task, name, text))
        except Exception as error:  # ours, whatever it is: the others are still to be done
            say({"structure": name, "outcome": "failed", "why": f"{type(error).__name__}: {error}"[:300]})


def say(row: Row) -> None:
    print(json.dumps(row), flush=True)


def rows_of(path: Path, seconds: float) -> list[Row]:
    command = [sys.executable, str(Path(__file__).resolve()), "--one", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds)
        said, failure = done.stdout, done.stderr.decode(errors="replace").strip() if done.returncode else ""
    except subprocess.TimeoutExpired as expired:
        said, failure = expired.stdout or b"", f"not through after {seconds:g} s"
    rows = [json.loads(line) for line in said.decode(errors="replace").splitlines()]
    if failure:
        rows.append({"structure": "", "outcome": "failed", "why": failure.splitlines()[-1][:300]})
    return rows


def problems(folder: Path) -> dict[str, Path]:
    def number(path: Path) -> int:
        found = re.match(r"\d+", path.name)
        return int(found[0]) if found else 0

    paths = [one for level in ("level1", "level2") for one in sorted((folder / level).glob("*.py"), key=number)]
    found = {f"{one.parent.name}/{one.stem}": one for one in paths}
    return found | {f"gallery/{one.parent.name}": one.parent for one in sorted((ROOT / "gallery").glob("*/run.json"))}


def summary(rows: dict[str, list[Row]]) -> Row:
    every = [
        one for some in rows.values() for one in some if one["outcome"] in ("followed", "in doubt", "wrong", "failed")
    ]
    followed_ = [one for one in every if one["outcome"] == "followed"]
    seconds = sorted(one["cpu_s"] for one in every if "cpu_s" in one)
    reasons: dict[str, int] = {}
    for one in every:
        if one["outcome"] != "followed":
            reason = f"{one['outcome']}: {one['why']}"
            reasons[reason] = reasons.get(reason, 0) + 1
    return {
        "problems": len(rows),
        "structures": len(every),
        "followed": len(followed_),
        "share": round(len(followed_) / max(len(every), 1), 4),
        "reads_followed": sum(one.get("reads") == "followed" for one in followed_),
        "median_cpu_s": statistics.median(seconds) if seconds else None,
        "p90_cpu_s": seconds[int(0.9 * (len(seconds) - 1))] if seconds else None,
        "longest_cpu_s": seconds[-1] if seconds else None,
        "not_followed": reasons,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="a checkout of KernelBench")
    parser.add_argument("-o", "--output", type=Path, help="the JSON file of results; what it holds is not done again")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="problems whose name contains one of these, anew")
    parser.add_argument("--seconds", type=float, default=900.0, help="for one problem, all in all")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        survey(options.one)
        return
    if options.folder is None or not (options.folder / "level1").is_dir():
        raise SystemExit("give a checkout of KernelBench: a folder with level1 and level2")
    os.nice(10)
    rows: dict[str, list[Row]] = {}
    if options.output and options.output.exists():
        rows = json.loads(options.output.read_text())["rows"]
    paths = problems(options.folder)
    wanted = [one for one in paths if (any(part in one for part in options.only) if options.only else one not in rows)]
    for number, name in enumerate(wanted, 1):
        rows[name] = rows_of(paths[name], options.seconds)
        told = ", ".join(f"{one['outcome']} {one.get('cpu_s', '')} {one['why']}".strip() for one in rows[name])
        print(f"{number:>3} of {len(wanted)}  {name}: {told}", flush=True)
        if options.output:
            partly = options.output.with_suffix(".partly")
            write_result(partly, {"summary": summary(rows), "rows": {one: rows[one] for one in paths if one in rows}})
            partly.replace(options.output)
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
