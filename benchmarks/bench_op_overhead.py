"""What a call costs beside torch's own operators: eagerly, through the dispatcher, compiled, in a graph. Needs a GPU.

    python benchmarks/bench_op_overhead.py [--eager] [--out op-overhead.json]

Host time is that of one call in a loop that is not waited for; end to end the loop is waited for, so a kernel on a
tensor of 64x64 shows what the host costs, and one on 4096x4096 that it costs nothing. `custom_op` is the same CUDA work
(torch's silu) behind `torch.library.custom_op`, which is what an operator written in Python costs at least.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tilewright
from bench_launch import SILU, versions, write
from recording import write_result
from tilewright.devices.cuda import gpu_profile

SECONDS = 0.15  # of each loop, about
REPEATS = 5
GOAL_RATIO = 1.1  # of torch's silu, eagerly
SIZES = ((64, 64), (4096, 4096))


def host_and_total_us(call: Callable[[], object]) -> tuple[float, float]:
    """Host time of one call, and the time of one call where the whole loop is waited for: the least of each."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    calls = min(5000, max(20, int(SECONDS * 20 / (time.perf_counter() - start))))
    host = total = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        launched = time.perf_counter()
        torch.cuda.synchronize()
        host = min(host, (launched - start) / calls)
        total = min(total, (time.perf_counter() - start) / calls)
    return 1e6 * host, 1e6 * total


@torch.library.custom_op("bench_op_overhead::silu", mutates_args=())
def custom_silu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


@custom_silu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def chain(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Ten calls with a little of torch's own between them, as in a model."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = function(x) + 0.5
        return x

    return run


def captured(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    for _ in range(3):
        function(x)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        function(x)
    return graph.replay


def measure(folder: Path, eager_only: bool) -> dict[str, dict[str, Any]]:
    silu = tilewright.load(write(folder, "silu.cu", SILU))
    kinds: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "torch": torch.nn.functional.silu,
        "custom_op": custom_silu,
        "tilewright": silu,
        "tilewright through torch.ops": silu.torch_op,
    }
    found: dict[str, dict[str, Any]] = {}
    for rows, columns in SIZES:
        x = torch.randn(rows, columns, device="cuda")
        for name, function in kinds.items():
            torch.testing.assert_close(function(x), torch.nn.functional.silu(x), rtol=1e-4, atol=1e-5)
            row = found[f"{name}, {rows}x{columns}"] = {}
            row["eager"] = host_and_total_us(partial(function, x))
            if eager_only:
                continue
            with torch.no_grad():
                row["eager, ten in a chain"] = host_and_total_us(partial(chain(function), x))
                row["CUDA graph, ten"] = host_and_total_us(captured(chain(function), x))
            for mode in ("default", "reduce-overhead"):
                torch._dynamo.reset()
                compiled = torch.compile(chain(function), fullgraph=True, mode=mode)
                row[f"compiled, {mode}, ten"] = host_and_total_us(partial(compiled, x))
            print(f"{name}, {rows}x{columns}: {row}", flush=True)
    return found


def report(found: dict[str, dict[str, Any]]) -> None:
    for name, row in found.items():
        base = found[f"torch, {name.rpartition(', ')[2]}"]
        print(name)
        for kind, (host, total) in row.items():
            ratio = host / base[kind][0]
            print(f"  {kind:28} host {host:9.2f} us ({ratio:5.2f}x torch)   end to end {total:9.2f} us")
    ours, torchs = found["tilewright, 64x64"]["eager"][0], found["torch, 64x64"]["eager"][0]
    print(f"eager host time: {ours / torchs:.2f}x of torch's silu; goal {GOAL_RATIO}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    parser.add_argument("--eager", action="store_true", help="eager calls alone: a few seconds")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device, and torch sees none")
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name), options.eager)
    report(found)
    if options.out is not None:
        record = {"gpu": gpu_profile(0).name, "versions": versions(), "us": found}
        write_result(options.out, json.loads(json.dumps(record)))


if __name__ == "__main__":
    main()
