"""An export's folder: its files are collected in memory and written all or none.

`tilewright-export.json` records what was exported and the digest of every other file, which reveals later changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


class NotExportable(ValueError):
    """The export is impossible; the message says why and what to do."""


class NotPublishable(ValueError):
    """The export may not be published; the message says why and what to do."""


RECORD = "tilewright-export.json"
FORMAT = 1


@dataclass
class Folder:
    """Files by their path inside the export."""

    files: dict[str, bytes] = field(default_factory=dict)

    def add(self, path: str, content: str | bytes) -> None:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or any(part in ("", ".", "..") for part in parts) or path == RECORD:
            raise NotExportable(f"{path!r} is no path inside an export")
        self.files[path] = content.encode("utf-8") if isinstance(content, str) else content

    def digests(self) -> dict[str, str]:
        return {path: hashlib.sha256(content).hexdigest() for path, content in sorted(self.files.items())}

    def write(self, target: Path, record: Mapping[str, Any]) -> None:
        """Write all files to `target`, which is new, empty, or an earlier export."""
        check_target(target)
        whole = {"format": FORMAT, **record, "files": self.digests()}
        target.parent.mkdir(parents=True, exist_ok=True)
        filling = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            for path, content in self.files.items():
                place = filling / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            (filling / RECORD).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
            os.chmod(filling, 0o755)
            if target.exists():
                shutil.rmtree(target)
            filling.rename(target)
        except BaseException:
            shutil.rmtree(filling, ignore_errors=True)
            raise


def check_target(target: Path) -> None:
    """Refuse a folder that contains anything but an earlier export."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise NotExportable(f"-o {target}: not a folder; give a new one")
    if not target.is_dir():
        return
    present = [path for path in target.rglob("*") if not path.is_dir() or path.is_symlink()]
    known = {RECORD, *read_record(target).get("files", {})} if (target / RECORD).is_file() else set()
    for path in present:
        inside = path.relative_to(target)
        if inside.as_posix() not in known and not (known and MADE_LATER.intersection(inside.parts)):
            raise NotExportable(f"-o {target}: it holds {inside}, which is of no export; give a new or an empty folder")


MADE_LATER = {"__pycache__", ".pytest_cache", "build"}  # by using an export


def read_record(folder: Path) -> dict[str, Any]:
    """The record of an export; raises `NotExportable`."""
    try:
        found = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        raise NotExportable(f"{folder}: no readable {RECORD}, so it is no export of tilewright") from None
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict) or found.get("format") != FORMAT:
        raise NotExportable(f"{folder}: {RECORD} is not of this version; export again")
    return dict(found)


FOLDER = Path(__file__).parent / "templates"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip


def render_template(template: str, **values: Any) -> str:
    """Render a template such as `package/_op.py`, whose file ends in .j2."""
    return _environment().get_template(f"{template}.j2").render(**values)
