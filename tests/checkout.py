"""The files of this repository."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]


def known_files() -> list[Path]:
    """Those that git knows or would take, relative to the root, whoever owns them; without git, an archive's files."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return sorted(_unignored(ROOT))
    return sorted({Path(name) for name in done.stdout.split("\0") if name and (ROOT / name).is_file()})


def _unignored(folder: Path) -> list[Path]:
    ignored = [line.strip().rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.strip()]
    found: list[Path] = []
    for entry in folder.iterdir():
        if entry.name == ".git" or any(fnmatch(entry.name, one) for one in ignored):
            continue
        found += _unignored(entry) if entry.is_dir() and not entry.is_symlink() else [entry.relative_to(ROOT)]
    return found
