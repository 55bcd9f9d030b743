"""Clusters, built by NVRTC: every form is run, each fault is found at its line, and the right twin has none."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.ptx.cuda_kernels import QUICK, Fresh, In, Ran, clean, ptx_of, run

import tilewright
from tilewright.ptx.program import Program, load_program
from tilewright.ptx.syntax import PtxError
from tilewright.records import FindingKind as Kind

SOURCE = (Path(__file__).parent / "cluster_kernels.cu").read_text()
SEEDS = (None, 1, 2)
CLUSTER = (2, 1, 1)
INPUT = np.arange(6 * 64, dtype=np.int32)
FAULTS = {
    "ring": {Kind.PEER_ABSENT},
    "gather": {Kind.RACE_SHARED, Kind.PEER_ABSENT},
    "last": {Kind.PEER_ABSENT},
    "outside": {Kind.OUT_OF_BOUNDS_SHARED},
    "narrow": {Kind.OUT_OF_BOUNDS_SHARED},
    "fenced": {Kind.RACE_SHARED},
    "flag": {Kind.RACE_SHARED},
    "split": {Kind.RACE_SHARED},
    "twice": {Kind.BARRIER_DIVERGENCE},
    "unasked": {Kind.BARRIER_DIVERGENCE},
    "stuck": {Kind.DEADLOCK},
}


@functools.cache
def program(broken: bool) -> Program:
    return load_program(ptx_of(f"#define BROKEN {int(broken)}\n#line 1\n{SOURCE}", "sm_90a"))


def launch(kernel: str, broken: bool, seed: int | None, blocks: tuple[int, ...] | None = None) -> Ran:
    return run(
        program(broken),
        {"in": In(INPUT), "out": Fresh(INPUT)},
        kernel=kernel,
        grid=(6,),
        block=(64,),
        cluster=CLUSTER,
        options=replace(QUICK, seed=seed, blocks=blocks),
    )


def paired() -> npt.NDArray[np.int32]:
    return INPUT.reshape(3, 2, 64)


def expected(kernel: str) -> npt.NDArray[np.int32]:
    swapped = paired()[:, ::-1]
    if kernel in ("outside", "twice", "unasked", "stuck"):
        return INPUT
    if kernel == "gather":
        return np.repeat(paired().sum(1, keepdims=True), 2, 1).ravel()
    if kernel == "last":
        return swapped[:, :, ::-1].ravel()
    return swapped.ravel()


def lines_of(kernel: str) -> set[int]:
    marked = [number for number, line in enumerate(SOURCE.splitlines(), 1) if f"// BUG {kernel}" in line]
    assert marked
    return set(marked)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", FAULTS)
def test_a_right_kernel_is_right_and_silent(kernel: str, seed: int | None) -> None:
    ran = launch(kernel, False, seed)
    assert not ran.result.findings, ran.result.findings
    count = 6 if kernel == "flag" else INPUT.size
    wanted = INPUT[:6].reshape(3, 2)[:, ::-1].ravel() if kernel == "flag" else expected(kernel)
    assert np.array_equal(ran["out"][:count], wanted)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kernel", FAULTS)
def test_a_fault_is_found_at_its_line(kernel: str, seed: int | None) -> None:
    findings = launch(kernel, True, seed).result.findings
    found = [
        one
        for one in findings
        if one.kind in FAULTS[kernel] and lines_of(kernel) & {place.line for place in one.places}
    ]
    assert found, findings
    also = {Kind.UNINITIALISED_SHARED} if kernel == "gather" else set()
    assert {one.kind for one in findings} <= FAULTS[kernel] | also, findings


def test_findings_name_the_other_block() -> None:
    finding = launch("last", True, None).only(Kind.PEER_ABSENT)
    assert "of block (1, 0, 0), rank 1 of the cluster" in finding.where
    assert finding.thread is not None
    assert finding.thread.block == (0, 0, 0)
    assert "before its block ends" in finding.detail
    finding = launch("ring", True, None).only(Kind.PEER_ABSENT)
    assert "after its block began" in finding.detail
    finding = launch("outside", True, None).only(Kind.OUT_OF_BOUNDS_SHARED)
    assert finding.where == "shared memory of a block of rank 2, in a cluster of 2"
    finding = launch("stuck", True, None).only(Kind.DEADLOCK)
    assert "block (1, 0, 0) warp 0 (all lanes) waits at a barrier 1" in finding.detail
    assert "block (0, 0, 0) warps 0, 1 (all lanes) waits at the cluster's barrier" in finding.detail
    assert "where 96 of 128 threads have come" in finding.detail


def test_the_registers_of_a_cluster() -> None:
    grid, cluster = (6, 4, 2), (3, 2, 1)
    out = np.zeros(48 * 15, dtype=np.uint32)
    ran = clean(program(False), {"out": Fresh(out)}, kernel="specials", grid=grid, cluster=cluster)
    wanted = []
    for block in range(48):
        at = np.array((block % 6, block // 6 % 4, block // 24))
        inside = at % cluster
        rank = inside[0] + 3 * inside[1]
        wanted.append((*inside, *cluster, *(at // cluster), 2, 2, 2, rank, 6, 1))
    assert np.array_equal(ran["out"].reshape(48, 15), wanted)
    ran = clean(program(False), {"out": Fresh(out[:15])}, kernel="specials")
    assert ran["out"].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_way_to_the_memory_of_another_block(seed: int | None) -> None:
    blocks, size = 8, 4
    out = np.zeros(blocks * 12, dtype=np.uint32)
    options = replace(QUICK, seed=seed, workers=2)
    arguments = {"out": Fresh(out)}
    ran = clean(program(False), arguments, kernel="forms", grid=(blocks,), cluster=(size, 1, 1), options=options)
    for block, got in enumerate(ran["out"].reshape(blocks, 12)):
        rank = block % size
        there = (rank + 1) % size
        base = 100 * there
        loaded = [base + 1, base + 2, base + 3, there, there, rank, 0b110, base + 4, base + 5, base + 6]
        assert got.tolist() == [*loaded, 100 * rank + 4 * 32 * size, rank + 32 * size]


def test_a_sample_of_blocks_is_one_of_whole_clusters() -> None:
    ran = launch("gather", False, None, blocks=(0, 5))
    assert not ran.result.findings
    assert ran.result.counts is not None
    assert ran.result.counts.blocks == 4
    assert np.array_equal(ran["out"].reshape(3, 128)[[0, 2]], expected("gather").reshape(3, 128)[[0, 2]])


def test_a_cluster_that_no_launch_can_have_is_refused() -> None:
    for grid, cluster in (((6,), (4, 1, 1)), ((32,), (32, 1, 1))):
        with pytest.raises(PtxError, match="cluster"):
            run(program(False), {"in": In(INPUT), "out": Fresh(INPUT)}, kernel="gather", grid=grid, cluster=cluster)


# -- on a GPU: the same file, on tensors there and on tensors here --

ON_GPU = {
    "forms": ("forms<<<8, 32>>>(y) cluster(4)", 96),
    "specials": ("specials<<<dim3(6, 4, 2), 32>>>(y) cluster(3, 2)", 720),
    **{name: (f"{name}<<<6, 64>>>(x, y) cluster(2)", 6 if name == "flag" else INPUT.size) for name in FAULTS},
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kernel", ON_GPU)
def test_a_gpu_does_the_same(kernel: str, tmp_path: Path) -> None:
    launched, count = ON_GPU[kernel]
    clauses = ("op      f(x) -> y", "need    device.cc == 90", f"out     y: i32[{count}]", f"launch  {launched}")
    text = "".join(f"//! {clause}\n" for clause in clauses) + f"#define BROKEN 0\n{SOURCE}"
    path = tmp_path / "f.cu"
    path.write_text(text)
    function, x = tilewright.load(path), torch.from_numpy(INPUT)
    assert torch.equal(function(x.cuda()).cpu(), function(x))
