"""`tilewright view`: from arguments to a server that runs until it is interrupted, or to a folder of files."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tilewright.frontends.kernel_arguments import BadArgument
from tilewright.frontends.terminal import progress
from tilewright.frontends.view.server import LOOPBACK, ViewServer, encoded, static_files
from tilewright.frontends.view.shelf import Shelf, chosen
from tilewright.frontends.view.site import Site
from tilewright.store import Store

_LEAST_TOKEN = 12  # characters; fewer can be tried out


@dataclass(frozen=True)
class ViewOptions:
    host: str
    port: int
    token: str
    export: Path | None
    browser: bool


def view(what: str | None, options: ViewOptions) -> None:
    """Serve what is named until Ctrl-C, or write it as files."""
    shelf = Shelf(chosen(what, Store()))
    if options.export is not None:
        count = export_site(shelf, options.export)
        print(f"wrote {count} pages; open {options.export / unquote(Site(shelf, served=False, counts=False).home)}")
        return
    with listening(shelf, options) as server:
        print(f"serving at {server.url} until Ctrl-C", flush=True)
        if options.browser and _has_browser():
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):  # which is how it is ended
            server.serve_forever()


def listening(shelf: Shelf, options: ViewOptions) -> ViewServer:
    """A server that has its port, and does not serve yet."""
    if options.host not in LOOPBACK and not options.token:
        raise BadArgument(f"--host {options.host}: others could read everything there; give a --token of your own too")
    if options.token and len(options.token) < _LEAST_TOKEN:
        raise BadArgument(f"--token: it can be tried out; give one of at least {_LEAST_TOKEN} characters")
    try:
        return ViewServer(Site(shelf, served=True, counts=True), options.host, options.port, options.token)
    except OverflowError:
        raise BadArgument(f"--port {options.port}: ports go up to 65535") from None
    except OSError as error:
        remedy = (
            "give another --port, or 0 for any" if error.errno == errno.EADDRINUSE else "give another --host or --port"
        )
        raise BadArgument(f"{options.host}:{options.port}: {error.strerror}; {remedy}") from None


def _has_browser() -> bool:
    """Whether a window can be opened; a browser within the terminal would only be in the way."""
    return sys.stdout.isatty() and bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def export_site(shelf: Shelf, folder: Path) -> int:
    """Write every page; of one run with what each line of its kernels does. Returns how many pages there are."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadArgument(f"--export {folder}: it is there already; give a new folder")
    if not shelf.choice.suite and not shelf.choice.folders():
        raise BadArgument("--export: there is no run to write")
    site = Site(shelf, served=False, counts=bool(shelf.choice.run))
    written = 0
    with progress() as say:
        for address in site.addresses():
            say(f"writing {address}")
            place = folder / unquote(address, errors="surrogateescape")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(encoded(site.page(address, {})))
            written += 1
    for name, content in static_files().items():
        (folder / name).write_bytes(content)
    return written
