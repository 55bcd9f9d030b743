"""`tilewright view` as a browser and a stranger meet it: a real server, asked over HTTP."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urljoin

import pytest
from tests.frontends.in_process import tilewright
from tests.frontends.report.served import add, made, parsed, serving
from tests.store.records_for_store import ENVIRONMENT, SETTINGS, TASK, attempt, question
from tests.suites.made_records import RECORDS, made_suite

from tilewright.records import Crashed, Ending, FindingKind, FindingRecord, Measured, Rejected, Task, Timing
from tilewright.records.verdict import Case
from tilewright.store import RunFolder, Store
from tilewright.suites import SuiteFolder

GALLERY = Path(__file__).parents[3] / "gallery"
EVIL = "<script>document.title='taken'</script><img src=x onerror=alert(1)>\"'&</pre></code>"
HIDDEN = "\x00\x1b[31m\u202eevil\ud800"
CRASHED = Rejected(
    Crashed(
        Case({"n": 7}, 1),
        None,
        "it ended with findings",
        "double_it",
        3,
        (FindingRecord(FindingKind.RACE_SHARED, EVIL, 1, 2, 0, None, "4 bytes after the end of y", EVIL, 9, 3),),
    )
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(home: Path) -> RunFolder:
    return made(home, attempt(1, 20.0), attempt(2, verdict=CRASHED), attempt(3, 12.5))


def at(folder: RunFolder, page: str = "index.html") -> str:
    return f"/runs/{quote(os.fsencode(folder.path.name), safe='')}/{page}"


# -- what the pages say --


def test_the_list_and_a_run(home: Path, folder: RunFolder) -> None:
    folder.end(Ending.ATTEMPTS)
    with serving(home) as client:
        listed = client.get("/index.html")
        run = client.get(at(folder))
        other_method = client.get("/", method="POST")
    assert listed.status == run.status == 200
    with serving(home, folder.path.name) as client:
        assert client.server.site.home == at(folder).lstrip("/")
    assert at(folder).lstrip("/") in listed.page.links()
    assert "12.5 us modelled" in listed.page.text
    text = run.page.text
    for said in ("double_it(x) -> y", "the budget of attempts is spent", "race", "1.60x", "best", "issue slots"):
        assert said in text, said
    assert {f"attempt-{n}.html" for n in (1, 2, 3)} | {"provenance.html", "lesson.html"} <= set(run.page.links())
    assert "modelled time by attempt" in text  # the progress curve
    assert other_method.status == 501


def test_an_attempt_has_its_verdict_findings_source_prompt_and_reply(home: Path, folder: RunFolder) -> None:
    with serving(home) as client:
        page = client.get(at(folder, "attempt-2.html")).page
        provenance = client.get(at(folder, "provenance.html")).page
    for said in ("race in shared memory", "4 bytes after the end of y", "write number 2", "int the_same;", "ok"):
        assert said in page.text, said
    assert "// version 1" in page.text  # what it changed
    lines = [one.get("class") for tag, one in page.tags if tag == "span"]
    assert [one for one in lines if one in ("old", "new")] == ["old", "new", "old", "new"]  # names, then the number
    assert "nobody has stated one" in provenance.text


@pytest.mark.parametrize(
    "name",
    ["gate_from_words", *(pytest.param(one, marks=pytest.mark.slow) for one in ("matmul", "linear_silu", "top1"))],
)
def test_every_page_of_a_real_run_is_whole(name: str, home: Path) -> None:
    """From words, with repairs, with CuTe: every address that the run's page names is there."""
    base = f"/runs/{name}/index.html"
    with serving(home, str(GALLERY)) as client:
        links = client.get(base).page.links()
        assert "lesson.html" in links  # whose page takes longer, and has tests of its own
        for link in (one for one in links if one != "lesson.html" and "#" not in one):
            answer = client.get(urljoin(base, link))
            assert answer.status == 200, link
            parsed(answer.body)


def test_two_kernels_side_by_side(home: Path, folder: RunFolder) -> None:
    name = folder.path.name
    with serving(home) as client:
        asked = client.get("/compare.html")
        both = client.get(f"/compare.html?left={name}/1&right={name}")
        none = client.get(f"/compare.html?left={name}/9&right={name}")
    assert name in asked.body
    assert both.status == 200
    assert "attempt 1" in both.page.text
    assert "12.5 us modelled" in both.page.text
    assert none.status == 404
    assert "has no attempt" in none.page.text


def test_a_suite_has_every_task_and_its_figures(tmp_path: Path, home: Path, folder: RunFolder) -> None:
    suite = SuiteFolder(tmp_path / "suite")
    suite.begin(made_suite())
    for record in RECORDS:
        suite.record(record)
    suite.note_run("1", folder.path.name)
    other = made(home, attempt(1, 5.0))
    with serving(home, str(suite.path)) as client:
        assert client.server.site.home == "suite.html"
        page = client.get("/suite.html").page
        assert [client.get(at(one)).status for one in (folder, other)] == [200, 404]  # the other is no run of the suite
    for said in (
        "4 of 8 have a kernel",
        "4.00x",
        "1_a",
        "8_h",
        "waiting",
        "does not support the operation convolution",
    ):
        assert said in page.text, said
    assert at(folder).lstrip("/") in page.links()


# -- a run under way --


def test_a_page_changes_as_its_run_does(home: Path, folder: RunFolder) -> None:
    with serving(home) as client:
        before = client.get(at(folder))
        assert client.get(at(folder), If_None_Match=before.headers["ETag"]).status == 304
        with folder.lock():
            working = client.get(at(folder))
            assert f"process {os.getpid()}" in working.page.text
            folder.attempt(4).stream(1, "I would write")
            coming = client.get(at(folder, "attempt-4.html"))
            assert "I would write" in coming.page.text
            assert ("body", {"data-poll": "1500"}) in coming.page.tags
            folder.attempt(4).stream(1, " a loop")
            again = client.get(at(folder, "attempt-4.html"), If_None_Match=coming.headers["ETag"])
            assert "a loop" in again.page.text
            add(folder, attempt(4, 9.0), "// faster\n")
            finished = client.get(at(folder), If_None_Match=working.headers["ETag"])
        assert "9.00" in finished.page.text
        assert "9.00 us modelled" in client.get("/index.html").page.text


# -- what must stay text, and what must stay unseen --


def hostile(home: Path) -> RunFolder:
    task = Task(EVIL, TASK.reference + f"# {EVIL}", "double_it", TASK.inputs, TASK.outputs, TASK.dimensions, words=EVIL)
    made_at = Store(home).create_run(task, replace(SETTINGS, author=EVIL, hints=((0, EVIL),)), ENVIRONMENT)
    folder = RunFolder(made_at.path.rename(made_at.path.with_name("<script>alert(1)<!-- '\" ?#%2e")))
    summary = EVIL + HIDDEN
    add(
        folder,
        replace(attempt(1, 5.0), summary=summary, notes=(EVIL,)),
        f"{EVIL}\n{HIDDEN}\n{'x' * 9000}\n",
        EVIL + HIDDEN,
    )
    add(folder, replace(attempt(2, verdict=CRASHED), summary=summary), f"{EVIL}\n")
    return folder


def test_what_others_wrote_stays_text(home: Path) -> None:
    folder = hostile(home)
    pages = ("index.html", "attempt-1.html", "attempt-2.html", "provenance.html")
    with serving(home) as client:
        answers = [client.get(address) for address in ("/index.html", *(at(folder, page) for page in pages))]
    for answer in answers:
        assert answer.status == 200, answer.body
        tags = answer.page.tags
        assert [one for tag, one in tags if tag == "script"] == [
            {"src": one["src"], "defer": ""} for tag, one in tags if tag == "script"
        ]
        assert sum(tag == "script" for tag, _ in tags) == 1
        assert not [tag for tag, _ in tags if tag in ("img", "iframe", "object", "style")]
        assert not [name for _, one in tags for name in one if name.startswith("on") or name == "style"]
        assert "alert(1)" in answer.page.text
        assert not {"\x00", "\x1b", "\u202e"} & set(answer.body)
    source = answers[2].page.text
    assert "[U+0000][U+001B][31m[U+202E]evil" in source
    assert "7,007 more characters" in source  # of the line and its number


def test_pages_allow_no_script_but_their_own(home: Path, folder: RunFolder) -> None:
    with serving(home) as client:
        headers = client.get("/index.html").headers
        assert client.get("/view.js").headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert client.get("/style.css", method="HEAD").body == ""
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"


NO_PAGES = [
    "/../secret",
    "/runs/../../secret",
    "/runs/%2e%2e/index.html",
    "/runs/..%2f..%2fsecret/index.html",
    "/runs/RUN/../../../secret",
    "/runs/RUN/kernel.cu",
    "/runs/RUN/run.json",
    "/runs/RUN/attempt-1.html%00",
    "/runs/RUN/attempt-../../secret.html",
    "/runs/%ff%fe/index.html",
    "/static/view.js",
    "/server.py",
    "/compare.html?left=../secret&right=RUN",
    "//secret",
    "/runs//index.html",
    "/suite.html",
    "/runs/RUN/attempt-99999.html",
]


def test_nothing_but_pages_is_served(tmp_path: Path, home: Path, folder: RunFolder) -> None:
    (tmp_path / "secret").write_text("the secret")
    with serving(home) as client:
        for address in NO_PAGES:
            answer = client.get(address.replace("RUN", folder.path.name))
            assert answer.status == 404, address
            assert "the secret" not in answer.body, address


def test_a_run_with_links_is_not_read(tmp_path: Path, home: Path, folder: RunFolder) -> None:
    (tmp_path / "secret").write_text("the secret")
    kernel = folder.attempt(1).path / "kernel.cu"
    kernel.unlink()
    kernel.symlink_to(tmp_path / "secret")
    with serving(home) as client:
        answers = [client.get(address) for address in ("/index.html", at(folder), at(folder, "attempt-1.html"))]
    assert [one.status for one in answers] == [200, 404, 404]
    assert all("symbolic links" in one.page.text and "the secret" not in one.body for one in answers)


def test_damage_is_said_and_hides_no_other_run(home: Path, folder: RunFolder) -> None:
    broken = made(home, attempt(1, 5.0))
    (broken.attempt(1).path / "kernel.cu").write_bytes(b"\xff\xfe not text")
    (made(home, attempt(1, 5.0)).path / "run.json").write_text("{")
    at_once = Measured("NVIDIA H200", {"n": 8}, Timing("kernel", (0.0,)), (), 1.0)
    senseless = made(home, attempt(1, measurement=at_once))
    with serving(home) as client:
        assert client.get(at(senseless)).status == 500
        listed = client.get("/index.html")
        shown = client.get(at(broken, "attempt-1.html"))
    assert listed.page.text.count("12.5 us modelled") == 1
    assert "cannot be read" in listed.page.text
    assert "its numbers make no sense" in listed.page.text
    assert shown.status == 200
    assert "is not UTF-8 text" in shown.page.text


# -- who may see them --


def test_only_who_has_the_printed_address_sees_pages(home: Path, folder: RunFolder) -> None:
    with serving(home) as client:
        token = client.server.token
        assert len(token) >= 20
        for other in (token[:-1], "x" * len(token), ""):
            client.server.token = other + "?"
            answer = client.get("/index.html")
            assert answer.status == 404
            assert folder.path.name not in answer.body
            assert "printed" in answer.page.text
            client.server.token = token
        assert client.get("/index.html").status == 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "no.such.host.invalid"), "give another --host or --port"),
        (("absent",), "no run is called 'absent'"),
        ((".",), "neither a run, nor a suite, nor a folder of runs"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], said: str, tmp_path: Path, home: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    done = tilewright(home, "view", "--no-browser", *arguments, folder=tmp_path / "here")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_said(home: Path, folder: RunFolder) -> None:
    with serving(home) as client:
        done = tilewright(home, "view", "--no-browser", "--port", client.server.server_address[1])
    assert done.returncode == 2
    assert "give another --port" in done.stderr


@pytest.mark.slow
def test_counters_by_line_and_the_roofline(tmp_path: Path, home: Path) -> None:
    """Of a real kernel: the lines that move memory have sectors."""
    shutil.copytree(GALLERY / "soft_capped_square", tmp_path / "run")
    with serving(home, str(tmp_path / "run")) as client:
        page = client.get("/runs/run/counters-1.html").page
        assert "run" in client.get("/index.html").page.text
    assert "Roofline of H200" in page.text
    assert "warp instructions" in page.text
    assert "of the roof" in page.text


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(home: Path, folder: RunFolder) -> None:
    command = [sys.executable, "-m", "tilewright", "view", "last", "--port", "0", "--no-browser"]
    environment = {**os.environ, "TILEWRIGHT_HOME": str(home)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        with urllib.request.urlopen(said[2], timeout=300) as answer:
            assert answer.url.endswith(at(folder))
            assert "12.5" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0


@pytest.mark.slow
def test_a_suite_made_by_the_emulator(tmp_path: Path, home: Path) -> None:
    (tmp_path / "ops.py").write_text("def double(x):\n    return 2.0 * x\ndef less(x):\n    return x - 1.0\n")
    tasks = "".join(
        f'[[task]]\nrequest = "ops.py:{name}"\nshape = {{ x = "6x40:f32" }}\n' for name in ("double", "less")
    )
    (tmp_path / "suite.toml").write_text(tasks)
    out = tmp_path / "out"
    made_suite = tilewright(home, "suite", "folder", tmp_path, "--author", "playbook", "--attempts", 1, "--out", out)
    assert made_suite.returncode == 0, made_suite.stderr
    with serving(home, str(out)) as client:
        page = client.get("/suite.html").page
        assert "2 of 2 have a kernel" in page.text
        runs = [link for link in page.links() if link.startswith("runs/")]
        assert [client.get(f"/{link}").status for link in runs] == [200, 200]


def test_unfinished_questions_are_shown(home: Path) -> None:
    folder = made(home)
    place = folder.attempt(1)
    with pytest.raises(KeyboardInterrupt):
        place.reply_to(1, question(1, text="please write it"), lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with serving(home) as client:
        assert "attempt-1.html" in client.get(at(folder)).page.links()
        assert "please write it" in client.get(at(folder, "attempt-1.html")).page.text
