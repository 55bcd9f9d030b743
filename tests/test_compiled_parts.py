"""A developer's build stops at an error in C; that of a user, who may have no compiler, goes on without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REQUIRED = "TILEWRIGHT_REQUIRE_COMPILED"


@pytest.mark.parametrize("required", [True, False])
def test_an_error_in_c_stops_the_build_of_a_developer(tmp_path: Path, required: bool) -> None:
    pytest.importorskip("setuptools")
    shutil.copy(ROOT / "setup.py", tmp_path)
    for path, text in (("ptx/core/broken.c", "#error broken\n"), ("devices/cuda/launcher.c", "int launcher;\n")):
        source = tmp_path / "src" / "tilewright" / path
        source.parent.mkdir(parents=True)
        source.write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != REQUIRED}
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext"],
        cwd=tmp_path,
        env={**environment, REQUIRED: "1"} if required else environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode != 0) is required, done.stdout + done.stderr
    assert "#error broken" in done.stderr + done.stdout


def test_make_asks_for_it() -> None:
    assert f"$(READY): export {REQUIRED} := 1" in (ROOT / "Makefile").read_text()
