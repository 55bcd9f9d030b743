"""The build cache under concurrent writers, killed writers, damage and a size limit, with real processes."""

from __future__ import annotations

import inspect
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.child.envelope import message
from tilewright.records import Build, BuildFailure, CompiledKernel, Diagnostic, FailureReason, Resources, Severity
from tilewright.toolchain import BuildCache, ToolchainError

KEY = "a" * 64


def example(key: str = KEY, size: int = 1000) -> Build:
    kernel = CompiledKernel("k<1>", "_Z1k", (), Resources(1, 2, 3, 4, 5, 6, 7), 128, (2, 1, 1))
    warning = Diagnostic(Severity.WARNING, "kernel.cu", 1, 2, "message", "line", ("note",))
    cubin = bytes(i * 7 % 256 for i in range(size))
    return Build(key, "sm_90a", "NVRTC 13.0.88", cubin, "// ptx é", (kernel,), (warning,), 0.5)


def failure(reason: FailureReason) -> BuildFailure:
    return BuildFailure(KEY, "sm_80", reason, (), "log", 1.0)


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "builds")


def test_a_build_comes_back_as_it_was(cache: BuildCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, example())
    assert cache.get(KEY) == example()
    assert cache.size_bytes() > 1000


def test_failures_that_last_are_kept_and_others_are_not(cache: BuildCache) -> None:
    kept = []
    for number, reason in enumerate(FailureReason):
        cache.put(f"{number:064}", failure(reason))
        if cache.get(f"{number:064}") is not None:
            assert cache.get(f"{number:064}") == failure(reason)
            kept.append(reason)
    assert set(FailureReason) - set(kept) == {FailureReason.TIME, FailureReason.MEMORY, FailureReason.CRASH}


@pytest.mark.parametrize("damage", ["first", "last", "truncate", "empty", "another"])
def test_a_damaged_entry_is_thrown_away(cache: BuildCache, damage: str) -> None:
    cache.put(KEY, example())
    path = cache.directory / f"{KEY}.build"
    content = path.read_bytes()
    first, last = bytes([content[0] ^ 1]) + content[1:], content[:-1] + bytes([content[-1] ^ 1])
    made = {
        "first": first,
        "last": last,
        "truncate": content[:-1],
        "empty": b"",
        "another": message(Resources(*range(7))),
    }
    path.write_bytes(made[damage])
    assert cache.get(KEY) is None
    assert not path.exists()
    cache.put(KEY, example())
    assert cache.get(KEY) == example()


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, limit_bytes=100_000)
    keys = [f"{number:064}" for number in range(8)]
    for age, key in enumerate(keys):
        cache.put(key, example(key, size=10_000))
        os.utime(tmp_path / f"{key}.build", (time.time() - 100 + age,) * 2)
    assert cache.get(keys[0]) is not None  # used just now
    small = BuildCache(tmp_path, limit_bytes=45_000)
    small.trim()
    left = [key for key in keys if cache.get(key) is not None]
    assert left == [keys[0], *keys[5:]]
    assert small.size_bytes() <= 45_000


def test_folders_of_earlier_versions_go_too(cache: BuildCache) -> None:
    (cache.directory / "old").mkdir(parents=True)
    (cache.directory / "old" / "kernel.cubin").write_bytes(bytes(5000))
    os.utime(cache.directory / "old", (time.time() - 100,) * 2)
    cache.put(KEY, example())
    assert cache.size_bytes() > 5000
    BuildCache(cache.directory, limit_bytes=4000).trim()
    assert [one.name for one in cache.directory.iterdir()] == [f"{KEY}.build"]


def test_writing_keeps_the_limit(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, limit_bytes=200_000)
    for number in range(100):
        cache.put(f"{number:064}", example(f"{number:064}", size=10_000))
    assert cache.size_bytes() <= 200_000 * 1.1
    assert cache.get(f"{99:064}") is not None


def test_limit_and_folder_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "here"))
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "12345")
    assert BuildCache().directory == tmp_path / "here"
    assert BuildCache().limit_bytes == 12345
    monkeypatch.delenv("TILEWRIGHT_CACHE")
    monkeypatch.delenv("TILEWRIGHT_CACHE_BYTES")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert BuildCache().directory == tmp_path / ".cache" / "tilewright" / "builds"
    assert BuildCache().limit_bytes == 2 << 30


def test_a_limit_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "2G")
    with pytest.raises(ToolchainError, match="'2G'; write a number of bytes"):
        _ = BuildCache(tmp_path).limit_bytes


def test_a_cache_that_cannot_be_written_warns_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = BuildCache(tmp_path / "file" / "builds")
    with pytest.warns(UserWarning, match="set TILEWRIGHT_CACHE"):
        cache.put(KEY, example())
    cache.put(KEY, example())
    assert cache.get(KEY) is None


def test_what_killed_writers_left_is_removed_after_a_while(cache: BuildCache) -> None:
    cache.put(KEY, example())
    old, fresh = cache.directory / ".writing-1-old", cache.directory / ".writing-2-fresh"
    old.touch()
    fresh.touch()
    os.utime(old, (time.time() - 3600,) * 2)
    cache.trim()
    assert not old.exists()
    assert fresh.exists()
    assert cache.get(KEY) == example()


WRITER = """
import random
from pathlib import Path
from tilewright.records import Build, CompiledKernel, Diagnostic, Resources, Severity
from tilewright.toolchain import BuildCache, ToolchainError
KEY = ""
{example}
cache = BuildCache(Path({directory!r}), limit_bytes=3_000_000)
print("ready", flush=True)
while True:
    key = f"{{random.randrange(20):064}}"
    found = cache.get(key)
    assert found is None or found == example(key, 200_000), "half an entry was read"
    cache.put(key, example(key, 200_000))
    if random.random() < 0.3:
        cache.remove(f"{{key}}.build")
"""


def test_writers_killed_at_any_instant_leave_nothing_half_written(tmp_path: Path) -> None:
    script = WRITER.format(example=inspect.getsource(example), directory=str(tmp_path))
    chance = random.Random(7)
    for _ in range(4):
        writers = [
            subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n", writer.communicate()[1].decode()
        time.sleep(chance.uniform(0.02, 0.3))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            _, errors = writer.communicate()
            assert writer.returncode == -signal.SIGKILL, errors.decode()
        # Whatever is there under a key is whole: nothing of it may be found damaged.
        whole = BuildCache(tmp_path)
        for entry in tmp_path.iterdir():
            if not entry.name.startswith("."):
                assert whole.get(entry.stem) == example(entry.stem, 200_000)
