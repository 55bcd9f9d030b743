"""Where torch.compile keeps what it made of a reference, so that a later process need not compile it again.

Every source has a folder of its own: what one reference puts there, no other loads.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

KEPT = 256  # folders; those not used for longest go first
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def compile_cache(source: str) -> Path | None:
    """The folder of a source, made and marked as used now; None where nothing can be kept."""
    root = _root()
    folder = root / hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:20]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        _make_room(root)
    except OSError:
        return None
    return folder


def _root() -> Path:
    """Beside the builds: see `toolchain.cache`."""
    named = os.environ.get("TILEWRIGHT_CACHE")
    builds = Path(named).expanduser() if named else Path.home() / ".cache" / "tilewright" / "builds"
    return builds.with_name("compiled" if named is None else f"{builds.name}-compiled")


def _make_room(root: Path) -> None:
    folders = list(root.iterdir())
    if len(folders) <= KEPT:
        return
    with contextlib.suppress(OSError):  # another process may tidy up too
        for folder in sorted(folders, key=lambda one: one.stat().st_mtime)[: len(folders) - KEPT]:
            shutil.rmtree(folder, ignore_errors=True)
