"""Races in real kernels, built by NVRTC and run by the interpreter: found at their lines, none in the right twin."""

from __future__ import annotations

import functools
import struct
from pathlib import Path

import numpy as np
import pytest

from tilewright.ptx.global_memory import GlobalMemory
from tilewright.ptx.launching import LaunchOptions, LaunchRequest, LaunchResult
from tilewright.ptx.program import Program, load_program
from tilewright.records import Build, BuildRequest, FindingKind, FindingRecord
from tilewright.toolchain import build

SOURCE = (Path(__file__).parent / "race_kernels.cu").read_text()
BLOCKS = 4
COUNT = BLOCKS * 256
SEEDS = 20

SHARED = ("tree_sum", "warp_rotate", "half_warps", "histogram", "hand_over", "pipeline", "equal_stores")
GLOBAL = ("last_block", "smooth", "look_back", "spin_lock", "edges", "narrow")
COOPERATIVE = ("smooth", "look_back", "groups")

GROUPS = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void groups(const float* in, float* out, unsigned* state, int n) {
  __shared__ float held[256];
  int t = threadIdx.x, at = blockIdx.x * 256 + t;
  out[at] = in[at];
  cg::this_grid().sync();
  held[t] = out[(at + 1) % n];
  cg::tiled_partition<8>(cg::this_thread_block()).sync();
  float neighbour = held[t / 8 * 8 + (t + 1) % 8];
  cg::this_grid().sync();
  out[at] = neighbour;
}
"""


@functools.cache
def program(broken: bool) -> Program:
    request = BuildRequest(SOURCE, (("BROKEN", int(broken)),), (*SHARED, *GLOBAL), "sm_80")
    made = build(request, isolated=False, cache=None)
    assert isinstance(made, Build), str(made)
    return load_program(made.ptx)


@functools.cache
def groups_program() -> Program:
    made = build(BuildRequest(GROUPS, (), ("groups",), "sm_80"), isolated=False, cache=None)
    assert isinstance(made, Build), str(made)
    return load_program(made.ptx)


def run(kernel: str, broken: bool, seed: int | None, workers: int = 1) -> tuple[LaunchResult, np.ndarray]:
    memory = GlobalMemory()
    source = np.arange(COUNT, dtype=np.float32)
    sizes = {"in": COUNT, "out": 4 * COUNT, "state": 1024}
    data = {"in": source.view(np.uint8), "out": np.zeros(16 * COUNT, np.uint8), "state": np.zeros(4096, np.uint8)}
    addresses = [
        memory.add(
            name, size * 4, element_bytes=4, shape=(size,), stride=(1,), writable=name != "in", initialised=True,
            data=data[name],
        )
        for name, size in sizes.items()
    ]  # fmt: skip
    request = LaunchRequest(
        kernel,
        (BLOCKS, 1, 1),
        (256, 1, 1),
        0,
        struct.pack("<QQQi", *addresses, COUNT),
        cooperative=kernel in COOPERATIVE,
        options=LaunchOptions(seed=seed, workers=workers),
    )
    chosen = groups_program() if kernel == "groups" else program(broken)
    result = chosen.launch(memory, request)
    return result, memory.bytes("out").view(np.float32).copy()


def marked_lines(kernel: str) -> set[int]:
    return {i for i, line in enumerate(SOURCE.splitlines(), 1) if line.rstrip().endswith(f"race: {kernel}")}


def told(findings: tuple[FindingRecord, ...]) -> str:
    return "\n".join(f"{f.kind.name} {f.line}/{f.other_line} {f.where} {f.detail}" for f in findings)


@pytest.mark.parametrize("kernel", [*SHARED, *GLOBAL, "groups"])
def test_the_right_kernel_is_silent_on_every_schedule(kernel: str) -> None:
    for seed in (None, *range(SEEDS)):
        result, _ = run(kernel, broken=False, seed=seed)
        assert result.completed, f"seed {seed}: {told(result.findings)}"
        assert result.findings == (), f"seed {seed}: {told(result.findings)}"


@pytest.mark.parametrize("kernel", [*SHARED, *GLOBAL])
def test_the_broken_kernel_is_found_at_its_lines(kernel: str) -> None:
    expected = {FindingKind.RACE_SHARED if kernel in SHARED else FindingKind.RACE_GLOBAL}
    if kernel == "pipeline":
        expected.add(FindingKind.ASYNC_NOT_WAITED)
    lines = marked_lines(kernel)
    assert lines
    for seed in (None, 1, 2):
        result, _ = run(kernel, broken=True, seed=seed)
        assert result.findings, f"seed {seed}: nothing found"
        for finding in result.findings:
            assert finding.kind in expected, f"seed {seed}: {told(result.findings)}"
            assert {finding.line, finding.other_line} <= lines, f"{seed}: {told(result.findings)}"
            assert finding.count >= 1


def test_a_finding_names_both_threads_and_the_element() -> None:
    result, _ = run("edges", broken=True, seed=None)
    (finding,) = result.findings
    assert finding.where in {"out[256]", "out[512]", "out[768]"}
    assert finding.other_thread is not None
    assert {finding.thread.thread, finding.other_thread.thread} == {(0, 0, 0)}
    assert finding.thread.block != finding.other_thread.block


@pytest.mark.parametrize("kernel", ["last_block", "smooth", "look_back", "histogram", "spin_lock", "groups"])
def test_blocks_on_two_threads_of_the_host_are_silent_too(kernel: str) -> None:
    for seed in range(5):
        result, _ = run(kernel, broken=False, seed=seed, workers=2)
        assert result.findings == (), f"seed {seed}: {told(result.findings)}"


def test_the_answers_are_right() -> None:
    _, out = run("last_block", broken=False, seed=3)
    assert out[0] == np.arange(COUNT).sum() * 2
    _, out = run("look_back", broken=False, seed=3)
    assert out[:BLOCKS].tolist() == np.arange(BLOCKS).cumsum().tolist()
    _, out = run("tree_sum", broken=False, seed=3)
    assert out[:BLOCKS].tolist() == np.arange(COUNT).reshape(BLOCKS, 256).sum(1).tolist()
