"""Every `tune` combination of the examples at the benchmark's sizes, ranked by time. Needs a GPU.

    python benchmarks/sweep_examples.py [--only NAME ...] [--samples 9] [--limit 100] [--show 6] [--out FILE]

Sizes and the way of timing are those of bench_examples: a cold L2, combinations in random order round after round,
medians. The file that is swept is the one a call of that size would use. Every combination's result is checked; a wrong
or unbuildable one is shown and makes the exit status 1. The mark > is the default: the first combination in the file.
Nothing is recorded beside the file: this is for choosing the order in which it lists its choices.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bench_examples import COPIES, Call, Size, floor, sizes_of, times_us
from examples.agreement import disagreement
from examples.all_cases import CASES
from examples.cases import Arguments, Case, as_tuple
from recording import write_result
from tilewright.devices.cuda import gpu_profile
from tilewright.kernel_file import KernelFile, TunedChoices, combinations, evaluate, parse
from tilewright.records import BuildFailure, BuildRequest, GpuProfile
from tilewright.runtime import Operation
from tilewright.runtime.specs import spec_of
from tilewright.toolchain import build_many

Choice = Mapping[str, int | bool]


@dataclass(frozen=True)
class Sweep:
    """One size of one case: the file a call would use, and the combinations to try there, the default first."""

    case: Case
    size: Size
    file: KernelFile
    arguments: dict[str, Any]  # as the plan sees them: tensors by their shapes
    choices: tuple[Choice, ...]

    def requests(self, gpu: GpuProfile) -> list[BuildRequest]:
        requests = (evaluate(self.file, self.arguments, gpu, choice).build_request() for choice in self.choices)
        return [request for request in requests if request is not None]

    def operation(self, choice: Choice, gpu: GpuProfile) -> Operation:
        tuned = TunedChoices().with_choice(self.file, gpu.name, self.arguments, choice.items())
        return Operation([self.file], tuned, strict=True)


@dataclass(frozen=True)
class Timing:
    """One combination: microseconds, or what is wrong with it."""

    choice: dict[str, int | bool]
    is_default: bool
    median_us: float | None
    least_us: float | None
    wrong: str | None


def sweep_of(case: Case, size: Size, gpu: GpuProfile, limit: int) -> Sweep | None:
    """None where no file takes the call, or its file has nothing to choose."""
    values = size.make(torch.device("meta"))
    for path in case.paths():
        file = parse(path.read_text(), path.name, allow_library=case.library)
        names = [parameter.name for parameter in file.plan.op.parameters]
        specs = [spec_of(value) if isinstance(value, torch.Tensor) else value for value in values]
        arguments = dict(zip(names, specs, strict=False))
        choices = tuple(islice(combinations(file, arguments, gpu), limit))
        if choices:
            return Sweep(case, size, file, arguments, choices) if len(choices) > 1 else None
    return None


def measure(sweep: Sweep, gpu: GpuProfile, unbuilt: Mapping[BuildRequest, str], samples: int) -> list[Timing]:
    """Every combination of one sweep, quickest first; those without a time last."""
    original = sweep.size.make(torch.device("cuda"))
    changes = any(parameter.in_place for parameter in sweep.file.plan.op.parameters)
    candidates: dict[str, Call] = {}
    wrong: dict[str, str] = {}
    for choice, request in zip(sweep.choices, sweep.requests(gpu), strict=True):
        name = describe(choice)
        if request in unbuilt:
            wrong[name] = unbuilt[request]
            continue
        candidates[name] = operation = sweep.operation(choice, gpu)
        problem = _problem(sweep, operation, original)
        if problem is not None:
            wrong[name] = problem
    copies = [_copy(original) for _ in range(COPIES)]
    found = times_us(candidates, copies, changes, samples)
    timings = [
        Timing(
            dict(choice),
            number == 0,
            statistics.median(found[name]) if name in found else None,
            min(found[name]) if name in found else None,
            wrong.get(name),
        )
        for number, choice in enumerate(sweep.choices)
        for name in [describe(choice)]
    ]
    return sorted(timings, key=lambda timing: float("inf") if timing.median_us is None else timing.median_us)


def _problem(sweep: Sweep, operation: Operation, original: Arguments) -> str | None:
    given = _copy(original)
    answered = operation(*given)
    results = () if answered is None else as_tuple(answered)
    parameters = sweep.file.plan.op.parameters
    results += tuple(a for parameter, a in zip(parameters, given, strict=False) if parameter.in_place)
    torch.cuda.synchronize()
    return disagreement(sweep.case, original, results)


def _copy(arguments: Arguments) -> Arguments:
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)


def describe(choice: Choice) -> str:
    return ", ".join(f"{name} = {value}" for name, value in choice.items())


def ranking(timings: list[Timing], floor_us: float, show: int) -> Iterator[str]:
    """The quickest `show`, the default wherever it stands, and all that went wrong."""
    for rank, timing in enumerate(timings, 1):
        if rank > show and not timing.is_default and timing.wrong is None:
            continue
        mark = ">" if timing.is_default else " "
        time_us = f"{timing.median_us:>9.1f} us" if timing.median_us is not None else f"{'-':>12}"
        of_floor = f"{floor_us / timing.median_us:>6.0%}" if timing.median_us is not None and floor_us else f"{'-':>6}"
        yield f"  {mark}{rank:>3}{time_us}{of_floor}   {describe(timing.choice)}"
        if timing.wrong is not None:
            yield f"        WRONG: {timing.wrong}"


def _moved(sweep: Sweep, gpu: GpuProfile) -> int:
    """Bytes that must move at least: each tensor argument in, each result out, and what changes in place both ways."""
    meta = sweep.size.make(torch.device("meta"))
    answered = sweep.operation(sweep.choices[0], gpu)(*meta)
    results = () if answered is None else as_tuple(answered)
    parameters = sweep.file.plan.op.parameters
    changed = [a for parameter, a in zip(parameters, meta, strict=False) if parameter.in_place]
    tensors = [a for a in meta if isinstance(a, torch.Tensor)]
    return sum(t.nbytes for t in (*tensors, *changed, *results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose name contains one of these")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--limit", type=int, default=100, help="most combinations of one file and size")
    parser.add_argument("--show", type=int, default=6, help="how many of each ranking to print")
    parser.add_argument("--out", type=Path, help="also write every timing to this JSON file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and torch sees none")
    begun = time.perf_counter()
    gpu = gpu_profile(0)
    wanted = [case for case in CASES if options.only is None or any(part in case.name for part in options.only)]
    pairs = sizes_of(case for case in wanted if case.runs_on(gpu.cc))
    found = [sweep_of(case, size, gpu, options.limit) for case, size in pairs]
    sweeps = [sweep for sweep in found if sweep is not None]
    if not sweeps:
        raise SystemExit(f"nothing to sweep for compute capability {gpu.cc} and {options.only}")

    requests = list({request: None for sweep in sweeps for request in sweep.requests(gpu)})
    requests.sort(key=lambda request: "cute" not in request.source)  # the slow ones first
    built = zip(requests, build_many(requests), strict=True)
    unbuilt = {request: str(result) for request, result in built if isinstance(result, BuildFailure)}
    print(f"{gpu.name}: {len(requests)} builds in {time.perf_counter() - begun:.1f} s", flush=True)

    record: list[dict[str, object]] = []
    for sweep in sweeps:
        timings = measure(sweep, gpu, unbuilt, options.samples)
        floor_us, _ = floor(gpu, _moved(sweep, gpu), sweep.size.flop, sweep.size.make(torch.device("meta"))[0].dtype)
        print(f"{sweep.case.name} {sweep.size.label} ({sweep.file.name}), floor {floor_us:.1f} us")
        print("\n".join(ranking(timings, floor_us, options.show)), flush=True)
        rows = [asdict(timing) for timing in timings]
        record.append({"case": sweep.case.name, "size": sweep.size.label, "floor_us": floor_us, "timings": rows})
        torch.cuda.empty_cache()
    print(f"medians of {options.samples}; {time.perf_counter() - begun:.0f} s in all", file=sys.stderr)
    if options.out is not None:
        write_result(options.out, {"gpu": gpu.name, "sweeps": record})
    if any(row["wrong"] is not None for sweep in record for row in sweep["timings"]):  # type: ignore[attr-defined]
        raise SystemExit(1)


if __name__ == "__main__":
    main()
