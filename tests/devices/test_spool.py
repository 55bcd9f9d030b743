"""Clients and workers of one spool as real processes, killed at any instant."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.devices.scripted_jobs import HERE, PROFILE, WORKER, answer_of, scripted_job
from tests.devices.spool_processes import Client, Workers, children_of, is_running
from tests.waiting import wait_until

from tilewright.child.envelope import EnvelopeKind, seal, unseal
from tilewright.devices.protocol import Device, DeviceError
from tilewright.devices.spool import SpoolDevice, SpoolQueue
from tilewright.devices.spool_files import JobName, SpoolFiles
from tilewright.records import Completed, Execution, Faulted, FaultKind, Job, Watch

PRETENDED_NCU = f"""#!/bin/sh
case "$*" in
  *--export*) for word in "$@"; do case $word in *.ncu-rep) touch "$word";; esac; done ;;
  *"page raw"*) cat {HERE}/ncu/raw.csv ;;
  *) cat {HERE}/ncu/lines.csv ;;
esac
"""


def client(spool: Path, timeout: float = 300.0) -> Client:
    return Client(spool, timeout=timeout)


def nothing_left(spool: Path) -> None:
    """No job, claim, announcement or half-written file remains."""
    left = [p for f in ("jobs", "claimed", "writing", "workers") for p in (spool / f).rglob("*") if p.is_file()]
    assert left == []


def fault(execution: Execution, kind: FaultKind) -> Faulted:
    assert isinstance(execution, Faulted), execution
    assert execution.kind is kind
    return execution


# -- the plain path --


def test_jobs_go_out_and_results_come_back(spool: Path, start: Workers) -> None:
    start()
    device: Device = client(spool)
    assert device.profile == PROFILE
    assert answer_of(device.execute(scripted_job("one", numbers=(4.0,)))) == [5.0]
    many = [scripted_job(f"m{i}", numbers=(float(i),)) for i in range(10)]
    assert [answer_of(e) for e in client(spool).run_all(many)] == [[i + 1.0] for i in range(10)]


def test_a_worker_says_who_it_is(spool: Path, start: Workers) -> None:
    process = start()
    device = client(spool)
    wait_until(lambda: len(device.workers()) == 1)
    (worker,) = device.workers()
    assert worker.profile == PROFILE
    assert worker.pid == process.pid
    assert dict(worker.versions).keys() == {"numpy", "pid"}


def test_drain_ends_when_nothing_waits(spool: Path, start: Workers) -> None:
    device = client(spool)
    for i in range(3):
        device.submit(scripted_job(f"d{i}", numbers=(float(i),)))
    process = start("--drain")
    _, words = process.communicate(timeout=300)
    assert process.returncode == 0
    assert words.endswith("tilewright worker: 3 job(s) run\n")
    assert [answer_of(device.awaited(f"d{i}")) for i in range(3)] == [[1], [2], [3]]
    nothing_left(spool)


def test_once_runs_one_job(spool: Path, start: Workers) -> None:
    device = client(spool)
    for i in range(2):
        device.submit(scripted_job(f"d{i}"))
    process = start("--once")
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert len(list((spool / "jobs").iterdir())) == 1
    assert len(list((spool / "results").iterdir())) == 1


@pytest.mark.slow
def test_faults_have_their_reason_and_the_next_job_runs(spool: Path, start: Workers) -> None:
    start()
    jobs = [
        scripted_job("ok-1", numbers=(1.0,)),
        scripted_job("hang", "hang", seconds=1.0),
        scripted_job("ok-2", numbers=(2.0,)),
        scripted_job("wild", "spoilt"),
        scripted_job("crash", "signal SIGSEGV"),
        scripted_job("ok-3", numbers=(3.0,)),
        scripted_job("arch", arch="sm_80"),
    ]
    done = dict(zip([j.id for j in jobs], client(spool).run_all(jobs), strict=True))
    assert [answer_of(done[f"ok-{i}"]) for i in (1, 2, 3)] == [[2.0], [3.0], [4.0]]
    assert fault(done["hang"], FaultKind.TIME).kernel == "hang"
    assert fault(done["wild"], FaultKind.ILLEGAL_ACCESS).kernel == "spoilt"
    assert "SIGSEGV" in fault(done["crash"], FaultKind.DIED).message


# -- clients --


@pytest.mark.slow
def test_waiting_in_vain_says_where_the_job_is(spool: Path, start: Workers) -> None:
    start()
    assert client(spool).profile == PROFILE
    with pytest.raises(DeviceError, match=r"no result of 'slow' .* \(worker .* is running it\); 1 worker"):
        SpoolQueue(spool, 1.0).run("slow", seal(EnvelopeKind.JOB, scripted_job("slow", "sleep 30")))
    with pytest.raises(DeviceError, match="no worker for sm_80 serves"):
        _ = SpoolDevice(spool, timeout=0.2, arch="sm_80").profile


@pytest.mark.slow
def test_a_killed_client_loses_nothing(spool: Path, start: Workers) -> None:
    """Killed at random instants while it submits: every job file is whole or absent, and the rest can be submitted."""
    program = f"""
import sys
sys.path.insert(0, {str(HERE.parents[1])!r})
from tests.devices.scripted_jobs import scripted_job
from tests.devices.spool_processes import Client
device = Client({str(spool)!r})
print("go", flush=True)
for i in range(10_000):
    device.submit(scripted_job(f"k{{i}}", numbers=tuple(float(i) for _ in range(50_000))))
"""
    chance = random.Random(1)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.05, 0.3))
        process.kill()
        process.communicate()
    waiting = [name.id for name in SpoolFiles(spool).waiting()]
    assert len(waiting) > 5
    start("--drain").communicate(timeout=300)
    for job_id in waiting:
        found = client(spool).collect(job_id)
        assert found is not None
        assert answer_of(found) == [float(job_id[1:]) + 1] * 50_000


def test_every_job_runs_anew_and_leaves_nothing(spool: Path, start: Workers, tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = scripted_job("same", numbers=(4.0,), log=log)
    start()
    with SpoolDevice(spool, timeout=300.0) as device:
        done = [device.execute(job) for _ in range(2)]
    assert [answer_of(one) for one in done] == [[5.0], [5.0]]
    assert [one.job for one in done] == ["same", "same"]
    begun = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("begin")]
    assert len(set(begun)) == 2
    assert all(one.startswith("same-") for one in begun)
    assert [path for folder in ("jobs", "results") for path in (spool / folder).iterdir()] == []


@pytest.mark.slow
def test_a_client_that_waits_in_vain_takes_its_job_back(spool: Path, start: Workers) -> None:
    device = SpoolDevice(spool, timeout=1.0)
    worker = start()
    wait_until(lambda: len(device.workers()) == 1)
    assert device.profile == PROFILE
    worker.kill()
    worker.wait()
    with pytest.raises(DeviceError, match="no worker serves it"):
        device.execute(scripted_job("late", seconds=0.1))
    assert SpoolFiles(spool).waiting() == ()


def test_a_job_that_names_its_gpu_waits_for_it(spool: Path, start: Workers) -> None:
    files = SpoolFiles(spool)
    files.create()
    files.put_job("theirs", seal(EnvelopeKind.JOB, scripted_job("theirs"), gpu="Another GPU"))
    files.put_job("ours", seal(EnvelopeKind.JOB, scripted_job("ours"), gpu=PROFILE.name))
    process = start("--drain")
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert [name.id for name in files.waiting()] == ["theirs"]
    assert files.result_ids() == {"ours"}


@pytest.mark.slow
def test_a_job_is_watched_by_the_worker_s_profiler(spool: Path, start: Workers, tmp_path: Path) -> None:
    """Counters come back as records; a worker that has no ncu says so."""
    ncu = tmp_path / "ncu"
    ncu.write_text(PRETENDED_NCU)
    ncu.chmod(0o755)
    job = replace(scripted_job("counted"), watch=Watch.COUNTERS)
    device = SpoolDevice(spool, timeout=300.0)
    worker = start(TILEWRIGHT_NCU=str(ncu))
    done = device.execute(job)
    assert isinstance(done, Completed)
    (one,) = done.profiles
    assert (done.job, one.kernel, one.samples) == ("counted", "masked_softmax", 2837)
    assert one.figures["bytes read"] > 4e7
    worker.kill()
    worker.wait()
    start(TILEWRIGHT_NCU="")
    without = device.execute(job)
    assert isinstance(without, Completed)
    assert (without.profiles, without.not_watched[:21]) == ((), "Nsight Compute (ncu) ")


# -- workers that come and go --


@pytest.mark.slow
def test_several_workers_share_a_spool_and_run_each_job_once(spool: Path, start: Workers, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(3):
        start()
    device = client(spool)
    wait_until(lambda: len(device.workers()) == 3)
    jobs = [scripted_job(f"s{i}", "sleep 0.03", numbers=(float(i),), log=log) for i in range(30)]
    assert [answer_of(e) for e in device.run_all(jobs)] == [[i + 1.0] for i in range(30)]
    begun = [line.split() for line in log.read_text().splitlines() if line.startswith("begin")]
    assert sorted(job_id for _, job_id, _, _ in begun) == sorted(job.id for job in jobs)
    assert len({pid for _, _, pid, _ in begun}) == 3, "all workers should have had something to do"


@pytest.mark.slow
def test_workers_and_children_killed_at_random_lose_nothing(spool: Path, start: Workers, tmp_path: Path) -> None:
    """Two workers, one of them or a child killed with SIGKILL every little while: all results come, whole and right."""
    chance = random.Random(7)
    log = tmp_path / "log"
    device = client(spool)
    jobs = [scripted_job(f"r{i}", "sleep 0.05", numbers=(float(i),), log=log) for i in range(40)]
    for job in jobs:
        device.submit(job)
    workers = [start(), start()]
    deadline = time.monotonic() + 300
    kills = 0
    while len(SpoolFiles(spool).result_ids()) < len(jobs):
        assert time.monotonic() < deadline
        time.sleep(chance.uniform(0.2, 0.6))
        if kills >= 8:
            continue
        kills += 1
        victim = chance.randrange(2)
        if chance.random() < 0.5:
            for child in children_of(workers[victim].pid):
                os.kill(child, signal.SIGKILL)
        else:
            workers[victim].kill()
            workers[victim].wait()
            workers[victim] = start()
    for job in jobs:
        found = device.collect(job.id)
        assert found is not None
        if isinstance(found, Faulted):  # only a job that was twice in a killed worker's hand
            assert found.kind is FaultKind.DIED
        else:
            assert answer_of(found) == [float(job.id[1:]) + 1]
    completed = sum(isinstance(device.collect(job.id), Completed) for job in jobs)
    assert completed >= len(jobs) - 2
    check_log(log)


def check_log(log: Path) -> None:
    """A job begins again only after its first run's end, or after that run's process was killed and never ended."""
    open_runs: dict[str, str] = {}
    for line in log.read_text().splitlines():
        what, job_id, pid, _ = line.split()
        if what == "begin":
            open_runs[job_id] = pid
        else:
            assert open_runs.get(job_id) == pid, f"{job_id} ended in a process that no longer had it"


@pytest.mark.slow
def test_a_job_that_kills_two_workers_is_not_tried_again(spool: Path, start: Workers) -> None:
    device = client(spool)
    device.submit(scripted_job("deadly", "hang"))
    for attempt in (1, 2):
        process = start()
        wait_until(lambda attempt=attempt: is_running(spool, "deadly", attempt))
        process.kill()
        process.wait()
    start()
    execution = device.awaited("deadly")
    assert "2 worker processes died while running this job" in fault(execution, FaultKind.DIED).message
    assert answer_of(device.execute(scripted_job("after"))) == [2.0, 3.0, 4.0]


@pytest.mark.slow
def test_a_worker_dead_between_result_and_claim_is_mended(spool: Path, start: Workers, tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = scripted_job("late", log=log)
    device = client(spool)
    device.submit(job)
    start("--drain").communicate(timeout=300)
    files = SpoolFiles(spool)
    files.claim_path("dead-1", JobName("late")).parent.mkdir()
    files.claim_path("dead-1", JobName("late")).write_bytes(seal(EnvelopeKind.JOB, job))
    start("--stale", "0.3")
    wait_until(lambda: list(files.claims()) == [])
    assert answer_of(device.execute(scripted_job("other"))) == [2.0, 3.0, 4.0]
    assert log.read_text().count("begin late") == 1
    assert files.waiting() == ()


@pytest.mark.slow
def test_a_claim_of_an_unknown_worker_goes_back_when_it_is_stale(spool: Path, start: Workers) -> None:
    files = SpoolFiles(spool)
    files.create()
    files.claim_path("far-1", JobName("left")).parent.mkdir()
    files.claim_path("far-1", JobName("left")).write_bytes(seal(EnvelopeKind.JOB, scripted_job("left", numbers=(1.0,))))
    start("--stale", "0.5")
    assert answer_of(client(spool).awaited("left")) == [2.0]
    result = files.result("left")
    assert result is not None
    assert result.attempt == 2


@pytest.mark.slow
def test_a_worker_that_was_away_too_long_drops_its_result(spool: Path, start: Workers, tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = scripted_job("slow", "sleep 1.0", log=log)
    device = client(spool)
    device.submit(job)
    first = start()
    wait_until(lambda: is_running(spool, "slow"))
    os.kill(first.pid, signal.SIGSTOP)  # its machine sleeps; its neighbours sit on another one
    for path in (spool / "workers").iterdir():
        path.write_text(path.read_text().replace('"pid_space": "', '"pid_space": "another '))
    start("--stale", "0.5")
    assert answer_of(device.awaited("slow")) == [2.0, 3.0, 4.0]
    os.kill(first.pid, signal.SIGCONT)
    wait_until(lambda: len(device.workers()) == 2)
    assert answer_of(device.execute(scripted_job("next"))) == [2.0, 3.0, 4.0]
    result = SpoolFiles(spool).result("slow")
    assert result is not None
    assert result.attempt == 2


# -- files that are not what they should be --


def resealed(record: bytes, blobs: bytes = b"") -> bytes:
    """Content under a header that vouches for it."""
    digest = hashlib.sha256(record + blobs).hexdigest()
    return f"tilewright 2 job {len(record)} {len(blobs)} {digest}\n".encode() + record + blobs


def altered(job_id: str, before: bytes, after: bytes) -> bytes:
    """A job whose record says something else, properly sealed."""
    content = seal(EnvelopeKind.JOB, scripted_job(job_id))
    start = content.index(b"\n") + 1
    end = start + unseal(content).header.record_bytes
    assert before in content[start:end]
    return resealed(content[start:end].replace(before, after), content[end:])


# By the name of the file: its content and why it is broken.
BROKEN = {
    "empty": (b"", "it is empty"),
    "zeros": (b"\x00" * 1000, "has no first line"),
    "truncated": (seal(EnvelopeKind.JOB, scripted_job("truncated"))[:-3], "should hold"),
    "version": (
        seal(EnvelopeKind.JOB, scripted_job("version")).replace(b"tilewright 2 ", b"tilewright 7 "),
        "version 7 and this side reads version 2",
    ),
    "misnamed": (
        seal(EnvelopeKind.JOB, scripted_job("other")),
        "the file is called 'misnamed' and holds job 'other'",
    ),
    "altered": (seal(EnvelopeKind.JOB, scripted_job("altered")).replace(b"sm_90a", b"sm_90b"), "checksum"),
    "nested": (resealed(b'{"record":' + b"[" * 100_000 + b"]" * 100_000 + b',"blobs":[]}'), "record cannot be read"),
    "kind": (
        seal(EnvelopeKind.JOB, scripted_job("kind")).replace(b"tilewright 2 job", b"tilewright 2 dream"),
        "it holds a 'dream', which this release does not know: use the same tilewright release on both sides",
    ),
    "limits": (altered("limits", b'"seconds":30.0', b'"seconds":NaN'), "are no limits"),
    "large": (altered("large", b'"seconds":30.0', b'"seconds":1' + b"0" * 400), "too large for a float"),
}


def test_broken_job_files_get_their_reason_and_harm_nobody(spool: Path, start: Workers) -> None:
    device = client(spool)
    for name, (content, _) in BROKEN.items():
        (spool / "jobs" / f"{name}.job").write_bytes(content)
    device.submit(scripted_job("good"))
    start("--drain").communicate(timeout=300)
    for name, (content, reason) in BROKEN.items():
        found = device.collect(name)
        assert found is not None, name
        assert reason in fault(found, FaultKind.BROKEN_JOB).message, name
        assert (spool / "broken" / f"{name}.job").read_bytes() == content, name
    good = device.collect("good")
    assert good is not None
    assert answer_of(good) == [2.0, 3.0, 4.0]
    nothing_left(spool)


def test_strange_files_in_the_spool_are_left_alone(spool: Path, start: Workers) -> None:
    device = client(spool)
    for place in ("jobs/notes.txt", "jobs/.nfs000", "workers/x.json", "results/x.tmp"):
        (spool / place).write_text("hello")
    (spool / "jobs" / "folder.job.d").mkdir()
    (spool / "jobs" / "folder.job").mkdir()
    os.mkfifo(spool / "jobs" / "pipe.job")
    device.submit(scripted_job("good"))
    start("--drain").communicate(timeout=300)
    assert device.collect("good") is not None
    assert (spool / "jobs" / "notes.txt").read_text() == "hello"


# -- signals and the command line --


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_an_idle_worker_stops_cleanly(spool: Path, start: Workers, number: signal.Signals, status: int) -> None:
    process = start()
    wait_until(lambda: len(client(spool).workers()) == 1)
    process.send_signal(number)
    _, words = process.communicate(timeout=300)
    assert process.returncode == status
    assert words.splitlines()[-1] == f"tilewright worker: stopped by {number.name}: 0 job(s) run, none left in hand"
    assert "Traceback" not in words
    nothing_left(spool)


def test_a_short_job_is_finished_at_ctrl_c(spool: Path, start: Workers) -> None:
    process = start()
    device = client(spool)
    device.submit(scripted_job("short", "sleep 0.5"))
    wait_until(lambda: is_running(spool, "short"))
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=300)
    assert process.returncode == 130
    assert words.endswith("stopped by SIGINT: 1 job(s) run, none left in hand\n")
    found = device.collect("short")
    assert found is not None
    assert answer_of(found) == [2.0, 3.0, 4.0]
    nothing_left(spool)


@pytest.mark.slow
@pytest.mark.parametrize("impatient", [False, True])
def test_a_long_job_is_returned_at_ctrl_c(spool: Path, start: Workers, impatient: bool) -> None:
    process = start("--grace", "60" if impatient else "0.3")
    job = scripted_job("long", "sleep 30")
    client(spool).submit(job)
    wait_until(lambda: is_running(spool, "long"))
    time.sleep(0.3)
    children = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    if impatient:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=300)
    assert process.returncode == 130
    assert words.endswith("stopped by SIGINT: job long was returned to the spool\n")
    assert [name.file_name for name in SpoolFiles(spool).waiting()] == ["long.job"], "as it came: it cost nobody's life"
    assert children
    assert all(not Path(f"/proc/{child}").exists() for child in children)


def test_a_worker_is_interrupted_while_its_runner_starts(spool: Path, start: Workers) -> None:
    process = start("--device", "7")  # whose runner never comes up
    wait_until(lambda: children_of(process.pid) != [])
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=300)
    assert process.returncode == 0
    assert words.endswith("stopped by SIGTERM: no job had been begun\n")


def test_a_worker_without_its_device_says_why(spool: Path, start: Workers) -> None:
    process = start("--device", "9")
    _, words = process.communicate(timeout=300)
    assert process.returncode == 1
    assert words.splitlines()[-1] == "tilewright worker: there is no cuda:9 here; use cuda:0"
    nothing_left(spool)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device", "-1"), "'-1' is not a device number"),
        (("--poll", "soon"), "'soon' is not a number of 0 or more"),
        (("--once", "--drain"), "not allowed with"),
    ],
)
def test_bad_options_are_refused(spool: Path, start: Workers, options: tuple[str, ...], message: str) -> None:
    process = start(*options)
    _, words = process.communicate(timeout=300)
    assert process.returncode == 2
    assert message in words


def test_a_spool_that_cannot_be_made_ends_the_worker(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run([*WORKER, str(tmp_path / "file")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "cannot be used as a spool" in done.stderr


def test_a_worker_that_cannot_write_results_returns_the_job(spool: Path, start: Workers) -> None:
    device = client(spool)
    device.submit(scripted_job("unlucky"))
    (spool / "results").rmdir()
    (spool / "results").symlink_to("/proc/self/nowhere")  # fails even for root, like a full disk
    process = start()
    _, words = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "cannot be used" in words
    assert "Traceback" not in words
    assert [name.file_name for name in SpoolFiles(spool).waiting()] == ["unlucky.job"]


def test_workers_with_other_gpus_get_their_own_jobs(spool: Path, start: Workers) -> None:
    """A job for sm_80 is left alone while a worker with such a GPU lives; with none it is told that it cannot run."""
    files = SpoolFiles(spool)
    files.create()
    other = {
        "worker": "ampere",
        "profile": {"name": "A100", "cc": 80, "sms": 108, "smem_block": 1, "smem_sm": 1, "l2": 1},
        "versions": [],
        "host": "far",
        "pid": 1,
        "process_start": "1",
        "pid_space": "far",
    }
    announcement = spool / "workers" / "ampere.json"
    announcement.write_text(json.dumps(other))
    device = client(spool)
    job: Job = scripted_job("ampere-job", arch="sm_80")
    device.submit(job)
    start()
    assert SpoolDevice(spool, arch="sm_80", timeout=300.0).profile.name == "A100"
    (done,) = device.run_all([scripted_job("hopper-job")])
    assert answer_of(done) == [2.0, 3.0, 4.0]
    assert [name.id for name in files.waiting()] == ["ampere-job"]
    announcement.unlink()
    device.awaited("ampere-job")  # nobody else is left, so this worker tries: its runner decides
    assert files.waiting() == ()
