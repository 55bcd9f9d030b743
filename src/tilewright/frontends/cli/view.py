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
from functools import cache
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from socket import AF_INET6, gethostname
from typing import Annotated, Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import typer

from tilewright import __version__
from tilewright.frontends.cli import terminal
from tilewright.frontends.report import run_report, runs
from tilewright.frontends.report.document import Mark, Source, Tone, say, say_each
from tilewright.frontends.report.finished import answer_blocks, finished, made_by_run
from tilewright.frontends.report.lesson import lesson_of
from tilewright.frontends.report.pictures import svg_plot
from tilewright.frontends.report.rendering import POLICY, encoded, markdown, pictures_folder, render, write_page
from tilewright.frontends.report.site import Shelf, Site, chosen
from tilewright.records import Attempt, Run
from tilewright.store import NEWEST, RunFolder, Store, StoreError, line_authors, provenance_of, write_text
from tilewright.store.attempt_folder import KERNEL
from tilewright.tasks.errors import BadArgument


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


_EVERYWHERE = ("0.0.0.0", "::")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_FILES = {"style.css": "text/css", "view.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}
_IDLE_SECONDS = 30.0
_LEAST_TOKEN = 12  # characters; shorter ones can be guessed


@cache
def static_files() -> dict[str, bytes]:
    """The script and the styles, by name."""
    folder = resources.files("tilewright.frontends.report") / "static"
    return {name: (folder / name).read_bytes() for name in _FILES}


class ViewServer(ThreadingHTTPServer):
    """Serves one site. `token` is needed by everybody where one is given."""

    daemon_threads = True

    def __init__(self, site: Site, host: str, port: int, token: str) -> None:
        self.site = site
        self.token = token
        self.session = secrets.token_urlsafe(32)  # what a browser that knew the token is known by
        self.host = host
        if ":" in host:
            self.address_family = AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Of the page to begin with."""
        host = gethostname() if self.host in _EVERYWHERE else f"[{self.host}]" if ":" in self.host else self.host
        query = f"?{urlencode({'token': self.token})}" if self.token else ""
        return f"http://{host}:{self.port}/{self.site.home}{query}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news; anything else is a fault of ours, and shows its traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tilewright", ""
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(asked.query, errors="replace").items()}
        if not self._host_is_ours():
            self._refuse(HTTPStatus.FORBIDDEN, "this server does not go by that name")
        elif self.server.token and "token" in query:
            self._admit(asked.path, query)
        elif not self._is_admitted():
            said = "open the address that `tilewright view` printed, which has the token in it"
            self._refuse(HTTPStatus.UNAUTHORIZED, said)
        elif asked.path == "/":
            self._redirect(f"/{self.server.site.home}")
        else:
            self._answer(asked.path.lstrip("/"), query)

    do_HEAD = do_GET

    def _host_is_ours(self) -> bool:
        """Any name will do where a token is needed: a browser shows no site another's cookie."""
        with contextlib.suppress(ValueError):
            named = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            return bool(self.server.token) or named in LOOPBACK
        return False

    @property
    def _cookie(self) -> str:
        return f"tilewright-{self.server.port}"  # cookies are shared by the ports of a host

    def _is_admitted(self) -> bool:
        if not self.server.token:
            return True
        with contextlib.suppress(CookieError):
            given = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
            return given is not None and _same(given.value, self.server.session)
        return False

    def _admit(self, path: str, query: dict[str, str]) -> None:
        """The token was in the address: from now on it is a cookie, and gone from the address."""
        if not _same(query.pop("token"), self.server.token):
            self._refuse(HTTPStatus.UNAUTHORIZED, "the token is another one")
            return
        cookie = f"{self._cookie}={self.server.session}; HttpOnly; SameSite=Strict; Path=/"
        self._redirect(f"/{path.lstrip('/')}" + (f"?{urlencode(query)}" if query else ""), Set_Cookie=cookie)

    def _answer(self, address: str, query: dict[str, str]) -> None:
        if address in _FILES:
            self._send(HTTPStatus.OK, static_files()[address], _FILES[address])
            return
        if address.endswith("/"):
            address += "index.html"
        try:
            stamp = repr((__version__, self.server.session, address, query, self.server.site.stamp(address)))
            tag = f'"{hashlib.sha256(stamp.encode("utf-8", "replace")).hexdigest()[:32]}"'
            if self.headers.get("If-None-Match") == tag:
                self._send(HTTPStatus.NOT_MODIFIED, ETag=tag)
                return
            page = self.server.site.page(address, query)
        except BadArgument as problem:
            self._refuse(HTTPStatus.NOT_FOUND, str(problem))
        except (StoreError, OSError) as problem:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(problem))
        except Exception as fault:  # one page that cannot be made must not end the others
            traceback.print_exc()
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"this page cannot be made: {fault}")
        else:
            self._send(HTTPStatus.OK, encoded(page), ETag=tag)

    def _redirect(self, address: str, **headers: str) -> None:
        self._send(HTTPStatus.SEE_OTHER, b"", "text/html", Location=address, **headers)

    def _refuse(self, status: HTTPStatus, problem: str) -> None:
        """With a page that knows nothing of the site, so that anybody may see it."""
        nowhere: dict[str, Any] = {"up": "/", "poll_ms": None, "served": False, "suite_viewed": False}
        self._send(status, encoded(render("missing", title=status.phrase, problem=problem, policy=POLICY, **nowhere)))

    def _send(self, status: HTTPStatus, body: bytes = b"", /, kind: str = "text/html", **headers: str) -> None:
        self.send_response(status)
        lengths = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**headers, **lengths, **_HEADERS}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads a log of pages looked at."""


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode("utf-8", "replace"))


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
    host: Annotated[
        str, typer.Option(help="Address to serve at; any but this machine's own needs --token.")
    ] = "127.0.0.1",
    token: Annotated[
        str,
        typer.Option(
            envvar="TILEWRIGHT_VIEW_TOKEN", help="Token that a browser must give, in the address that is printed."
        ),
    ] = "",
    export: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the pages as files instead.")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no window.")] = False,
) -> None:
    """Serve pages on which runs can be watched and kernels compared, to a browser on this machine."""
    shelf = Shelf(chosen(what, Store()))
    if export is not None:
        count = export_site(shelf, export)
        print(f"wrote {count} pages; open {export / unquote(Site(shelf, served=False, counts=False).home)}")
        return
    with listening(shelf, host, port, token) as server:
        print(f"serving at {server.url} until Ctrl-C", flush=True)
        has_window = sys.stdout.isatty() and bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
        if has_window and not no_browser:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):  # which is how it is ended
            server.serve_forever()


def listening(shelf: Shelf, host: str = LOOPBACK[0], port: int = 0, token: str = "") -> ViewServer:
    """A server that has its port, and does not serve yet."""
    if host not in LOOPBACK and not token:
        raise BadArgument(f"--host {host}: others could read everything there; give a --token of your own too")
    if token and len(token) < _LEAST_TOKEN:
        raise BadArgument(f"--token: it can be guessed; give one of at least {_LEAST_TOKEN} characters")
    try:
        return ViewServer(Site(shelf, served=True, counts=True), host, port, token)
    except OverflowError:
        raise BadArgument(f"--port {port}: ports go up to 65535") from None
    except OSError as error:
        remedy = "give another --port, or 0" if error.errno == errno.EADDRINUSE else "give another --host or --port"
        raise BadArgument(f"{host}:{port}: {error.strerror}; {remedy}") from None


def export_site(shelf: Shelf, folder: Path) -> int:
    """Write every page; of one run with what each line of its kernels does. Returns how many pages there are."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadArgument(f"--export {folder}: it is there already; give a new folder")
    if not shelf.choice.suite and not shelf.choice.folders():
        raise BadArgument("--export: there is no run to write")
    site = Site(shelf, served=False, counts=bool(shelf.choice.run))
    written = 0
    with terminal.progress() as say:
        for address in site.addresses():
            say(f"writing {address}")
            place = folder / unquote(address, errors="surrogateescape")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(encoded(site.page(address, {})))
            written += 1
    for name, content in static_files().items():
        (folder / name).write_bytes(content)
    return written


def explain(
    run: terminal.RunArgument = NEWEST,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="FILE.html, all in one; or FILE.md, with its pictures."),
    ] = None,
) -> None:
    """Explain a run as a lesson for beginners in CUDA: why each step was taken and what it gained, with exercises."""
    terminal.check_writable("-o", output, ".md", ".html")
    is_markdown = output is not None and output.suffix.lower() in (".md", ".markdown")
    if output is not None and is_markdown and (place := pictures_folder(output)).is_file():
        raise BadArgument(f"-o {output}: its pictures go to {place}, which is a file; give another name")
    folder = Store().open_run(run)
    done = folder.load()
    if not done.attempts:
        raise BadArgument(f"run {done.id} has no finished attempt, so there is nothing to explain yet")
    with terminal.progress() as say:
        called, place_words = name_and_place(folder, run, output)
        lesson = lesson_of(folder, done, called, say, place_words)
    if output is None:
        terminal.print_exactly(markdown(lesson, None))
        return
    count = write_page(lesson, output)
    print(f"wrote {output}" + (f" and {count} pictures in {pictures_folder(output)}" if count else ""))


def name_and_place(folder: RunFolder, name: str, output: Path | None) -> tuple[str, str]:
    """How commands name the run, and where: a folder is found from beside the lesson, a name from anywhere."""
    if folder.path != Path(name):
        return folder.path.name, ""
    if folder.path.is_absolute():
        return name, ""
    if output is None:
        return name, f"in the folder {Path.cwd()}"
    return os.path.relpath(folder.path.resolve(), output.resolve().parent), "in the folder that this lesson is in"
