"""The pages in a real browser: Debian's chromium, where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.frontends.in_process import tilewright
from tests.frontends.report.served import add, made, parsed, serving
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


def shown_count(html: str, table: str) -> str:
    found = re.search(rf'data-shown="{table}"[^>]*>([^<]*)<', html)
    assert found is not None
    return found[1]


def test_the_script_runs_and_what_others_wrote_does_not(tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = hostile(home)
    with serving(home) as client:
        origin = f"http://127.0.0.1:{client.server.port}"
        listed = seen(f"{origin}/", tmp_path)
        page = seen(f"{origin}{at(folder, 'attempt-1.html')}", tmp_path)
    assert shown_count(listed, "runs") == "1"
    for html in (listed, page):
        title = re.search("<title>(.*?)</title>", html)
        assert title is not None
        assert title[1] != "taken"
        assert "<img" not in html


def test_a_run_under_way_is_followed_without_a_reload(tmp_path: Path) -> None:
    folder = made(tmp_path / "home", attempt(1, 20.0))
    with serving(tmp_path / "home") as client, folder.lock():
        site, asked = client.server.site, []
        stamp_now = site.stamp

        def stamp(address: str) -> object:
            asked.append(address)
            if len(asked) == 2:  # the browser has the page, and looks again
                add(folder, attempt(2, 9.0), "// faster\n")
            return stamp_now(address)

        site.stamp = stamp  # type: ignore[method-assign]
        html = seen(f"http://127.0.0.1:{client.server.port}{at(folder)}", tmp_path, 8000)
    assert "attempt-2.html" in parsed_links(html)
    assert "up to date" in html
    assert shown_count(html, "attempts") == "2"


def parsed_links(html: str) -> list[str]:
    return re.findall(r'href="([^"]*)"', html)


def test_files_work_from_a_disk(tmp_path: Path) -> None:
    made(tmp_path / "home", attempt(1, 20.0))
    assert tilewright(tmp_path / "home", "view", "--export", tmp_path / "site").returncode == 0
    html = seen((tmp_path / "site" / "index.html").as_uri(), tmp_path)
    assert shown_count(html, "runs") == "1"  # which its script has counted
    assert parsed((tmp_path / "site" / "index.html").read_text())
