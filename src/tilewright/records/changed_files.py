"""What lies beside a kernel file: its provenance, by which a change is seen, and the reference of one from words."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

ABSENT = "absent"  # on record in place of the digest of a file
_LEAST_DIGITS = 20  # of an identity; a shorter one is none


def digest_of(file: Path) -> str:
    """The SHA-256 of a file; "" where there is none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def provenance_path(kernel_file: Path) -> Path:
    """`softmax.cu` -> `softmax.cu.provenance.json`."""
    return kernel_file.with_name(kernel_file.name + ".provenance.json")


def tuned_path(kernel_file: Path) -> Path:
    """`softmax.cu` -> `softmax.cu.tuned.json`."""
    return kernel_file.with_name(kernel_file.name + ".tuned.json")


def changed_since_verified(kernel_file: Path, recorded: str | None, run: str = "") -> str:
    """What to say of a file that no longer has its identity; "" of one that has, has none, or cannot be read."""
    if recorded is None or len(recorded) < _LEAST_DIGITS:
        return ""
    found = digest_of(kernel_file)
    if found.startswith(recorded) or not found:
        return ""
    check = f"tilewright check {shlex.quote(str(kernel_file))}{f' --reference {run}' if run else ''}"
    return f"{kernel_file} was changed after it was verified, so it is not verified any more; check it with: {check}"


def not_as_judged(file: Path, recorded: str, what: str) -> str:
    """What to say of another file that a verdict was about; "" of one that is as it was, or is not on record."""
    if not recorded or (digest_of(file) or ABSENT) == recorded:
        return ""
    return f"{file} was changed after the kernel was verified with it, so {what}; put it back, or make the kernel again"


def changed_beside_record(kernel_file: Path) -> str:
    """The same, by the provenance file beside it; "" where there is none that can be read."""
    try:
        said = json.loads(provenance_path(kernel_file).read_text("utf-8"))
        recorded, run = said["kernel"], said["run"]
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    return changed_since_verified(kernel_file, str(recorded), str(run))


REFERENCE_FUNCTION = "reference"  # what it is called in the file beside a kernel


def reference_path(kernel_file: Path) -> Path:
    """`softmax.cu` -> `softmax.cu.reference.py`."""
    return kernel_file.with_name(kernel_file.name + ".reference.py")


def write_reference(kernel_file: Path, identity: str, text: str, function: str) -> None:
    """Put the reference of a kernel beside it, where `tilewright.load` finds it."""
    head = f"# The reference of the kernel file with SHA-256 {identity}: `tilewright.load` falls back to it."
    whole = f"{head}\n{text.rstrip()}\n\n\n{REFERENCE_FUNCTION} = {function}\n"
    reference_path(kernel_file).write_text(whole, "utf-8")


def read_reference(kernel_file: Path, identity: str) -> str:
    """The reference that was written beside a kernel file; "" where there is none, or it is another file's."""
    try:
        text = reference_path(kernel_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if f"SHA-256 {identity}:" in text.partition("\n")[0] else ""
