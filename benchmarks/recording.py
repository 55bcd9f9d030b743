"""Result files: what every benchmark says of itself, and where it was run."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """The result as JSON, headed by its date, the commit it was made from and the machine."""
    head = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
    }
    path.write_text(json.dumps({**head, **result}, indent=1) + "\n")


def commit() -> str:
    """GIT_COMMIT where it is set (a copy of the tree has no history), else what git says."""
    named = os.environ.get("GIT_COMMIT")
    if named:
        return named
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
