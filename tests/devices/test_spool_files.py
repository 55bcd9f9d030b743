"""The renames of a spool, one at a time."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.devices.scripted_jobs import PROFILE, scripted_job

from tilewright.child.envelope import EnvelopeError, EnvelopeKind, seal
from tilewright.child.family import pid_space, process_start
from tilewright.devices import spool_files
from tilewright.devices.protocol import DeviceError
from tilewright.devices.spool_files import (
    Announcement,
    Heartbeats,
    JobName,
    SpoolFiles,
    SpoolResult,
    checked_id,
    known_dead,
    peek,
)
from tilewright.records import Faulted, FaultKind

HERE = Announcement("w1", PROFILE, (), "host", os.getpid(), process_start(os.getpid()) or "", pid_space())
FAULT = Faulted("a", "GPU", FaultKind.TIME, "too long")


@pytest.fixture
def files(tmp_path: Path) -> SpoolFiles:
    files = SpoolFiles(tmp_path / "deep" / "spool")
    files.create()
    return files


def everything(files: SpoolFiles) -> list[str]:
    return sorted(str(p.relative_to(files.root)) for p in files.root.rglob("*") if p.is_file())


@pytest.mark.parametrize("name", [JobName("a"), JobName("a.b-c@1", 2), JobName("_", 17)])
def test_names_of_job_files_are_read_back(name: JobName) -> None:
    assert JobName.parse(name.file_name) == name


@pytest.mark.parametrize("text", ["a.job.tmp", "a~0.job", ".a.job", "a b.job", "a~x.job", "../a.job", ".nfs0001"])
def test_other_names_are_no_jobs(text: str) -> None:
    assert JobName.parse(text) is None


@pytest.mark.parametrize("text", ["", "a/b", "..", ".hidden", "a~2", "ä", "x" * 121, "a\n"])
def test_ids_that_cannot_be_file_names_are_refused(text: str) -> None:
    with pytest.raises(DeviceError, match="cannot name a job on a spool: use 1 to 120"):
        checked_id(text)


def test_waiting_jobs_are_listed_oldest_first(files: SpoolFiles) -> None:
    for age, job_id in enumerate(("c", "a", "b")):
        files.put_job(job_id, b"x")
        os.utime(files.waiting_path(JobName(job_id)), (1000 + age, 1000 + age))
    (files.root / "jobs" / "README").write_text("not a job")
    assert [name.id for name in files.waiting()] == ["c", "a", "b"]


def test_a_job_is_claimed_by_exactly_one(files: SpoolFiles) -> None:
    names = [JobName(f"job{i}") for i in range(60)]
    for name in names:
        files.put_job(name.id, b"x")
    claimed: dict[str, list[JobName]] = {f"w{i}": [] for i in range(6)}
    start = threading.Barrier(len(claimed))

    def take(worker: str) -> None:
        start.wait()
        claimed[worker] += [name for name in names if files.claim(worker, name)]

    threads = [threading.Thread(target=take, args=(worker,)) for worker in claimed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [name.id for mine in claimed.values() for name in mine]
    assert sorted(taken) == sorted(name.id for name in names)
    assert files.waiting() == ()
    assert sorted(name.id for _, name in files.claims()) == sorted(taken)


def test_a_claim_goes_back_and_counts(files: SpoolFiles) -> None:
    files.put_job("a", b"content")
    assert files.claim("w1", JobName("a"))
    assert not files.claim("w2", JobName("a"))
    assert files.give_back("w1", JobName("a"), 2)
    assert files.waiting() == (JobName("a", 2),)
    assert not files.give_back("w1", JobName("a"), 2)
    assert files.waiting_path(JobName("a", 2)).read_bytes() == b"content"


def test_results_come_back_and_stay_until_discarded(files: SpoolFiles) -> None:
    assert files.result("a") is None
    result = SpoolResult(FAULT, "w1", 2)
    files.put_result(result)
    assert files.result_ids() == {"a"}
    assert files.result("a") == result
    files.discard_result("a")
    files.discard_result("a")
    assert files.result("a") is None
    assert everything(files) == []


def test_a_damaged_result_says_what_to_do(files: SpoolFiles) -> None:
    (files.root / "results" / "a.result").write_bytes(b"tilewright 9 result\n")
    with pytest.raises(
        DeviceError, match=r"a\.result cannot be used: .*version 9.*; delete it and submit the job again"
    ):
        files.result("a")


def test_a_file_appears_whole_or_not_at_all(files: SpoolFiles) -> None:
    """A reader that looks all the time never sees a part of a file that is being replaced."""
    contents = [bytes([i]) * 300_000 for i in range(5)]
    seen: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                seen.add(files.waiting_path(JobName("a")).read_bytes())
            except FileNotFoundError:
                continue

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(20):
        for content in contents:
            files.put_job("a", content)
    over.set()
    reader.join()
    assert seen
    assert seen <= set(contents)


def test_a_job_can_be_peeked_at_without_its_bytes(files: SpoolFiles) -> None:
    job = scripted_job("a", numbers=tuple(map(float, range(1000))))
    files.put_job("a", seal(EnvelopeKind.JOB, job))
    peeked = peek(files.waiting_path(JobName("a")))
    assert peeked.record["arch"] == "sm_90a"
    files.put_job("b", b"nonsense")
    with pytest.raises(EnvelopeError):
        peek(files.waiting_path(JobName("b")))


def test_a_spool_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match=r"cannot be used as a spool: Not a directory.*may write to"):
        SpoolFiles(tmp_path / "file").create()


def test_a_sweep_removes_only_what_is_old(files: SpoolFiles) -> None:
    for job_id in ("old", "new"):
        files.put_result(SpoolResult(dataclasses.replace(FAULT, job=job_id), "w1", 1))
    (files.root / "writing" / "left.0").write_text("half a fi")
    for old in ("results/old.result", "writing/left.0"):
        os.utime(files.root / old, (time.time() - 7200, time.time() - 7200))
    files.sweep(3600.0)
    assert everything(files) == ["results/new.result"]


def test_a_beat_is_seen_and_a_withdrawn_worker_knows(files: SpoolFiles) -> None:
    assert not files.beat("w1")
    files.announce(HERE)
    os.utime(files.root / "workers" / "w1.json", (1, 1))
    assert files.announced() == {"w1": (HERE, 10**9)}
    assert files.beat("w1")
    assert files.announced()["w1"][1] > 10**18
    (files.root / "workers" / "other.json").write_text("{}")
    assert list(files.announced()) == ["w1"]


def test_a_silent_worker_of_another_machine_is_dead_after_a_while(
    files: SpoolFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(spool_files, "time", SimpleNamespace(monotonic=lambda: now))
    files.announce(dataclasses.replace(HERE, worker="far", pid_space="another machine"))
    beats = Heartbeats(files, stale_s=30.0)
    assert beats.dead(frozenset({"gone"})) == frozenset(), "neither has had its time yet"
    assert list(beats.living()) == ["far"]
    now += 20
    os.utime(files.root / "workers" / "far.json", (5, 5))  # a clock far off: any change is a sign of life
    assert beats.dead(frozenset({"gone"})) == frozenset()
    now += 20
    assert beats.dead(frozenset({"gone"})) == {"gone"}
    assert list(beats.living()) == ["far"]
    now += 20
    assert beats.dead(frozenset()) == {"far"}
    assert beats.living() == {}


def test_a_dead_process_of_this_machine_is_known_at_once(files: SpoolFiles) -> None:
    assert not known_dead(HERE)
    assert known_dead(dataclasses.replace(HERE, process_start="1"))  # the number was given to another process
    assert not known_dead(dataclasses.replace(HERE, process_start="1", pid_space="another machine"))
    child = subprocess.Popen(["sleep", "60"])
    dead = dataclasses.replace(HERE, pid=child.pid, process_start=process_start(child.pid) or "")
    assert not known_dead(dead)
    child.kill()
    child.wait()
    assert known_dead(dead)
    files.announce(dead)
    assert Heartbeats(files, stale_s=1000.0).dead(frozenset()) == {"w1"}
