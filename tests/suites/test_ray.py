"""A suite on a real Ray cluster of two nodes in this machine, one of which is killed in the middle."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.devices.emulating_worker import WORKER as EMULATING
from tests.suites.test_scheduling import Heard

from tilewright.child.family import descendants
from tilewright.frontends.cli.suite import PROGRAM
from tilewright.records import Budget, Measured, Settings
from tilewright.store import Request, RunFolder
from tilewright.suites import Status, Suite, SuiteFolder, SuiteTask, carry_out
from tilewright.suites.ray_cluster import RayCluster, RayPool

pytestmark = pytest.mark.slow
pytest.importorskip("ray", reason="Ray is not installed: pip install 'tilewright[ray]'")

FUNCTIONS = """
import torch
def double(x):
    return 2.0 * x
def gated(x, gate):
    return torch.sigmoid(x) * gate
def mean(x):
    return x.mean(-1)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]))
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


def suite_of(tmp_path: Path, emulated: bool, attempts: int) -> SuiteFolder:
    (tmp_path / "ops.py").write_text(FUNCTIONS)
    shapes = {"double": {"x": "6x40:f32"}, "gated": {"x": "6x40:f32", "gate": "6x40:f32"}, "mean": {"x": "6x40:f32"}}
    tasks = tuple(
        SuiteTask(name, name, Request(f"{tmp_path / 'ops.py'}:{name}", given)) for name, given in shapes.items()
    )
    settings = Settings("playbook", Budget(attempts=attempts, seconds=600.0))
    suite = Suite("three", tasks, settings, "H200", "H200", emulated, "2026-11-16T05:00:00+00:00", "0.1.0", fresh=True)
    folder = SuiteFolder(tmp_path / "suite")
    folder.begin(suite)
    return folder


def test_a_node_that_is_killed_costs_its_tasks_one_retry(tmp_path: Path, cluster: Any) -> None:
    """Two tasks at a time, one on each node; the second node goes when both are under way."""
    second = cluster.add_node(num_cpus=1)
    folder = suite_of(tmp_path, emulated=True, attempts=1)
    connected = RayCluster(cluster.address)
    heard = Heard()
    pool = RayPool(folder, PROGRAM, connected, size=2)

    def kill() -> None:
        while not _works(second):
            time.sleep(0.1)
        cluster.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        carry_out(folder, pool, heard)
    finally:
        killer.join(timeout=300)
        pool.close()
        connected.close()
    records = {one.id: one for one in folder.records()}
    assert {id: one.status for id, one in records.items()} == dict.fromkeys(("double", "gated", "mean"), Status.MADE)
    lost = [line for line in heard.lines if line.startswith("lost")]
    assert len(lost) == 1, heard.lines
    assert sorted(one.tries for one in records.values()) == [1, 1, 2]
    for record in records.values():
        assert f"//! op      {record.id}(" in (folder.path / record.kernel).read_text()
        run = RunFolder(folder.path / "runs" / record.run).load()
        assert run.best is not None
        assert list((tmp_path / "home" / "library" / run.task.hash).iterdir())


def _works(node: Any) -> bool:
    """Whether the process of a task is under way on a node."""
    for pid in descendants(node.all_processes["raylet"][0].process.pid):
        with contextlib.suppress(OSError):
            if b"suite.task_program" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
    return False


def test_kernels_go_to_the_actor_of_a_gpu(tmp_path: Path, cluster: Any) -> None:
    """The GPU is a pretence: its worker is real, emulates, and says times that it made up."""
    cluster.add_node(num_cpus=0, num_gpus=1)
    folder = suite_of(tmp_path, emulated=False, attempts=1)
    folder.begin(replace(folder.suite(), tasks=folder.suite().tasks[:1]))
    connected = RayCluster(cluster.address, EMULATING)
    (profile,) = connected.open_gpus()
    pool = RayPool(folder, PROGRAM, connected, gpu=profile.name)
    try:
        carry_out(folder, pool, Heard())
    finally:
        pool.close()
        connected.close()
    (record,) = folder.records()
    assert record.status is Status.MADE, record.reason
    assert isinstance(record.measurement, Measured)
    assert record.measurement.time_us == pytest.approx(104.0)
