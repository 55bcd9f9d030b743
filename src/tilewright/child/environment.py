"""The surroundings of a child process: an empty folder as its home, and an environment without secrets."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import site
import tempfile
import time
from pathlib import Path

from tilewright.child.family import pid_space

HOME_PREFIX = "tilewright-child-"
_ABANDONED_S = 86400.0
MOST_FILES = 20_000  # and folders that a child may have there

# What a child needs to find its interpreter, its libraries and its GPU. Everything else, keys and tokens above all,
# stays with the parent.
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LANG", "TZ")
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_", "PYTORCH_", "TILEWRIGHT_", "LC_", "OMP_")
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL", "AUTH")


def child_environment(home: str) -> dict[str, str]:
    """The environment of a child: enough to run, nothing to steal."""
    package_root = str(Path(__file__).resolve().parents[2])
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)) and not any(w in name for w in _SECRET_WORDS)
    }
    search = [package_root, *kept.get("PYTHONPATH", "").split(os.pathsep)]
    kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in search if entry)
    # Packages a user installed for himself are found by way of his home, which the child does not get to see.
    return kept | {"HOME": home, "TMPDIR": home, "PYTHONUSERBASE": site.getuserbase(), "PYTHONUNBUFFERED": "1"}


def make_home() -> str:
    """A new empty folder. Those whose owner was killed before it could remove them are removed."""
    here = hashlib.sha256(pid_space().encode()).hexdigest()[:12]
    for home in Path(tempfile.gettempdir()).glob(f"{HOME_PREFIX}*"):
        space, _, rest = home.name.removeprefix(HOME_PREFIX).partition("-")
        owner = rest.partition("-")[0]
        with contextlib.suppress(OSError):  # gone meanwhile
            # Another machine may use the same folder for temporary files: what is its owner there, we do not know.
            old = time.time() - home.stat().st_mtime > _ABANDONED_S
            if owner.isdigit() and not Path("/proc", owner).exists() and (space == here or old):
                shutil.rmtree(home, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{HOME_PREFIX}{here}-{os.getpid()}-")


def files_below(home: str, most: int = MOST_FILES) -> tuple[int, int]:
    """How many files and folders there are, up to one more than `most`, and the bytes that they take on the disk."""
    count = size = 0
    waiting = [home]
    while waiting and count <= most:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if count > most:
                    break
    return count, size


def remove_home(home: str, owner: int) -> None:
    """Remove a home, in the process that made it: a forked copy of that leaves it alone."""
    if os.getpid() == owner:
        with contextlib.suppress(RecursionError):  # foreign code may have nested folders by the thousand: they stay
            shutil.rmtree(home, ignore_errors=True)


def remove_own_home() -> None:
    """In a child whose parent is gone and cannot."""
    home = os.environ.get("HOME", "")
    if os.path.basename(home).startswith(HOME_PREFIX):
        shutil.rmtree(home, ignore_errors=True)
