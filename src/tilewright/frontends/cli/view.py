"""`tilewright runs`, `show`, `view` and `explain`: runs on record as text, JSON, pages in a browser, or a lesson."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import sys
import traceback
import webbrowser
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from socket import AF_INET6, gethostname
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import typer

from tilewright.frontends.cli import terminal
from tilewright.frontends.report import run_report, runs
from tilewright.frontends.report.document import Document, Mark, Section, Source, Tone, say, say_each
from tilewright.frontends.report.finished import answer_blocks, finished, made_by_run
from tilewright.frontends.report.lesson import lesson_of
from tilewright.frontends.report.pictures import svg_plot
from tilewright.frontends.report.rendering import POLICY, encoded, markdown, pictures_folder, whole_page, write_page
from tilewright.frontends.report.site import Choice, Site, chosen
from tilewright.records import Attempt, Run
from tilewright.store import NEWEST, RunFolder, Store, StoreError, line_authors, provenance_of, write_text
from tilewright.store.attempt_folder import KERNEL
from tilewright.tasks.errors import BadArgument

LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class ShowReport:
    run: Run
    folder: str
    best: int | None
    kernel: str  # text of the best kernel; "" where none passed


@dataclass(frozen=True)
class AttemptReport:
    """What `show --attempt N --json` prints, and `--kernel`, `--diff N`, `--prompt N`, `--reply N` with it."""

    run: str
    attempt: Attempt
    kernel: str
    diff: str
    prompts: tuple[str, ...]
    replies: tuple[str, ...]


def runs_command(as_json: terminal.JsonOption = False) -> None:
    """List the runs of this machine, newest first."""
    listing = Store().runs()
    terminal.deliver(listing, as_json, run_report.runs_report(listing, terminal.stdout_console().width))


def show(
    run: terminal.RunArgument = NEWEST,
    number: Annotated[
        int | None,
        typer.Argument(metavar="N", min=1, help="One of its attempts, by number, in full.", show_default=False),
    ] = None,
    kernel: Annotated[bool, typer.Option("--kernel", help="Print the best kernel file.")] = False,
    attempt: Annotated[int | None, typer.Option(metavar="N", help="One attempt in full, as `show RUN N`.")] = None,
    diff: Annotated[int | None, typer.Option(metavar="N", help="What attempt N changed.")] = None,
    prompt: Annotated[
        int | None, typer.Option(metavar="N", help="The prompt of attempt N; 0: of the specification of words.")
    ] = None,
    reply: Annotated[
        int | None, typer.Option(metavar="N", help="The reply in attempt N; 0: with the specification of words.")
    ] = None,
    provenance: Annotated[bool, typer.Option("--provenance", help="Who wrote which line of the best kernel.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Write the progress as a picture.")] = None,
    as_json: terminal.JsonOption = False,
) -> None:
    """Show a run: its task, a table of attempts and its progress; or a part of it, such as attempt N."""
    if number is not None and attempt not in (None, number):
        raise BadArgument(f"attempt {number} and --attempt {attempt} are two; give one of them")
    numbers = {"attempt": number or attempt, "diff": diff, "prompt": prompt, "reply": reply}
    parts = [name for name, one in numbers.items() if one is not None]
    parts += ["kernel"] * kernel + ["provenance"] * provenance
    if len(parts) > 1:
        raise BadArgument("--kernel, --provenance, --attempt, --diff, --prompt and --reply: give one of them")
    terminal.check_writable("--plot", plot, ".svg")
    folder = Store().open_run(run)
    loaded = folder.load()
    if plot is not None:
        write_text(plot, svg_plot(loaded))
    part = next(iter(parts), "")
    at = next((one for one in numbers.values() if one is not None), None)
    if as_json:
        terminal.print_json(_part_record(folder, loaded, part, at))
    elif part:
        _print_part(folder, loaded, part, at or 0)
    elif plot is None:
        _print_whole(folder, loaded)
    else:
        print(f"wrote {plot}")


def _print_whole(folder: RunFolder, run: Run) -> None:
    terminal.display(run_report.run_report(run, folder.worker))
    if run.best is None:
        return
    path = folder.attempt(run.best.number).path / KERNEL
    made, there = made_by_run(run, path, folder.request()), []
    if backward := Store().library.backward_of(run.task.hash):
        made = replace(made, backward=(backward.task(), backward.path))
        there = [say(f"backward kernel: {runs.entry_words(backward.entry)}")]
    terminal.display([say(""), say(Mark(f"kernel: {path}")), *answer_blocks(finished(made)), *there])
    terminal.display(say_each([runs.waiting_words(run)], Tone.FAIR))


def _part_record(folder: RunFolder, run: Run, part: str, number: int | None) -> object:
    if part == "provenance":
        runs.best_of(run)
        return provenance_of(folder)
    if part == "kernel":
        number = runs.best_of(run).number
    if number is None:
        best = run.best
        kernel = folder.attempt(best.number).text(KERNEL) if best else ""
        return ShowReport(run, str(folder.path), best.number if best else None, kernel)
    attempt, place = runs.attempt_of(run, number), folder.attempt(number)
    texts = place.find_text(KERNEL) or "", run_report.diff_text(folder, attempt)
    replies = tuple(reply.text for reply in place.replies())
    return AttemptReport(run.id, attempt, *texts, run_report.prompts_of(folder, number), replies)


def _print_part(folder: RunFolder, run: Run, part: str, number: int) -> None:
    place = folder.attempt(number)
    if part in ("kernel", "provenance"):
        best = runs.best_of(run)
        kernel = folder.attempt(best.number).text(KERNEL)
        if part == "kernel":
            terminal.print_exactly(kernel)
        else:
            authors = line_authors(folder, run, best)
            terminal.display(run_report.provenance_report(provenance_of(folder), authors, kernel))
    elif part == "diff":
        terminal.display([Source(run_report.diff_text(folder, runs.attempt_of(run, number)), "diff")])
    elif part == "prompt":
        if not (prompts := run_report.prompts_of(folder, number)):
            raise BadArgument(f"attempt {number} of {run.id} asked no model")
        terminal.print_exactly("\n".join(prompts))
    elif part == "reply":
        if not (replies := place.replies()):
            raise BadArgument(f"attempt {number} of {run.id} has no reply of a model")
        terminal.print_exactly("\n".join(f"{reply.text.rstrip()}\n" for reply in replies))
    else:
        attempt = runs.attempt_of(run, number)
        terminal.display(run_report.attempt_report(run, attempt, place.find_text(KERNEL) or ""))


_FILES = {"style.css": "text/css", "view.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
}


class ViewServer(ThreadingHTTPServer):
    """Serves one site below an address that begins with a token, which other users of this machine do not know."""

    daemon_threads = True

    def __init__(self, site: Site, host: str, port: int) -> None:
        self.site, self.token = site, secrets.token_urlsafe(16)
        if ":" in host:
            self.address_family = AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """Of the page to begin with."""
        host, port = str(self.server_address[0]), int(self.server_address[1])
        host = gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/{self.token}/{self.site.home}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news; anything else is a fault of ours, and shows its traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tilewright", ""
    timeout = 30.0

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(asked.query, errors="replace").items()}
        token, _, address = asked.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "open the address that `tilewright view` printed")
        elif address in _FILES:
            content = (resources.files("tilewright.frontends.report") / "static" / address).read_bytes()
            self._send(HTTPStatus.OK, content, _FILES[address])
        else:
            self._answer(address, query)

    do_HEAD = do_GET

    def _answer(self, address: str, query: dict[str, str]) -> None:
        try:
            page = encoded(self.server.site.html(address, query))
        except BadArgument as problem:
            self._refuse(HTTPStatus.NOT_FOUND, str(problem))
        except (StoreError, OSError) as problem:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(problem))
        except Exception as fault:  # one page that cannot be made must not end the others
            traceback.print_exc()
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"this page cannot be made: {fault}")
        else:
            tag = f'"{hashlib.sha256(page).hexdigest()[:32]}"'
            if self.headers.get("If-None-Match") == tag:
                self._send(HTTPStatus.NOT_MODIFIED, ETag=tag)
            else:
                self._send(HTTPStatus.OK, page, ETag=tag)

    def _refuse(self, status: HTTPStatus, problem: str) -> None:
        """With a page that knows nothing of the site, so that anybody may see it."""
        self._send(status, encoded(whole_page(Document(status.phrase, (Section("", (say(problem),)),)))))

    def _send(self, status: HTTPStatus, body: bytes = b"", /, kind: str = "text/html", **headers: str) -> None:
        self.send_response(status)
        lengths = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**headers, **lengths, **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads a log of pages looked at."""


def view(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|DIR",
            help="A run, a suite's folder or a folder of runs; all runs of this machine where it is left out.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve at; 0 for any that is free.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to serve at; who has the printed link sees the pages.")] = LOCAL,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no window.")] = False,
) -> None:
    """Serve pages on which runs can be watched and kernels compared, to a browser."""
    with listening(chosen(what, Store()), host, port) as server:
        print(f"serving at {server.url} until Ctrl-C", flush=True)
        has_window = sys.stdout.isatty() and bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
        if has_window and not no_browser:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):  # which is how it is ended
            server.serve_forever()


def listening(choice: Choice, host: str = LOCAL, port: int = 0) -> ViewServer:
    """A server that has its port, and does not serve yet."""
    try:
        return ViewServer(Site(choice), host, port)
    except OSError as error:
        remedy = "give another --port, or 0" if error.errno == errno.EADDRINUSE else "give another --host or --port"
        raise BadArgument(f"{host}:{port}: {error.strerror}; {remedy}") from None


def explain(
    run: terminal.RunArgument = NEWEST,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="FILE.html, all in one; or FILE.md, with its pictures."),
    ] = None,
) -> None:
    """Explain a run as a lesson for beginners in CUDA: why each step was taken and what it gained."""
    terminal.check_writable("-o", output, ".md", ".html")
    is_markdown = output is not None and output.suffix.lower() in (".md", ".markdown")
    if output is not None and is_markdown and (place := pictures_folder(output)).is_file():
        raise BadArgument(f"-o {output}: its pictures go to {place}, which is a file; give another name")
    folder = Store().open_run(run)
    done = folder.load()
    if not done.attempts:
        raise BadArgument(f"run {done.id} has no finished attempt, so there is nothing to explain yet")
    with terminal.progress() as progress:
        lesson = lesson_of(folder, done, progress)
    if output is None:
        terminal.print_exactly(markdown(lesson, None))
        return
    count = write_page(lesson, output)
    print(f"wrote {output}" + (f" and {count} pictures in {pictures_folder(output)}" if count else ""))
