"""The pages in a real browser: Debian's chromium, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.frontends.report.served import add, made, serving
from tests.frontends.report.test_view import at, hostile
from tests.store.records_for_store import attempt

BROWSER = shutil.which("chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")]


def seen(url: str, tmp_path: Path, milliseconds: int = 3000) -> str:
    """The document after so much of the page's own time."""
    assert BROWSER is not None
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom")
    done = subprocess.run(
        [BROWSER, *options, f"--virtual-time-budget={milliseconds}", url], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_runs_and_what_others_wrote_does_not(tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = hostile(home)
    with serving(home) as client:
        listed = seen(f"{client.root}/index.html", tmp_path)
        page = seen(f"{client.root}{at(folder, 'attempt-1.html')}", tmp_path)
    for html in (listed, page):
        title = re.search("<title>(.*?)</title>", html)
        assert title is not None
        assert title[1] != "taken"
        assert "<img" not in html


def test_a_run_under_way_is_followed_without_a_reload(tmp_path: Path) -> None:
    folder = made(tmp_path / "home", attempt(1, 20.0))
    with serving(tmp_path / "home") as client, folder.lock():
        site, asked = client.server.site, []
        html_now = site.html

        def html_of(address: str, query: Mapping[str, str]) -> str:
            asked.append(address)
            if len(asked) == 2:  # the browser has the page, and looks again
                add(folder, attempt(2, 9.0), "// faster\n")
            return html_now(address, query)

        site.html = html_of  # type: ignore[method-assign]
        html = seen(f"{client.root}{at(folder)}", tmp_path, 8000)
    assert "attempt-2.html" in parsed_links(html)
    assert "up to date" in html


def parsed_links(html: str) -> list[str]:
    return re.findall(r'href="([^"]*)"', html)
