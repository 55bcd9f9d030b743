"""What emulation costs: time until a kernel can run, thread instructions per second and core, a tensor-core tile.

    python benchmarks/bench_emulator.py [--repeat 15] [--out FILE]

Targets: plain kernels are ready (parsed and lowered) within 50 ms of their PTX; LayerNorm of 64 x 1024 runs at 0.8 G
thread instructions per second and core without checks and at 0.3 G with all of them; a 128 x 128 x 64 tile by mma.sync
with all checks takes 2 ms. One worker, the best of several runs. Ready times are CPU time, rates are of the interpreter
alone; a launch is timed from the request to its result as well, and a job from `EmulatedDevice.execute` to its return.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recording import write_result
from tilewright import __version__
from tilewright.devices.child_device import EmulatedDevice
from tilewright.devices.emulation.plan_memory import PlanMemory, add_buffers
from tilewright.devices.emulation.plan_run import launch_request
from tilewright.kernel_file import parse
from tilewright.ptx.global_memory import Bytes
from tilewright.ptx.launching import LaunchOptions
from tilewright.ptx.program import load_program
from tilewright.records import (
    ALL_CHECKS,
    PROFILES,
    BoundPlan,
    BufferRole,
    Check,
    Completed,
    Data,
    Emulation,
    InputTensor,
    Job,
    PackedLaunch,
    TensorSpec,
)
from tilewright.toolchain import BuiltPlan, build_plan, find_toolkit

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
GPU = PROFILES["A100"]
TARGET_READY_MS = 50.0
TARGET_PLAIN = 0.8e9
TARGET_CHECKED = 0.3e9
TARGET_TILE_MS = 2.0
ROW_F32, VECTOR_F32 = "64x1024:f32", "1024:f32"
# Kernel file, its arguments, and whether the target for plain kernels is meant for it.
READY: tuple[tuple[str, dict[str, object], bool], ...] = (
    ("silu", {"x": "1048576:f32"}, True),
    ("layernorm", {"x": ROW_F32, "weight": VECTOR_F32, "bias": VECTOR_F32, "eps": 1e-5}, True),
    ("softmax_mask", {"x": ROW_F32, "mask": None}, True),
    ("transpose", {"x": ROW_F32}, True),
    ("histogram", {"x": "100000:u8"}, True),
    ("cumsum", {"x": ROW_F32}, True),
    ("matmul_mma", {"a": "128x64:f16", "b": "64x128:f16"}, False),
)


@dataclass(frozen=True)
class Call:
    """A kernel file at fixed shapes: its PTX and its one or more launches."""

    name: str
    ptx: str
    plan: BoundPlan
    tensors: tuple[tuple[str, TensorSpec], ...]

    def contents(self) -> dict[str, Bytes]:
        random = np.random.default_rng(0)
        return {name: _content(spec, random) for name, spec in self.tensors}

    def memory(self) -> PlanMemory:
        memory = PlanMemory()
        contents = self.contents()
        for name, spec in self.tensors:
            memory.add_input(name, spec, contents[name], writable=False)
        add_buffers(memory, self.plan.buffers, sampled=False)
        return memory

    def job(self, emulation: Emulation) -> Job:
        contents = self.contents()
        inputs = tuple(InputTensor(name, spec, Data(contents[name].tobytes())) for name, spec in self.tensors)
        returns = tuple(buffer.name for buffer in self.plan.buffers if buffer.role is BufferRole.OUT)
        return Job(self.name, GPU.arch, b"", self.plan, inputs, returns, ptx=self.ptx, emulation=emulation)

    @property
    def launches(self) -> list[PackedLaunch]:
        return [step for step in self.plan.steps if isinstance(step, PackedLaunch)]


def _content(spec: TensorSpec, random: np.random.Generator) -> Bytes:
    if spec.dtype.value == "f32":
        return random.standard_normal(spec.numel).astype(np.float32).view(np.uint8)
    if spec.dtype.value == "f16":
        return random.standard_normal(spec.numel).astype(np.float16).view(np.uint8)
    return random.integers(0, 256, spec.storage_bytes, dtype=np.uint8)


def prepare(name: str, arguments: dict[str, object]) -> Call:
    file = parse((EXAMPLES / f"{name}.cu").read_text(), f"{name}.cu")
    described = {key: TensorSpec.parse(value) if isinstance(value, str) else value for key, value in arguments.items()}
    made = build_plan(file, described, GPU, isolated=False)
    if not isinstance(made, BuiltPlan) or made.build is None:
        raise SystemExit(f"{name} does not build: {made}")
    return Call(name, made.build.ptx, made.plan, made.evaluation.tensors)


# -- measurements --


def ready_ms(call: Call, repeat: int) -> float:
    """From PTX text to kernels that can be launched."""
    samples = []
    for _ in range(repeat):
        started = time.process_time()
        program = load_program(call.ptx)
        for launch in call.launches:
            program.prepare(launch.symbol)
        samples.append((time.process_time() - started) * 1e3)
    return min(samples)


@dataclass(frozen=True)
class Cost:
    """One call's launches: seconds in the interpreter, CPU seconds from request to result, thread instructions."""

    interpreter_s: float
    launch_s: float
    instructions: int


def cost(call: Call, checks: tuple[Check, ...], repeat: int) -> Cost:
    program = load_program(call.ptx)
    memory = call.memory()
    options = LaunchOptions(checks=checks, workers=1)
    requests = [launch_request(launch, (), memory, options) for launch in call.launches]
    best = Cost(float("inf"), float("inf"), 0)
    for _ in range(repeat):
        started = time.process_time()
        results = [program.launch(memory.memory, request) for request in requests]
        launch_s = time.process_time() - started
        for result in results:
            if result.findings:
                raise SystemExit(f"{call.name} is not clean: {result.findings[0]}")
        best = Cost(
            min(best.interpreter_s, sum(result.seconds for result in results)),
            min(best.launch_s, launch_s),
            sum(result.thread_instructions for result in results),
        )
    return best


def job_ms(call: Call, emulation: Emulation, repeat: int) -> float:
    """A whole job by `EmulatedDevice`, there and back, the program being known to its child."""
    job = call.job(emulation)
    samples = []
    with EmulatedDevice(GPU) as device:
        for _ in range(repeat + 1):
            started = time.perf_counter()
            execution = device.execute(job)
            samples.append((time.perf_counter() - started) * 1e3)
            if not isinstance(execution, Completed) or execution.findings:
                raise SystemExit(f"{call.name} is not clean: {execution}")
    return min(samples[1:])


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    unit: str
    target: float | None
    most: bool  # the target is the most, not the least

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.most else self.value >= self.target


def measure(repeat: int) -> list[Row]:
    rows = []
    for name, arguments, plain in READY:
        call = prepare(name, arguments)
        rows.append(Row(f"ready, {name}", ready_ms(call, repeat), "ms", TARGET_READY_MS if plain else None, True))
    layernorm, tile = prepare(*READY[1][:2]), prepare(*READY[-1][:2])
    for checks, what, target in (((), "plain", TARGET_PLAIN), (ALL_CHECKS, "all checks", TARGET_CHECKED)):
        found = cost(layernorm, checks, repeat)
        rate = found.instructions / found.interpreter_s
        rows.append(Row(f"layernorm 64x1024, {what}", rate / 1e9, "G/s", target / 1e9, False))
        rows.append(Row(f"layernorm 64x1024, {what}, whole launch", found.launch_s * 1e3, "ms", None, True))
    for checks, what in (((), "plain"), (ALL_CHECKS, "all checks")):
        found = cost(tile, checks, repeat)
        limit = TARGET_TILE_MS if checks is ALL_CHECKS else None
        rows.append(Row(f"mma.sync 128x128x64, {what}", found.interpreter_s * 1e3, "ms", limit, True))
        rows.append(Row(f"mma.sync 128x128x64, {what}, whole launch", found.launch_s * 1e3, "ms", None, True))
    uncounted = tuple(check for check in ALL_CHECKS if check is not Check.COUNTERS)
    for call, name in ((layernorm, "layernorm 64x1024"), (tile, "mma.sync 128x128x64")):
        for wanted, what in ((ALL_CHECKS, "all checks"), (uncounted, "all but counts")):
            rows.append(Row(f"{name}, {what}, whole job", job_ms(call, Emulation(wanted), repeat), "ms", None, True))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=15, help="runs of each measurement (15)")
    parser.add_argument("--out", type=Path, help="write the numbers to this file as JSON")
    options = parser.parse_args()
    rows = measure(options.repeat)
    print(f"{'what':<46} {'value':>10} {'unit':<5} {'target':>9}  met")
    for row in rows:
        bound = "-" if row.target is None else f"{'<=' if row.most else '>='} {row.target:g}"
        met = {None: "", True: "yes", False: "NO"}[row.met]
        print(f"{row.what:<46} {row.value:>10.3f} {row.unit:<5} {bound:>9}  {met}")
    if options.out is not None:
        write_result(options.out, _report(rows))


def _report(rows: list[Row]) -> dict[str, object]:
    return {
        "benchmark": "emulator",
        "versions": {
            "tilewright": __version__,
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "compiler": find_toolkit().compiler,
        },
        "results": [{**vars(row), "met": row.met} for row in rows],
    }


if __name__ == "__main__":
    main()
