"""How many wrong kernels of the corpus the published rules of other harnesses accept.

    python -m benchmarks.harness_table [--jobs 8] [--only GLOB...] [--ours ROWS.jsonl...] [-o result.json]

Needs a GPU. Every file runs in a process of its own, by this package's runtime, at the task's own sizes and with the
task's own values, and is compared with the reference in eager PyTorch as each harness does: its number of trials, its
seeds, its tolerance, its shapes. Where a harness draws its inputs from 0 to 1 (KernelBench's problems do), the values
here are harder to pass. What these harnesses look for beside the values (the text, the clock) is not modelled, and
files that the kernel file's own rules refuse are left out: nothing can run them. `--ours` adds what the referee said,
from the rows that `tests.verify.corpus.run` writes.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from benchmarks.recording import write_result
from tests.tasks.in_process import ask_here
from tests.verify.corpus.entries import HONEST, WRONG, Entry, load, task_of

MOST_SECONDS = 90.0
PROCESSES = multiprocessing.get_context("forkserver")
_REFUSED = ("KernelFileError", "LoadError", "BuildFailed")  # by the kernel file's own rules
TRIALS = 10  # as many as the rule with the most asks for


@dataclass(frozen=True)
class Rule:
    """What a harness compares. `tolerance` is both absolute and relative, by the size of an element in bytes."""

    name: str
    source: str
    trials: int
    tolerance: Callable[[int], float]
    first_output_only: bool = False
    second_call: bool = False
    second_shape: bool = False


RULES = (
    Rule("KernelBench", "ScalingIntelligence/KernelBench, eval.py: 5 trials from seed 42, 1e-4 (16 bits: 1e-2)", 5,
         lambda size: 1e-4 if size >= 4 else 1e-2),
    Rule("CuTeGen", "taratt/cutegen: 10 trials from seed 42, 1e-2", 10, lambda size: 1e-2),
    Rule("CudaForge", "OptimAI-Lab/CudaForge, main.py: 1 trial, 1e-3, the first tensor only", 1, lambda size: 1e-3,
         first_output_only=True),
    Rule("KernelAgent", "meta-pytorch/KernelAgent: one test, 1e-3 (16 bits: 1e-2), as its test writer is told", 1,
         lambda size: 1e-3 if size >= 4 else 1e-2),
    Rule("robust-kbench", "SakanaAI/robust-kbench: 5 trials from seed 42, 1e-5, called twice, two input settings", 5,
         lambda size: 1e-5, second_call=True, second_shape=True),
)  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """One output of one call: the tolerance that would just accept it, infinite where no number would."""

    trial: int
    shape: int  # 0: the task's own; 1: another
    call: int  # 0: the first on these inputs; 1: the second
    output: int
    itemsize: int
    needed: float


def accepts(rule: Rule, compared: list[Compared]) -> bool:
    """Whether the harness would call the kernel right."""
    looked_at = [
        one
        for one in compared
        if one.trial < rule.trials
        and (rule.second_shape or one.shape == 0)
        and (rule.second_call or one.call == 0)
        and (not rule.first_output_only or one.output == 0)
    ]
    return bool(looked_at) and all(one.needed <= rule.tolerance(one.itemsize) for one in looked_at)


def needed_tolerance(got: Any, expected: Any) -> float:
    """The least t for which `torch.allclose(expected, got, atol=t, rtol=t)`."""
    import torch

    most = 0.0
    for mine, right in zip(got.reshape(-1).split(1 << 26), expected.reshape(-1).split(1 << 26), strict=True):
        mine, right = mine.double(), right.double()
        same = mine == right
        off = torch.where(same, torch.zeros_like(right), (mine - right).abs() / (1.0 + right.abs()))
        worst = float(off.max()) if off.numel() else 0.0
        if not worst < float("inf"):  # NaN: allclose is false, as it is where both are NaN
            return float("inf")
        most = max(most, worst)
    return most


# -- one file, in a process of its own --


def compare_file(entry: Entry, device: str = "cuda", settings: Sequence[Mapping[str, int]] = ()) -> list[Compared]:
    """Every output of every call, at the task's own sizes and a second setting unless others are named."""
    import torch

    import tilewright

    with pytest.MonkeyPatch.context() as patch:
        ask_here(patch)
        task = task_of(entry.task)
    operation = tilewright.load(entry.path, strict=True, allow_library=False)
    namespace: dict[str, Any] = {}
    exec(compile(task.reference, "reference.py", "exec"), namespace)
    reference = namespace[task.function]
    torch.manual_seed(42)
    seeds = [int(torch.randint(0, 2**31 - 1, (1,)).item()) for _ in range(TRIALS)]
    made: list[Compared] = []
    for shape, sizes in enumerate(settings or tuple(_settings(task))):
        for trial, seed in enumerate(seeds if shape == 0 else seeds[:5]):
            arguments = _drawn(task, sizes, seed, device)
            for call in range(2 if trial < 5 else 1):
                got = _outputs(task, operation, arguments)
                expected = _outputs(task, reference, arguments)
                for output, (mine, right) in enumerate(zip(got, expected, strict=True)):
                    needed = needed_tolerance(mine, right)
                    made.append(Compared(trial, shape, call, output, right.element_size(), needed))
                del got, expected
            if any(one.needed > 1e-2 for one in made):
                return made  # no rule accepts it any more
    return made


def _settings(task: Any) -> Iterator[dict[str, int]]:
    """The task's own sizes, and those of a smaller batch, as a second input setting has it."""
    yield task.sizes
    outer = next((one for one in task.free if one.varies and one.size > 1), None)
    if outer is not None:
        least = -(-max(outer.size // 4, outer.at_least) // outer.multiple_of) * outer.multiple_of
        yield task.complete({**task.sizes, outer.name: least})


def _drawn(task: Any, sizes: Mapping[str, int], seed: int, device: str) -> dict[str, Any]:
    """The inputs by the task's own values, on the device."""
    import torch

    from tilewright.records import NumberInput
    from tilewright.verify.distributions import seeded

    torch.manual_seed(seed)
    specs, drawn = task.specs(sizes), {}
    for one in task.inputs:
        if isinstance(one, NumberInput):
            drawn[one.name] = one.value
            continue
        if one.name not in specs:
            drawn[one.name] = None
            continue
        spec, content = specs[one.name], seeded(one, sizes, seed)
        dtype = getattr(torch, one.dtype.torch_name)
        if hasattr(content, "deviation"):
            values = torch.randn(spec.shape, device=device) * content.deviation + content.mean
        elif one.dtype.is_float:
            values = torch.rand(spec.shape, device=device) * (content.high - content.low) + content.low
        else:
            values = torch.randint(int(content.low), int(content.high), spec.shape, device=device)
        stored = torch.empty_strided(spec.shape, spec.stride, device=device, dtype=dtype)
        drawn[one.name] = stored.copy_(values)
        del values
    return drawn


def _outputs(task: Any, function: Callable[..., Any], arguments: Mapping[str, Any]) -> list[Any]:
    """What a call returns and what it changed in place, on copies of the latter."""
    in_place = {one.name for one in task.tensors if one.in_place}
    given = {name: value.clone() if name in in_place else value for name, value in arguments.items()}
    made = function(*given.values())
    returned = [] if made is None or not task.outputs else list(made) if isinstance(made, (tuple, list)) else [made]
    return [*returned[: len(task.outputs)], *(given[name] for name in given if name in in_place)]


# -- all of them --


def row_of(entry: Entry) -> dict[str, Any]:
    """What every rule says of a file; `not_run` where nothing can run it."""
    began = time.monotonic()
    here, there = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_answer, args=(entry, there))
    process.start()
    there.close()
    try:
        answer = here.recv() if here.poll(MOST_SECONDS) else "it ran past its time"
    except EOFError:
        answer = "its process died"
    process.kill()
    process.join()
    row = {"name": entry.name, "task": entry.task, "kind": entry.kind, "honest": entry.honest}
    row["seconds"] = round(time.monotonic() - began, 1)
    if isinstance(answer, str) and answer.startswith(_REFUSED):
        return {**row, "not_run": answer[:300]}
    # A call that fails or never ends is a kernel that every harness rejects.
    failed, compared = (answer[:300], []) if isinstance(answer, str) else ("", answer)
    return {**row, "failed": failed, "accepted_by": [one.name for one in RULES if accepts(one, compared)]}


def _answer(entry: Entry, there: Any) -> None:
    """In the file's own process: what was compared, or why nothing could be."""
    try:
        there.send(compare_file(entry))
    except Exception as error:
        there.send(f"{type(error).__name__}: {error}")


def table(rows: list[dict[str, Any]], ours: Mapping[str, tuple[int, int, int, int]]) -> list[str]:
    """Lines of markdown."""
    wrong = [row for row in rows if not row["honest"] and "accepted_by" in row]
    honest = [row for row in rows if row["honest"] and "accepted_by" in row]
    lines = ["| judged by the rules of | wrong kernels accepted | honest kernels rejected |", "|---|---|---|"]
    for rule in RULES:
        passed = sum(rule.name in row["accepted_by"] for row in wrong)
        refused = sum(rule.name not in row["accepted_by"] for row in honest)
        lines.append(f"| {rule.name} | {passed} of {len(wrong)} | {refused} of {len(honest)} |")
    for name, (passed, judged, refused, right) in ours.items():
        lines.append(f"| {name} | {passed} of {judged} | {refused} of {right} |")
    return lines


def ours_from(paths: list[Path]) -> dict[str, tuple[int, int, int, int]]:
    """Of rows of the corpus, by device: wrong ones accepted, of how many, honest ones rejected, of how many."""
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines() if line.startswith("{")]
    names = {"emulator": "Tilewright without a GPU", "gpu": "Tilewright on the GPU"}
    made = {}
    for device in dict.fromkeys(row["device"] for row in rows):
        wrong = [row for row in rows if row["device"] == device and row["expected"]]
        honest = [row for row in rows if row["device"] == device and not row["expected"]]
        accepted = sum(row["verdict"] == "accepted" for row in wrong)
        rejected = sum(row["verdict"] != "accepted" for row in honest)
        made[names[device]] = (accepted, len(wrong), rejected, len(honest))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--only", nargs="+", default=["*"])
    parser.add_argument("--ours", type=Path, nargs="*", default=[])
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    entries = [
        one
        for one in load(WRONG, HONEST)
        if any(fnmatch.fnmatch(one.name, pattern) for pattern in options.only) and not one.choice
    ]
    PROCESSES.set_forkserver_preload(["torch", "tilewright.runtime", "tests.tasks.in_process"])
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = []
        for row in pool.map(row_of, entries):
            rows.append(row)
            print(json.dumps(row), flush=True)
    lines = table(rows, ours_from(options.ours))
    print("\n".join(lines))
    if options.output:
        import torch

        rules = [{"name": one.name, "rule": one.source} for one in RULES]
        write_result(
            options.output, {"gpu": torch.cuda.get_device_name(), "rules": rules, "table": lines, "rows": rows}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
