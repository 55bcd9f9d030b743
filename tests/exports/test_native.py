"""The build of the launch path: beside processes that make room in a full cache, and what is said where it fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tilewright.exports import native
from tilewright.exports.writing import NotExportable
from tilewright.toolchain import BuildCache

_PLAIN = {"module.cpp": 'extern "C" int answer() { return 42; }\n'}

pytestmark = pytest.mark.skipif(native.build_extension(_PLAIN) is None, reason="no C++ compiler")


def test_another_process_may_make_room_during_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    run = subprocess.run

    def run_while_evicted(*given: Any, **options: Any) -> Any:
        BuildCache(tmp_path, limit_bytes=0).trim()
        shutil.rmtree(tmp_path, ignore_errors=True)  # the most that any process does
        return run(*given, **options)

    monkeypatch.setattr(native.subprocess, "run", run_while_evicted)
    built = native.build_extension(_PLAIN)
    assert built is not None
    assert built.startswith(b"\x7fELF")
    monkeypatch.setattr(native.subprocess, "run", None)
    assert native.build_extension(_PLAIN) == built  # kept: the compiler is not called again


def test_what_fails_is_said_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    text = "#warning plenty of words\nint f() { return missing; }\n"
    with pytest.raises(NotExportable, match="missing") as refusal:
        native.build_extension({"module.cpp": text})
    assert "plenty of words" not in str(refusal.value)
