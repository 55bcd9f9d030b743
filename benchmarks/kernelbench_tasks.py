"""A task of every KernelBench problem in a folder: what was found out of it, and whether it can be judged.

    python benchmarks/kernelbench_tasks.py FOLDER [-o FILE] [--brief FILE] [--only NAME ...] [--processes 2]
        [--seconds 600]

FOLDER is a checkout of KernelBench, or any folder of files with `Model`, `get_inputs` and `get_init_inputs`. Each file
is made a task of in a process of its own. Then the reference is given to the referee as if it were a kernel, at the
small cases that kernels are judged by: its own answers must pass, and zeros must not. Last, the playbook is asked
whether it can write the kernel. No GPU is needed. FILE is written after every problem, and a problem that is in it is
not done again unless `--only` names it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recording import write_result
from tilewright.records import Case, ReturnedTensor, Task
from tilewright.reference import Reference, ReferenceProblem
from tilewright.tasks import TaskError, TaskOptions, task_from_kernelbench, task_op_line
from tilewright.tasks.reading.parameters import print_values
from tilewright.verify.accepted_sizes import accepted_sizes
from tilewright.verify.case_work import OWN_WORK, is_small
from tilewright.verify.cases import full_size_cases, plan_cases
from tilewright.verify.judging_records import JudgeRequest

HERE = Path(__file__).resolve().parent
JUDGE_OWN = "kernelbench_tasks:judge_own"
JUDGING_SECONDS = 90.0  # after which no further case is begun
CASE_SECONDS = 120.0
MARKS = ("class Model", "def get_inputs", "def get_init_inputs")
OUTCOMES = ("made", "degenerate", "refused", "failed", "timed out")
Row = dict[str, Any]


# -- in the reference's process --


@dataclass(frozen=True)
class OwnAnswer:
    """What the referee says of the reference's own results, and of zeros in their place."""

    right: bool
    ratio: float
    telling: bool
    zeros_right: bool


def judge_own(function: Callable[..., Any], request: JudgeRequest) -> OwnAnswer:
    from tilewright.reference.torch_calls import call_reference, to_bytes, to_torch
    from tilewright.verify.distributions import case_task, draw_inputs
    from tilewright.verify.judging import judge

    task, sizes = case_task(request.task, request.case), request.case.sizes
    specs = task.specs(sizes)
    drawn = draw_inputs(task, request.case)
    results = call_reference(function, task, {name: to_torch(specs[name], content) for name, content in drawn.items()})
    wanted = {**task.output_specs(sizes), **{one.name: specs[one.name] for one in task.tensors if one.in_place}}
    own = tuple(
        ReturnedTensor(name, spec, to_bytes(found)) for (name, spec), found in zip(wanted.items(), results, strict=True)
    )
    zeros = tuple(replace(one, content=bytes(len(one.content))) for one in own)
    found = judge(function, replace(request, outputs=own))
    empty = judge(function, replace(request, outputs=zeros))
    return OwnAnswer(not found.wrong, found.error_ratio, found.telling, not empty.wrong)


# -- one problem, in a process of its own --


def survey(path: Path) -> None:
    """Print what is found out of one problem, a JSON object for each stage, so that what was known is kept."""
    began = time.monotonic()
    try:
        task = task_from_kernelbench(path, TaskOptions(allow_degenerate=True))
    except TaskError as error:
        say({"outcome": "refused", "sentence": str(error).removeprefix(f"{path}: "), "task_s": since(began)})
        return
    except Exception as error:  # ours, whatever it is: the other problems are still to be done
        say({"outcome": "failed", "sentence": last_line(error), "task_s": since(began)})
        return
    say({**described(task), "task_s": since(began)})
    began = time.monotonic()
    say({"judged": judged(task), "judge_s": since(began)})
    began = time.monotonic()
    say({"playbook": playbook_answer(task), "playbook_s": since(began)})


def described(task: Task) -> Row:
    return {
        "outcome": "degenerate" if task.degenerate else "made",
        "sentence": task.degenerate,
        "kind": task.kind.value,
        "op": task_op_line(task),
        "inputs": {one.name: f"{one.dtype}[{', '.join(one.dimensions)}]" for one in task.tensors},
        "values": {one.name: print_values(one.values) for one in task.tensors},
        "outputs": {one.name: f"{one.dtype}[{', '.join(map(str, one.shape))}]" for one in task.outputs},
        "dimensions": [
            {
                "name": one.name,
                "size": one.size,
                "varies": one.varies,
                "multiple_of": one.multiple_of,
                **({"at_least": one.at_least} if one.at_least > 1 else {}),
                **({"formula": str(one.formula)} if one.formula is not None else {}),
            }
            for one in task.dimensions
        ],
        "assumptions": list(task.assumptions),
    }


def judged(task: Task) -> Row:
    """The reference's own answers at the cases that need no GPU."""
    cases = plan_cases(task)
    if is_small(task, task.sizes, OWN_WORK):
        cases = (*cases, *full_size_cases(task))
    if not cases:
        cases = tuple(Case(sizes, 201) for sizes in accepted_sizes(task, lambda sizes: True))
    row: Row = {"cases": len(cases), "done": 0, "wrong": [], "zeros_right": [], "not_telling": [], "problems": []}
    began = time.monotonic()
    with Reference(task.reference, task.function) as reference:
        for case in cases:
            if time.monotonic() - began > JUDGING_SECONDS:
                break
            judge_case(reference, task, case, row)
    return row


def judge_case(reference: Reference, task: Task, case: Case, row: Row) -> None:
    row["done"] += 1
    try:
        answer = reference.call(JUDGE_OWN, JudgeRequest(task, case, ()), OwnAnswer, CASE_SECONDS)
    except (ReferenceProblem, RuntimeError) as error:
        row["problems"].append(f"{case}: {last_line(error)}")
        return
    if not answer.telling:
        row["not_telling"].append(str(case))
    elif not answer.right:
        row["wrong"].append(f"{case}: {answer.ratio:.3g} times what is allowed")
    elif answer.zeros_right:
        row["zeros_right"].append(str(case))


def playbook_answer(task: Task) -> str:
    """ "" where the playbook knows how to write it; else what it says."""
    from tilewright.playbook.errors import NotSupported
    from tilewright.playbook.understanding import understand

    try:
        understand(task)
    except NotSupported as problem:
        return str(problem)
    except Exception as error:  # as above
        return f"failed: {last_line(error)}"
    return ""


def say(row: Row) -> None:
    print(json.dumps(row), flush=True)


def since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


# -- all of them --


def problems(folder: Path) -> Iterator[Path]:
    """Files that define a model and its inputs, by folder and number."""
    for path in sorted(folder.rglob("*.py"), key=lambda one: (str(one.parent), number_of(one.name), one.name)):
        text = path.read_text(errors="replace")
        if all(mark in text for mark in MARKS):
            yield path


def number_of(name: str) -> int:
    found = re.match(r"\d+", name)
    return int(found[0]) if found else 0


def row_of(path: Path, name: str, seconds: float) -> Row:
    began = time.monotonic()
    row: Row = {"problem": name, "outcome": "timed out", "sentence": f"not through after {seconds:g} s"}
    command = [sys.executable, str(Path(__file__).resolve()), "--one", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds)
        said, failure = done.stdout, done.stderr.decode(errors="replace") if done.returncode else ""
    except subprocess.TimeoutExpired as expired:
        said, failure = expired.stdout or b"", ""
    if failure:
        row |= {"outcome": "failed", "sentence": failure.strip().splitlines()[-1]}
    for line in said.decode(errors="replace").splitlines():
        row |= json.loads(line)
    return row | {"seconds": since(began)}


def run(folder: Path, rows: dict[str, Row], options: argparse.Namespace) -> None:
    paths = {str(path.relative_to(folder).with_suffix("")): path for path in problems(folder)}
    if not paths:
        raise SystemExit(
            f"{folder} has no file with Model, get_inputs and get_init_inputs; give a checkout of KernelBench"
        )
    if options.only:
        wanted = [name for name in paths if any(part in name for part in options.only)]
    else:
        wanted = [name for name in paths if name not in rows]
    with ThreadPoolExecutor(options.processes) as pool:
        waiting = [pool.submit(row_of, paths[name], name, options.seconds) for name in wanted]
        for number, one in enumerate(as_completed(waiting), 1):
            row = one.result()
            rows[row["problem"]] = row
            print(f"{number:>3} of {len(wanted)}  {table_row(row)}", flush=True)
            if options.output:
                write(options.output, [rows[name] for name in paths if name in rows])


def write(path: Path, rows: list[Row]) -> None:
    """The whole file anew, at once: it may be ended at any time."""
    partly = path.with_suffix(".partly")
    write_result(partly, {"rows": rows})
    partly.replace(path)


# -- the report --


def table_row(row: Row) -> str:
    dimensions = row.get("dimensions", [])
    varying = [one["name"] + multiple(one) for one in dimensions if one["varies"]]
    fixed = sum(not one["varies"] and one["size"] > 1 for one in dimensions)
    shape = f"{', '.join(varying) or 'none'}; {fixed} fixed" if dimensions else row["sentence"]
    book = "playbook" if row.get("playbook") == "" else ""
    return (
        f"{row['problem'][:52]:<52} {row['outcome']:<10} {row.get('kind', ''):<13} {judged_text(row):<22} {book:<8} "
        f"{row['seconds']:>6.1f} s  {shape[:110]}"
    )


def multiple(dimension: Row) -> str:
    return f"*{dimension['multiple_of']}" if dimension["multiple_of"] > 1 else ""


def judged_text(row: Row) -> str:
    found = row.get("judged")
    if found is None:
        return ""
    if not found["cases"]:
        return "no small case"
    bad = {name: len(found[name]) for name in ("wrong", "zeros_right", "not_telling", "problems") if found[name]}
    right = found["done"] - sum(bad.values())
    return f"{right}/{found['done']}" + "".join(f" {name[:5]} {count}" for name, count in bad.items())


def brief(row: Row) -> Row:
    """What a row comes to."""
    dimensions = [one for one in row.get("dimensions", []) if one["size"] > 1 and "formula" not in one]
    return {
        "problem": row["problem"],
        "outcome": row["outcome"],
        "sentence": row["sentence"].partition(" (line")[0],
        "kind": row.get("kind", ""),
        "varying": sum(one["varies"] for one in dimensions),
        "fixed": sum(not one["varies"] for one in dimensions),
        "judged": judged_text(row),
        "playbook": row.get("playbook") == "",
        "task_s": row.get("task_s"),
    }


def summarise(rows: list[Row]) -> None:
    print()
    for level in sorted({row["problem"].rpartition("/")[0] for row in rows}):
        own = [row for row in rows if row["problem"].rpartition("/")[0] == level]
        counts = Counter(row["outcome"] for row in own)
        known = sum(row.get("playbook") == "" for row in own)
        sound = sum(is_sound(row) for row in own)
        listed = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        print(f"{level or 'all'}: {len(own)} problems: {listed}; {sound} judged without a complaint; playbook {known}")
    for outcome in OUTCOMES[1:]:
        for row in rows:
            if row["outcome"] == outcome:
                print(f"  {outcome}: {row['problem']}: {row['sentence']}")


def is_sound(row: Row) -> bool:
    found = row.get("judged")
    return bool(found and found["done"] and not (found["wrong"] or found["zeros_right"] or found["problems"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="a checkout of KernelBench, or a folder of problems")
    parser.add_argument("-o", "--output", type=Path, help="the JSON file of results; what it holds is not done again")
    parser.add_argument("--brief", type=Path, help="a JSON file with a short row for every problem that is done")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="problems whose name contains one of these, anew")
    parser.add_argument("--processes", type=int, default=2, help="how many problems at once; each takes up to 8 GiB")
    parser.add_argument("--seconds", type=float, default=600.0, help="for one problem, all in all")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # The reference's process imports the handler above from here.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    if options.one:
        survey(options.one)
        return
    if options.folder is None or not options.folder.is_dir():
        raise SystemExit("give a folder of problem files, such as a checkout of KernelBench")
    os.nice(5)
    rows: dict[str, Row] = {}
    if options.output and options.output.exists():
        rows = {row["problem"]: row for row in json.loads(options.output.read_text())["rows"]}
    run(options.folder.resolve(), rows, options)
    summarise(list(rows.values()))
    if options.brief:
        write_result(options.brief, {"rows": [brief(row) for row in rows.values()]})


if __name__ == "__main__":
    main()
