"""`tilewright audit`: from arguments to one record, and the record to a terminal, JSON, Markdown or one HTML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.frontends.audit.auditing import audit
from tilewright.frontends.audit.pages import audit_page
from tilewright.frontends.audit.subject import Asked
from tilewright.frontends.audit.words import show_audit
from tilewright.frontends.choices import choose_device
from tilewright.frontends.explain.command import check_page, write_page
from tilewright.frontends.terminal import print_json, progress, stdout_console


@dataclass(frozen=True)
class Renderings:
    """How it is told; a page is written beside what is printed."""

    as_json: bool
    markdown: Path | None
    html: Path | None


def audit_command(asked: Asked, gpu: str | None, spool: str, renderings: Renderings) -> int:
    """Returns the exit status."""
    pages = [
        (path, endings, option)
        for path, endings, option in (
            (renderings.markdown, (".md",), "--markdown"),
            (renderings.html, (".html",), "--html"),
        )
        if path is not None
    ]
    for path, endings, option in pages:
        check_page(path, endings, option)
    device = choose_device(gpu, spool)
    with progress() as say:
        found, subject = audit(asked, device, say)
    for path, _, _ in pages:
        write_page(audit_page(found, subject.file.text), path)
    if renderings.as_json:
        print_json(found)
    else:
        show_audit(stdout_console(), found)
        for path, _, _ in pages:
            print(f"wrote {path}")
    return found.exit_status
