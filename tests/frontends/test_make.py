"""`make` and `resume` as a person meets them: real processes, the emulator, recorded or relayed replies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.frontends import in_process
from tests.frontends.recordings import RIGHT, SOURCE, SPECIFICATION, WRONG, record
from tests.models.servers import AnthropicServer, OpenAIServer, ScriptedServer, Status

from tilewright.records import Provenance, from_json
from tilewright.store import Store, provenance_path

LAYERNORM = "LayerNorm over the last dimension, then exact GELU"
WORDS = "SiLU of every element, scaled"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def function(tmp_path: Path) -> str:
    path = tmp_path / "ops.py"
    path.write_text(SOURCE)
    return f"{path}:scaled_silu"


def environment(home: Path, **variables: str) -> dict[str, str]:
    names = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HF_TOKEN")
    return {**{k: v for k, v in os.environ.items() if k not in names}, "TILEWRIGHT_HOME": str(home), **variables}


def tilewright(
    home: Path, *arguments: object, folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(home, **variables),
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_from_words_to_a_kernel_with_an_interruption(home: Path, tmp_path: Path) -> None:
    recording = record(tmp_path / "recording", ("0000-1", SPECIFICATION), ("0001-1", WRONG), ("0002-1", RIGHT))
    replay, asked = f"replay:{recording}", ("make", WORDS, "--shape", "x=2048:f32", "--gpu", "H200")
    # Nobody is there to accept the specification: it is shown and waits.
    output = tmp_path / "mine.cu"
    waiting = tilewright(
        home, *asked, "--model", replay, "--attempts", 2, "-o", os.path.relpath(output), "--license", "MIT"
    )
    assert waiting.returncode == 2, waiting.stderr
    for text in ("author  replay:", "at most 2 attempts", "modelled, not measured", "silu(x) * scale", "one number"):
        assert text in waiting.stderr, text
    assert "tilewright resume silu-of-every-element" in waiting.stderr.splitlines()[-1]
    assert waiting.stdout == ""
    [name] = [one.id for one in Store(home).runs().waiting]
    # Accepted, it goes on with an author who does not answer, until it is interrupted.
    interrupted(home, name, tmp_path / "box")
    # Resumed with the first author, it is carried to its end: nothing is asked for twice, and the kernel goes where it
    # was wanted in the beginning, seen from there.
    done = tilewright(home, "resume", name, "--model", replay, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [one["verdict"]["is"] for one in report["run"]["attempts"]] == ["Rejected", "Passed"]
    assert (report["best"], report["kernel"]) == (2, str(output))
    assert "* scale;" in output.read_text()
    assert json.loads(Path(f"{output}.tuned.json").read_text())["entries"][0]["gpu"] == "H200"
    assert [line.split()[:3] for line in done.stderr.splitlines() if line[:3].strip().isdecimal()] == [
        ["1", "draft", "wrong"],
        ["2", "repair-wrong", "passed"],
    ]
    for line in (
        "specification: asking replay:",
        "attempt 1, draft: asking replay:",
        "attempt 2, repair-wrong: asking",
    ):
        assert line in (waiting.stderr + done.stderr), line
    # An ended run puts its kernel there again where it is missing, and leaves alone what was edited since.
    kernel = output.read_text()
    output.unlink()
    assert tilewright(home, "resume", name).returncode == 0
    assert output.read_text() == kernel
    output.write_text("// mine now")
    assert f"kernel: {home}" in tilewright(home, "resume", name).stdout
    assert output.read_text() == "// mine now"
    other = tmp_path / "other.cu"
    assert tilewright(home, "resume", name, "-o", other).returncode == 0
    assert other.read_text() == kernel
    provenance = from_json(Provenance, json.loads(provenance_path(other).read_text()))
    assert (provenance.licence, provenance.run) == ("MIT", name)
    assert {one.author for one in provenance.contributions} == {"recorded"}  # who wrote it, not who handed it over
    # The same words are found again, free and without an author.
    again = tilewright(home, *asked)
    assert again.returncode == 0, again.stderr
    assert f"already made by run {name}" in again.stdout
    # What was asked for beyond the kernel itself is done or said: another author, another licence, a file to improve.
    box, copy = tmp_path / "nobody", tmp_path / "copy.cu"
    other = in_process.tilewright(home, *asked, "--model", f"relay:{box}", "--license", "Apache-2.0", "-o", copy)
    assert f"so relay:{box} was not asked for one; --fresh has it made anew by relay:{box}" in other.stdout
    assert from_json(Provenance, json.loads(provenance_path(copy).read_text())).licence == "Apache-2.0"
    assert copy.read_text() == kernel
    assert "-o FILE.cu" in in_process.tilewright(home, *asked, "--license", "Apache-2.0").stdout
    improved = tilewright(home, *asked, "--model", replay, "--start", copy, "--attempts", 1)
    assert improved.returncode == 2, improved.stderr  # it is a run of its own, whose words wait to be accepted
    [waits] = [one.id for one in Store(home).runs().waiting]
    done = tilewright(home, "resume", waits, "--yes", "--json")
    assert json.loads(done.stdout)["run"]["attempts"][0]["summary"] == "the kernel file to start from"
    assert "seed" in tilewright(home, "show", name, "--attempt", 1).stdout  # the case that failed
    assert WORDS in tilewright(home, "show", name, "--prompt", 0).stdout
    ended = tilewright(home, "resume", name, "--hint", "use vectors")
    assert ended.returncode == 2
    assert "add more with --attempts N" in ended.stderr


def interrupted(home: Path, run: str, box: Path) -> None:
    """Resume a run with a relay that nobody serves; Ctrl-C once it waits for its first candidate."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tilewright", "resume", run, "--yes", "--model", f"relay:{box}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not (box / "0001-1.prompt.md").exists():
            assert time.monotonic() < deadline
            assert child.poll() is None, child.communicate()
            time.sleep(0.05)
        busy = tilewright(home, "resume", run)
        assert busy.returncode == 3
        assert f"being worked on by process {child.pid}" in busy.stderr
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does it
        _, stderr = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, stderr
    assert stderr.splitlines()[-1] == f"tilewright: interrupted; resume with: tilewright resume {run}"


@pytest.mark.parametrize(("provider", "serve"), [("anthropic", AnthropicServer), ("openai", OpenAIServer)])
def test_a_served_model_is_asked_once_and_its_key_is_nowhere(
    home: Path, provider: str, serve: type[ScriptedServer]
) -> None:
    key = "sk-a-very-secret-key"
    variables = {f"{provider.upper()}_API_KEY": key}
    with serve(lambda body: SPECIFICATION, troubles=[Status(429, {"retry-after": "0"})]) as server:
        model = ("--model", f"{provider}:some-model", "--base-url", server.base_url)
        waiting = tilewright(home, "make", WORDS, "--shape", "x=2048:f32", *model, "--json", **variables)
        assert waiting.returncode == 2, waiting.stderr
        assert "silu(x) * scale" in json.loads(waiting.stdout)["specification"]["reference"]
        assert "price unknown" in waiting.stderr
        again = tilewright(home, "resume", "last", "--json", **variables)
        assert again.returncode == 2
        assert json.loads(again.stdout) == json.loads(waiting.stdout)
        assert len(server.requests) == 2  # the one that was put off, and the one that was answered
    stored = "".join(path.read_text() for path in home.rglob("*") if path.is_file())
    assert WORDS in stored
    assert key not in stored + waiting.stderr + waiting.stdout


def test_the_playbook_makes_a_kernel_from_words(home: Path) -> None:
    done = tilewright(
        home,
        "make",
        LAYERNORM,
        "--shape",
        "x=64x256:f32",
        "--author",
        "playbook",
        "--attempts",
        1,
        "--yes",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["best"] is not None
    assert "//! op      layernorm_gelu(" in Path(report["kernel"]).read_text()
    assert report["run"]["environment"]["device"] == "H200 (emulated)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FUNCTION", "--gpu", "H200", "--arch", "sm_80"], "--gpu and --arch name two targets"),
        (["FUNCTION", "--shape", "x"], "write --shape NAME=VALUE"),
        (["FUNCTION", "--shape", "x=64:f32", "--model", "nobody:x"], "write PROVIDER:NAME with one of anthropic"),
        (["FUNCTION", "--shape", "z=64:f32"], "has no such parameter"),
        (["FUNCTION", "-o", "."], "a folder"),
        (["FUNCTION", "--license", "my own!"], "write an SPDX expression"),
        (["FUNCTION", "--shape", "x=64:f32", "--spool", "no/such"], "there is no such folder"),
        (["FUNCTION", "-o", "/proc/k.cu"], "nothing can be written in /proc"),
        (["FUNCTION", "-o", "no/such/k.cu"], "make it, or give another file with -o"),
        (["FUNCTION", "--start", "EMPTY"], "no launch plan"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(home: Path, function: str, arguments: list[str], message: str) -> None:
    empty = Path(function).parent / "empty.cu"
    empty.write_text("// nothing\n")
    given = {"FUNCTION": function, "EMPTY": empty}
    done = in_process.tilewright(home, "make", *(given.get(one, one) for one in arguments))
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert Store(home).runs().runs == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["make my coffee"], "the playbook does not understand"),
        (["rmsnorm", "--set", "epsilon=1e-3"], "--set epsilon: the task has no such number; it has eps"),
        (["rmsnorm", "--shape", "y=16x64"], "--shape y: the task has no such tensor; it has x, weight"),
    ],
)
def test_a_refused_request_leaves_no_run(home: Path, arguments: list[str], message: str) -> None:
    done = in_process.tilewright(home, "make", *arguments, "--yes")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.splitlines()[-1] == "nothing was done, so no run is kept"
    assert Store(home).runs().waiting == ()
