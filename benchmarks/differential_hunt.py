"""Random programs on the GPU and in the emulator, compared to the bit.

    python -m benchmarks.differential_hunt [--programs 2000] [--first 0] [--workers 8] [--out FILE]

Each program (`random_programs.py`) is built once; the GPU runs its machine code, the emulator its PTX, with all
checkers. A difference is a wrong answer, and so is a finding: the programs are honest. `--no-gpu` looks for findings
alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from benchmarks.random_programs import WORDS, program
from benchmarks.recording import write_result

from tilewright.devices.child_device import CudaDevice, EmulatedDevice
from tilewright.kernel_file import parse
from tilewright.records import PROFILES, Completed, Data, DType, Emulation, Execution, InputTensor, Limits, TensorSpec
from tilewright.toolchain import BuiltPlan, build_plan

H200 = PROFILES["H200"]
ELEMENTS = 509


@dataclass(frozen=True)
class Outcome:
    seed: int
    problem: str = ""  # "" where both agree and nothing was found


def outcomes(seeds: range, gpu: bool) -> Iterator[Outcome]:
    """What came of each seed; one emulator and one process at the GPU serve them all."""
    with ExitStack() as stack:
        emulator = stack.enter_context(EmulatedDevice(H200))
        device = stack.enter_context(CudaDevice()) if gpu else None
        for seed in seeds:
            yield Outcome(seed, _problem(seed, emulator, device))


def _problem(seed: int, emulator: EmulatedDevice, device: CudaDevice | None) -> str:
    file = parse(program(seed))
    spec = TensorSpec.contiguous(DType.I32, (ELEMENTS,))
    values = np.random.default_rng(seed).integers(-(2**31), 2**31, ELEMENTS).astype(np.int32)
    built = build_plan(file, {"x": spec}, H200, isolated=False)
    if not isinstance(built, BuiltPlan):
        return f"does not build: {str(built)[:300]}"
    inputs = (InputTensor("x", spec, Data(values.tobytes())),)
    here = built.job(f"{seed}", inputs, returns=("y",), limits=Limits(), emulation=Emulation(schedules=2))
    emulated = emulator.execute(here)
    if not isinstance(emulated, Completed):
        return f"emulator: {str(emulated)[:300]}"
    if emulated.findings:
        first = emulated.findings[0]
        return f"finding: {first.kind.value} at line {first.line}: {first.detail}"
    if device is None:
        return ""
    measured = device.execute(built.job(f"{seed}", inputs, returns=("y",), limits=Limits()))
    if not isinstance(measured, Completed):
        return f"GPU: {str(measured)[:300]}"
    return _difference(_words(emulated), _words(measured))


def _words(execution: Execution) -> np.ndarray:
    assert isinstance(execution, Completed)
    return np.frombuffer(execution.outputs[0].content, np.uint32).reshape(-1, WORDS)


def _difference(emulated: np.ndarray, measured: np.ndarray) -> str:
    wrong = np.argwhere(emulated != measured)
    if not len(wrong):
        return ""
    thread, word = wrong[0]
    return (
        f"{len(wrong)} words differ, the first of thread {thread}, word {word}: "
        f"emulated {emulated[thread, word]:#010x}, GPU {measured[thread, word]:#010x}"
    )


def _hunt(seeds: range, gpu: bool) -> list[Outcome]:
    return list(outcomes(seeds, gpu))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--no-gpu", action="store_true", help="look for findings alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began, last = time.monotonic(), options.first + options.programs
    shares = [range(options.first + number, last, options.workers) for number in range(options.workers)]
    with ProcessPoolExecutor(options.workers) as pool:
        done = [one for share in pool.map(_hunt, shares, [not options.no_gpu] * len(shares)) for one in share]
    at_fault = sorted((one for one in done if one.problem), key=lambda one: one.seed)
    for one in at_fault:
        print(f"{one.seed}: {one.problem}")
    took = time.monotonic() - began
    print(f"{len(done)} programs, {len(at_fault)} at fault, {took:.0f} s")
    if options.out:
        said = {"programs": len(done), "first": options.first, "gpu": not options.no_gpu, "seconds": round(took)}
        write_result(options.out, {**said, "at_fault": [asdict(one) for one in at_fault]})
    return 1 if at_fault else 0


if __name__ == "__main__":
    sys.exit(main())
