"""What is shipped: an sdist that builds its C parts, a wheel that works without this repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from tests.checkout import ROOT, known_files

MEGABYTE = 1 << 20
PACKED = ("src/", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")


def test_no_file_of_the_package_is_left_behind() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["tilewright"]
    shipped = {path for pattern in patterns for path in (ROOT / "src" / "tilewright").glob(pattern)}
    own = (path for path in known_files() if path.is_relative_to("src/tilewright") and path.suffix != ".py")
    assert [path for path in own if ROOT / path not in shipped] == []


@pytest.mark.slow
def test_the_wheel_works_without_this_repository(tmp_path: Path) -> None:
    """Built as `make dist` does, from a copy of what git knows; installed into an environment that has the packages
    it requires and nothing else of ours."""
    source, dist, folder = tmp_path / "source", tmp_path / "dist", tmp_path / "folder"
    folder.mkdir()
    _copied(source)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, cwd=source, TILEWRIGHT_REQUIRE_COMPILED="1")
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    assert sdist.stat().st_size < 3 * MEGABYTE
    assert wheel.stat().st_size < 3 * MEGABYTE

    python = _environment(tmp_path / "environment", wheel)
    where = _run(python, "-c", "import tilewright; print(tilewright.__file__)", cwd=folder)
    assert where.startswith(str(tmp_path / "environment"))
    facts = _run(python, "-m", "tilewright", "doctor", cwd=folder)
    assert "launcher      compiled" in facts
    assert "emulator      compiled" in facts
    shape = ("--shape", "x=32x128:f32", "--attempts", "1", "--author", "playbook", "--yes", "-o", "k.cu")
    _run(python, "-m", "tilewright", "make", "silu times gate", *shape, cwd=folder)
    _run(python, "-c", CALLED, cwd=folder)


CALLED = """
import tilewright, torch
x, gate = torch.randn(5, 77), torch.randn(5, 77)
torch.testing.assert_close(tilewright.load("k.cu")(x, gate), torch.nn.functional.silu(x) * gate)
"""


def _copied(target: Path) -> None:
    """The files that git knows, so that nothing built earlier gets into the sdist."""
    for path in known_files():
        if path.as_posix().startswith(PACKED):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes((ROOT / path).read_bytes())


def _environment(folder: Path, wheel: Path) -> Path:
    """An environment with the wheel; what it requires is lent by the one that runs this, so that nothing is fetched."""
    venv.create(folder)
    python = folder / "bin" / "python"
    own = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    lent = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
    alone = ("--quiet", "--no-deps", "--no-index", "--target", own)
    _run(sys.executable, "-m", "pip", "install", *alone, wheel, cwd=folder)
    (own / "lent.pth").write_text("\n".join(dict.fromkeys(lent)) + "\n")
    return python


def _run(*command: object, cwd: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TILEWRIGHT"))}
    environment |= {"HOME": str(cwd), "OMP_NUM_THREADS": "1", "COLUMNS": "160", **variables}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout
