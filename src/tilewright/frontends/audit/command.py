"""`tilewright audit`: from arguments to one record, and the record to a terminal, JSON, Markdown or one HTML file.

`--improve` hands the kernel on to the loop, with what was found as the first hint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.frontends.audit.auditing import audit
from tilewright.frontends.audit.pages import audit_page
from tilewright.frontends.audit.report import Audit
from tilewright.frontends.audit.subject import Asked, Subject
from tilewright.frontends.audit.words import hint_words, show_audit
from tilewright.frontends.choices import choose_device
from tilewright.frontends.explain.command import check_page, write_page
from tilewright.frontends.file_task import argument_words
from tilewright.frontends.imported_checks import ADAPTED
from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.make import Delivery, check_output, make_run
from tilewright.frontends.terminal import print_json, progress, stdout_console
from tilewright.records import Settings
from tilewright.store import Request


@dataclass(frozen=True)
class Renderings:
    """How it is told; a page is written beside what is printed."""

    as_json: bool
    markdown: Path | None
    html: Path | None


@dataclass(frozen=True)
class Improvement:
    """Who is to improve the kernel, within which budget, and where the better one goes."""

    settings: Settings
    delivery: Delivery


def audit_command(
    asked: Asked, gpu: str | None, spool: str, renderings: Renderings, improvement: Improvement | None
) -> int:
    """Returns the exit status, of the audit or of the run that improves it."""
    if improvement is not None:
        _refuse(asked, renderings, improvement)
    pages = [path for path in (renderings.markdown, renderings.html) if path is not None]
    for path in pages:
        is_markdown = path is renderings.markdown
        check_page(path, (".md",) if is_markdown else (".html",), "--markdown" if is_markdown else "--html")
    device = choose_device(gpu, spool)
    with progress() as say:
        found, subject = audit(asked, device, say)
    for path in pages:
        write_page(audit_page(found, subject.file.text), path)
    if renderings.as_json:
        print_json(found)
    else:
        show_audit(stdout_console(), found)
        for path in pages:
            print(f"wrote {path}")
    if improvement is None:
        return found.exit_status
    _improve(asked, found, subject, gpu, improvement)
    return 0


# -- and then --


def _refuse(asked: Asked, renderings: Renderings, improvement: Improvement) -> None:
    """What cannot be improved is refused before anything is audited."""
    if asked.reference is None and asked.file.suffix != ".py":
        raise BadArgument("--improve needs to know what is right; give --reference FILE.py:FUNCTION")
    if renderings.as_json:
        raise BadArgument("--json and --improve would print two records; drop one, and see the run's with show --json")
    check_output(improvement.delivery.output)


def _improve(asked: Asked, found: Audit, subject: Subject, gpu: str | None, improvement: Improvement) -> None:
    shapes, numbers = argument_words(subject.arguments)
    if subject.reference:
        request = Request(subject.reference, shapes, numbers, function=ADAPTED)
    elif asked.reference is not None:
        path, function = asked.reference
        request = Request(f"{path}:{function}", shapes, numbers)
    else:
        raise BadArgument(f"--improve: {asked.file} says nowhere what is right; give --reference FILE.py:FUNCTION")
    settings = replace(improvement.settings, start=subject.file.text, hints=((0, hint_words(found)),))
    make_run(request, settings, gpu, False, False, improvement.delivery)
