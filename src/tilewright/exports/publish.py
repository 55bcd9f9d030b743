"""Publishes an exported Hub project. Verification status, digests, names, sizes and secrets are checked first."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tilewright.exports.hub_project import base64_digest
from tilewright.exports.source import Standing, is_earlier
from tilewright.exports.writing import MADE_LATER, RECORD, NotExportable, NotPublishable, read_record
from tilewright.records import UNSTATED, Provenance, RecordError, from_json

MOST_FILE_BYTES = 64 << 20
MOST_BYTES = 512 << 20
MOST_FILES = 2000
VERSION_BRANCH = "v1"
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
# Patterns of tokens. A match is never shown.
_SECRETS = re.compile(
    rb"hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{24,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|AKIA[A-Z0-9]{16}"
    rb"|xox[abprs]-[A-Za-z0-9-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY")


class HubFailed(RuntimeError):
    """The Hub refused the upload or could not be reached."""


@dataclass(frozen=True)
class Publication:
    """An upload, or what would be uploaded."""

    repository: str
    folder: str
    files: dict[str, int]  # bytes
    run: str
    licence: str
    uploaded: bool = False
    address: str = ""

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


def checked_repository(text: str) -> str:
    """`USER/NAME`; raises `NotPublishable`."""
    if not _REPOSITORY.fullmatch(text) or ".." in text or "--" in text or text.endswith((".git", ".", "-")):
        raise NotPublishable(f"--to {text}: write USER/NAME, letters, digits, - and _")
    return text


def check_publishable(folder: Path, repository: str) -> Publication:
    """Run all checks before an upload; raises `NotPublishable` with the first problem."""
    checked_repository(repository)
    if folder.is_symlink() or not folder.is_dir():
        raise NotPublishable(f"{folder}: no folder; give an export (tilewright export ... --to hub) or a run")
    try:
        record = read_record(folder)
    except NotExportable as error:
        raise NotPublishable(str(error)) from None
    if record.get("to") != "hub":
        raise NotPublishable(f"{folder} is an export --to {record.get('to')}; the Hub takes one --to hub")
    files = _checked_files(folder, record["files"])
    provenance = _checked_standing(folder, record)
    _check_variants(folder)
    licence = str(record.get("licence", UNSTATED))
    if licence == UNSTATED:
        raise NotPublishable("nobody has stated the kernel's licence; export it again with --license SPDX")
    return Publication(repository, str(folder), files, provenance.run, licence)


# -- files --


def _checked_files(folder: Path, stated: Mapping[str, Any]) -> dict[str, int]:
    for path, digest in stated.items():
        parts = PurePosixPath(path).parts
        if path.startswith("/") or "\\" in path or not parts or any(p in ("..", ".", ".git") for p in parts):
            raise NotPublishable(f"{RECORD} names {path!r}, which is no path inside the export; export again")
        if not isinstance(digest, str):
            raise NotPublishable(f"{RECORD} has no digest of {path}; export again")
    present = _present(folder)
    strange = sorted(set(present) - set(stated) - {RECORD})
    if strange:
        raise NotPublishable(f"{strange[0]} is not of the export; remove it, or export again")
    if len(present) > MOST_FILES:
        raise NotPublishable(f"{len(present)} files, the limit is {MOST_FILES}")
    sizes: dict[str, int] = {}
    for path in sorted(stated):
        if path not in present:
            raise NotPublishable(f"{path} is missing; export again")
        sizes[path] = present[path].stat().st_size
        if sizes[path] > MOST_FILE_BYTES:
            raise NotPublishable(f"{path} has {sizes[path]} bytes, the limit is {MOST_FILE_BYTES}")
    if sum(sizes.values()) > MOST_BYTES:
        raise NotPublishable(f"the export has {sum(sizes.values())} bytes, the limit is {MOST_BYTES}")
    for path in sorted(stated):
        content = present[path].read_bytes()
        if hashlib.sha256(content).hexdigest() != stated[path]:
            raise NotPublishable(f"{path} was changed since it was exported: its digest is another; export again")
        _check_secrets(path, content)
    _check_secrets(RECORD, present[RECORD].read_bytes())
    return sizes | {RECORD: present[RECORD].stat().st_size}


def _present(folder: Path) -> dict[str, Path]:
    """All files by their path inside the folder, without caches that using an export leaves behind."""
    found: dict[str, Path] = {}
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        if path.is_symlink():
            raise NotPublishable(f"{inside} is a symbolic link; an export has none: export again")
        if not path.is_dir() and not (MADE_LATER - {"build"}).intersection(inside.parts):
            if not path.is_file():
                raise NotPublishable(f"{inside} is no plain file; export again")
            found[inside.as_posix()] = path
    return found


def _check_secrets(path: str, content: bytes) -> None:
    values = (os.environ.get(name, "").encode() for name in _SECRET_VARIABLES)
    known = next((value for value in values if len(value) >= 8 and value in content), None)
    match = _SECRETS.search(content)
    if known is None and match is None:
        return
    at = content.index(known) if known is not None else match.start() if match is not None else 0
    line = content.count(b"\n", 0, at) + 1
    raise NotPublishable(f"{path}: line {line} looks like a key or token; take it out and export again")


# -- verification status --


def _checked_standing(folder: Path, record: Mapping[str, Any]) -> Provenance:
    try:
        standing = Standing(record.get("standing"))
    except ValueError:
        raise NotPublishable(f"{RECORD} has no verification status; export again") from None
    if standing is not Standing.VERIFIED:
        raise NotPublishable(f"the kernel is {standing.words}; only what the referee has passed is published")
    stored = record.get("provenance")
    try:
        provenance: Provenance = from_json(Provenance, stored)
    except RecordError:
        raise NotPublishable(f"{RECORD} has no provenance; export the run that made the kernel") from None
    if is_earlier(stored or {}):
        raise NotPublishable(f"the kernel is {Standing.EARLIER.words}, then export that run")
    if provenance.unjudged or provenance.degenerate or not provenance.verified_on:
        raise NotPublishable("the kernel's provenance does not say that it was verified; export its run again")
    kernels = sorted(folder.glob("torch-ext/*/kernels/*.cu"))
    found = {hashlib.sha256(path.read_bytes()).hexdigest() for path in kernels}
    if not kernels or found != set(record.get("kernels", {}).values()):
        raise NotPublishable("the kernel files are not the ones that were exported; export again")
    if not any(len(provenance.kernel) >= 20 and one.startswith(provenance.kernel) for one in found):
        raise NotPublishable("the provenance is of another kernel file than the one in the export; export again")
    return provenance


def _check_variants(folder: Path) -> None:
    """Check the digests that the `kernels` package reads."""
    variants = sorted((folder / "build").glob("*/metadata.json"))
    if not variants:
        raise NotPublishable("there is no build/<variant>/metadata.json; export again --to hub")
    for path in variants:
        stated = json.loads(path.read_text("utf-8")).get("digest", {}).get("files", {})
        files = [p for p in path.parent.rglob("*") if p.is_file() and p != path and "__pycache__" not in p.parts]
        found = {p.relative_to(path.parent).as_posix(): base64_digest(p.read_bytes()) for p in files}
        if stated != found:
            raise NotPublishable(f"{path.relative_to(folder)}: its digests are not those of the files; export again")


# -- the upload --


def publish(folder: Path, repository: str, private: bool = False, say: Callable[[str], None] = print) -> Publication:
    """Upload an export to a kernel repository of the Hub, which is created if it is missing."""
    checked = check_publishable(folder, repository)
    try:
        from huggingface_hub import CommitOperationAdd, HfApi, get_token
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise NotPublishable("publishing needs huggingface_hub: pip install 'tilewright[hub]'") from None
    if get_token() is None:
        raise NotPublishable("no token for the Hub is set; log in with `hf auth login`, or set HF_TOKEN")
    api = HfApi()
    message = f"Export of {checked.run} by tilewright"
    try:
        say(f"making {repository}")
        url = api.create_repo(repository, repo_type="kernel", private=private, exist_ok=True)
        api.create_branch(repository, repo_type="kernel", branch=VERSION_BRANCH, exist_ok=True)
        for revision in ("main", VERSION_BRANCH):  # `kernels` reads version 1 from the branch v1
            say(f"uploading {len(checked.files)} files to {revision}")
            files = [CommitOperationAdd(path_in_repo=path, path_or_fileobj=folder / path) for path in checked.files]
            api.create_commit(repository, files, commit_message=message, repo_type="kernel", revision=revision)
    except (HfHubHTTPError, ValueError) as error:
        raise HubFailed(f"the Hub refused it: {_without_secrets(str(error))}") from None
    except OSError as error:
        raise HubFailed(f"the Hub cannot be reached: {_without_secrets(str(error))}") from None
    return replace(checked, uploaded=True, address=str(url))


def _without_secrets(text: str) -> str:
    shown = _SECRETS.sub(b"...", text.encode("utf-8", "replace")).decode("utf-8", "replace")
    for name in _SECRET_VARIABLES:
        value = os.environ.get(name, "")
        shown = shown.replace(value, "...") if len(value) >= 8 else shown
    return " ".join(shown.split())[:500]
