"""What a notebook shows: self-contained, escaped, of the notebook's own colours; and seen in a browser where one is."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tilewright import records
from tilewright.frontends.api.make import Made
from tilewright.frontends.report.run_report import html_of
from tilewright.records import Measured, Rejected, Run, Timing
from tilewright.runtime.explanation import Explanation
from tilewright.store import RunFolder, Store

GALLERY_RUN = Path(__file__).parents[3] / "gallery" / "top1"
SCRIPT = "<script>alert(1)</script>&\"'"


_TAGS = {"style", "div", "p", "b", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"}
_TAGS |= {"details", "summary", "svg", "rect"}
_ATTRIBUTES = {"class", "scope", "tabindex", "viewbox", "preserveaspectratio", "aria-hidden", "width", "height"}


class _Strict(HTMLParser):
    """Every tag that is opened is closed, in order; nothing is fetched, and nothing runs."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS
        assert {name for name, _ in attributes} <= _ATTRIBUTES
        self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.opened and self.opened[-1] != "style":
            self.text += data


def shown(html: str | None) -> str:
    """The text that is seen."""
    assert html is not None
    parser = _Strict()
    parser.feed(html)
    assert parser.opened == []
    assert "url(" not in html
    assert len(html) < 60_000
    return parser.text


@pytest.fixture(scope="module")
def run() -> Run:
    return RunFolder(GALLERY_RUN).load()


def measured() -> Measured:
    return Measured(
        "NVIDIA <H200>",
        {"rows": 8192},
        Timing("kernel", (70.0, 70.2, 69.9)),
        (Timing("eager", (804.4, 805.0, 803.0)),),
        57.9,
        notes=(SCRIPT,),
    )


def test_a_run_shows_every_attempt_and_says_that_times_are_modelled(run: Run) -> None:
    text = shown(run._repr_html_())
    assert run.id in text
    assert "modelled us" in text
    for attempt in run.attempts:
        assert attempt.stage.value in text
    assert "no attempt is finished yet" in shown(replace(run, attempts=(), ending=None)._repr_html_())


def test_what_somebody_wrote_is_text_and_no_markup(run: Run) -> None:
    attempts = tuple(replace(one, summary=SCRIPT) for one in run.attempts)
    hostile = replace(run, attempts=attempts, settings=replace(run.settings, author=SCRIPT))
    assert SCRIPT in shown(hostile._repr_html_())
    assert SCRIPT in shown(measured()._repr_html_())
    assert SCRIPT in shown(Rejected(records.BadReply(SCRIPT))._repr_html_())
    assert SCRIPT in shown(records.Unsupported(SCRIPT)._repr_html_())
    assert SCRIPT in shown(html_of(SCRIPT))


def test_a_measurement_is_told_from_a_model(run: Run) -> None:
    assert "70.0 us on NVIDIA <H200>" in shown(measured()._repr_html_())
    assert "modelled" not in shown(measured()._repr_html_())
    assert run.best is not None
    assert run.best.measurement is not None
    assert "is no measurement" in shown(run.best.measurement._repr_html_())
    assert "passed" in shown(run.best.verdict._repr_html_())


def test_an_explanation_shows_its_text() -> None:
    explained = Explanation("f", "H200", None, (), (), (), (), (), True)
    assert str(explained).splitlines()[0] in shown(explained._repr_html_())


def test_a_finished_kernel_shows_its_call_and_its_file(run: Run, tmp_path: Path) -> None:
    made = made_of(run, tmp_path)
    text = shown(made._repr_html_())
    assert f"called as {', '.join(one.name for one in run.task.outputs)} = f(" in text
    assert "//! op" in text
    made.kernel.unlink()
    assert "cannot be read any more" in shown(made._repr_html_())


def made_of(run: Run, folder: Path) -> Made:
    kernel = Store(folder).library.add(RunFolder(GALLERY_RUN))
    return Made(kernel, run, own_reference=False)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize(("paper", "ink"), [("#ffffff", "#111111"), ("#111827", "#e5e7eb")])
def test_it_can_be_read_on_light_and_on_dark(run: Run, tmp_path: Path, paper: str, ink: str) -> None:
    """A screenshot has the page's paper and ink, and the colours of a bar and of a verdict."""
    from PIL import Image

    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    body = f"<body style='background:{paper};color:{ink}'>{run._repr_html_()}{measured()._repr_html_()}</body>"
    page.write_text(f"<!doctype html><meta charset='utf-8'>{body}", encoding="utf-8")
    assert BROWSER is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,900", f"--screenshot={picture}"]
    subprocess.run([BROWSER, *flags, page.as_uri()], check=True, capture_output=True, timeout=120)
    colours = Image.open(picture).convert("RGB").getcolors(1 << 24) or []
    seen = {colour for count, colour in colours if count > 20}
    for wanted in (paper, "#4b86c6", "#2e9e5b"):
        assert tuple(bytes.fromhex(wanted[1:])) in seen
