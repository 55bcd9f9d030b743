"""Publishing: an upload to a server that speaks the Hub's API, and everything that is refused before it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.exports.hub_server import Hub

from tilewright.exports.cuda_project import Target, export
from tilewright.exports.publish import check_publishable, checked_repository
from tilewright.exports.source import Source, Standing
from tilewright.exports.writing import RECORD, NotPublishable
from tilewright.frontends.cli.export import publish as publish_command
from tilewright.records import Provenance

pytest.importorskip("huggingface_hub")
TOKEN = "hf_" + "x" * 34


@pytest.fixture(scope="module")
def exported(small_source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hub project of a kernel that a referee has passed."""
    kernel = small_source.files[0].identity[:20]
    provenance = Provenance(
        op="row_scale",
        kernel=kernel,
        task_hash="t" * 20,
        run="row-scale-ab12",
        created="2026-01-01T00:00:00+00:00",
        tilewright="0.1.0",
        licence="Apache-2.0",
        contributions=(),
        verified_on=("H200",),
        right_cases=12,
        worst_error=0.5,
        measurement=None,
    )
    source = replace(small_source, standing=Standing.VERIFIED, provenance=provenance, licence="Apache-2.0")
    folder = tmp_path_factory.mktemp("publish") / "row-scale"
    export(source, Target.HUB, folder, "row_scale")
    return folder


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "row-scale"))


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    yield server
    server.close()


def publish(folder: Path, hub: Hub, home: Path, *more: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: huggingface_hub reads the Hub's address when it is imported."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    environment = {**kept, **settings, **({"HF_TOKEN": token} if token else {})}
    command = [sys.executable, "-m", "tilewright", "publish", str(folder), "--to", "somebody/row-scale", *more]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_licence_that_the_export_does_not_state_is_refused(copy: Path) -> None:
    for stated, said in (("Apache-2.0", "state Apache-2.0"), ("NOASSERTION", "nobody has stated one")):
        edit_record(copy, lambda record, stated=stated: record.update(licence=stated))
        with pytest.raises(
            NotPublishable, match=rf"--license MIT: .* is an export, whose files .*{said}.*export it again"
        ):
            publish_command(str(copy), "somebody/row-scale", True, False, "MIT", False)


def test_uploads_everything_to_main_and_to_its_version(exported: Path, hub: Hub, tmp_path: Path) -> None:
    done = publish(exported, hub, tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["uploaded"] is True
    assert hub.repositories["somebody/row-scale"]["type"] == "kernel"
    assert hub.branches == {"v1"}
    wanted = {
        path.relative_to(exported).as_posix(): path.read_bytes()
        for path in exported.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert hub.commits["main"] == hub.commits["v1"] == wanted
    assert any(content[:4] == b"\x7fELF" for content in hub.objects.values())  # large files went as such
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_dry_run_sends_nothing(exported: Path, hub: Hub, tmp_path: Path) -> None:
    done = publish(exported, hub, tmp_path, "--dry-run", token="")
    assert done.returncode == 0, done.stderr
    assert hub.asked == []
    assert "build/torch-cuda/metadata.json" in done.stdout
    assert "would go to somebody/row-scale" in done.stdout


@pytest.mark.slow
def test_what_the_hub_refuses_is_said_without_the_token(exported: Path, hub: Hub, tmp_path: Path) -> None:
    hub.refuse = 403
    done = publish(exported, hub, tmp_path)
    assert done.returncode == 3
    assert "the Hub refused it" in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_a_token_it_says_what_to_do(exported: Path, hub: Hub, tmp_path: Path) -> None:
    done = publish(exported, hub, tmp_path, token="")
    assert done.returncode == 2
    assert "set HF_TOKEN" in done.stderr
    assert hub.asked == []


# -- what is refused --


def record_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / RECORD).read_text())
    return found


def edit_record(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = record_of(folder)
    change(record)
    (folder / RECORD).write_text(json.dumps(record))


def put(folder: Path, path: str, content: bytes) -> None:
    """A file that the record knows."""
    (folder / path).write_bytes(content)
    edit_record(folder, lambda record: record["files"].update({path: hashlib.sha256(content).hexdigest()}))


def edited_kernel(folder: Path) -> None:
    path = "torch-ext/row_scale/kernels/row_scale.cu"
    put(folder, path, (folder / path).read_bytes() + b"// faster\n")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "provisional": (lambda f: edit_record(f, lambda r: r.update(standing="provisional")), "judged nowhere"),
    "failed": (lambda f: edit_record(f, lambda r: r.update(standing="failed")), "the referee rejected it"),
    "unjudged": (lambda f: edit_record(f, lambda r: r.update(standing="unjudged")), "no run has judged"),
    "edited": (lambda f: edit_record(f, lambda r: r.update(standing="edited")), "changed by hand"),
    "no standing": (lambda f: edit_record(f, lambda r: r.pop("standing")), "has no verification status"),
    "no provenance": (lambda f: edit_record(f, lambda r: r.update(provenance=None)), "has no provenance"),
    "earlier": (lambda f: edit_record(f, lambda r: r["provenance"].pop("unjudged")), "--start FILE.cu --attempts 1"),
    "unverified": (lambda f: edit_record(f, lambda r: r["provenance"].update(verified_on=[])), "does not say that it"),
    "another kernel": (edited_kernel, "not the ones that were exported"),
    "no licence": (lambda f: edit_record(f, lambda r: r.update(licence="NOASSERTION")), "stated the kernel's licence"),
    "changed file": (lambda f: (f / "CARD.md").write_text("faster"), "CARD.md was changed since"),
    "missing file": (lambda f: (f / "CARD.md").unlink(), "CARD.md is missing"),
    "strange file": (lambda f: (f / "notes.txt").write_text("x"), "notes.txt is not of the export"),
    "link": (lambda f: (f / "passwd").symlink_to("/etc/passwd"), "symbolic link"),
    "link to a folder": (lambda f: (f / "etc").symlink_to("/etc"), "symbolic link"),
    "traversal": (lambda f: edit_record(f, lambda r: r["files"].update({"../x": "0"})), "no path inside"),
    "absolute": (lambda f: edit_record(f, lambda r: r["files"].update({"/etc/passwd": "0"})), "no path inside"),
    "huge": (lambda f: os.truncate(f / "README.md", 65 << 20), "the limit is"),
    "secret": (lambda f: put(f, "README.md", b"one\ntoken = " + TOKEN.encode()), "README.md: line 2 looks like a key"),
    "no digest": (lambda f: edit_record(f, lambda r: r["files"].update({"CARD.md": None})), "no digest of CARD.md"),
    "another export": (lambda f: edit_record(f, lambda r: r.update(to="torch")), "takes one --to hub"),
    "no record": (lambda f: (f / RECORD).unlink(), "no export of tilewright"),
    "broken record": (lambda f: (f / RECORD).write_text("{"), "no export of tilewright"),
    "wrong variant": (
        lambda f: put(f, "build/torch-cpu/reference.py", b"def row_scale(*a): return a"),
        "digests are not those of the files",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_is_refused(what: str, copy: Path) -> None:
    change, reason = REFUSED[what]
    assert check_publishable(copy, "somebody/row-scale").files
    change(copy)
    with pytest.raises(NotPublishable, match=reason) as refusal:
        check_publishable(copy, "somebody/row-scale")
    assert TOKEN not in str(refusal.value)


@pytest.mark.parametrize("name", ["row-scale", "a/b/c", "../x", "a/..", "/a/b", "a b/c", "a/b.git", "a/--b", "a/b\n"])
def test_repositories_have_plain_names(name: str) -> None:
    with pytest.raises(NotPublishable, match="write USER/NAME"):
        checked_repository(name)
