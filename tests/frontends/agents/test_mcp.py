"""A real client of the SDK drives a server in a child process, from a request to an exported kernel."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from tests.frontends.agents.clients import SECRET, connected, refused, servers, told
from tests.frontends.agents.silu import ASKED, BEYOND, MENDED_BY_EDIT, RIGHT, WRONG

import tilewright
from tilewright.child.boundary import Strength, strength, strength_words


@pytest.mark.slow
def test_a_task_from_its_source_to_a_kernel_in_pytorch(tmp_path: Path) -> None:
    async def drive() -> None:
        async with connected(tmp_path) as client:
            text, facts = await told(client, "specify", **ASKED)
            assert facts["state"] == "to be accepted"
            assert "silu(x) * scale" in text
            text, facts = await told(client, "specify", **ASKED, accept=True)
            assert (facts["state"], facts["attempt"], facts["stage"]) == ("asks", 1, "draft")
            assert "# How a file is judged" in text  # all that a model is told
            run = facts["run"]
            said = await refused(client, "submit_kernel", run=run, attempt=2, kernel=RIGHT)
            assert said == f"run {run} asks for attempt 1, not 2; advise has the question"

            heard: list[str] = []

            async def progress(done: float, total: float | None, message: str | None) -> None:
                heard.append(message or "")

            arguments: dict[str, Any] = {"run": run, "attempt": 1, "kernel": WRONG, "summary": "plain"}
            answer = await client.call_tool("submit_kernel", arguments, progress_callback=progress)
            wrong = answer.structured_content
            assert wrong["attempts"][0]["verdict"] == "wrong values"
            assert "the result is 0.5 (1/2) times what it should be" in wrong["attempts"][0]["diagnosis"]
            assert wrong["stage"] == "repair-wrong"
            assert any("building" in message for message in heard)

            text, right = await told(client, "submit_kernel", run=run, attempt=2, edits=MENDED_BY_EDIT, summary="scale")
            assert right["best"]["attempt"] == 2
            assert right["best"]["measurement"]["kind"] == "modelled"
            _, timed = await told(client, "bench", run=run)
            assert timed["kind"] == "modelled"
            assert timed["time_us"] == right["best"]["measurement"]["time_us"]
            text, past = await told(client, "history", run=run)
            assert [one["verdict"] for one in past["attempts"]] == ["wrong values", "passed"]
            _, written = await told(client, "export", run=run, destination="kernels/silu.cu")
            assert written["files"][0] == "kernels/silu.cu"
            _, listed = await told(client, "history")
            assert [one["author"] for one in listed["runs"]] == ["agent:mcp"]

    anyio.run(drive)
    x = torch.randn(3, 5)
    y = tilewright.load(tmp_path / "root" / "kernels" / "silu.cu")(x, 3.0)
    torch.testing.assert_close(y, torch.nn.functional.silu(x) * 3.0)


@pytest.mark.slow
def test_a_call_is_cancelled_a_server_killed_and_the_run_taken_up_again(tmp_path: Path) -> None:
    async def drive() -> None:
        async with connected(tmp_path) as client:
            _, facts = await told(client, "specify", **ASKED, accept=True)
            run = facts["run"]
            with anyio.move_on_after(2.5) as scope:
                await client.call_tool("submit_kernel", {"run": run, "attempt": 1, "kernel": WRONG})
            assert scope.cancelled_caught
            began = time.monotonic()
            _, past = await told(client, "history", run=run)
            assert time.monotonic() - began < 1.0  # the server is free at once
            assert past["attempts"] == []
            _, facts = await told(client, "advise", run=run)
            assert facts["attempts"][0]["verdict"] == "wrong values"  # what was submitted was not lost
            runs.append(run)
            async with anyio.create_task_group() as group:
                group.start_soon(_kill_at_work)
                await client.call_tool("submit_kernel", {"run": run, "attempt": 2, "kernel": RIGHT})

    async def take_up() -> None:
        async with connected(tmp_path) as client:
            _, facts = await told(client, "advise", run=runs[0])
            numbers = [one["attempt"] for one in facts["attempts"]]
            if not numbers:  # it was killed before the reply was on record
                _, facts = await told(client, "submit_kernel", run=runs[0], attempt=2, kernel=RIGHT)
            assert facts["best"]["attempt"] == 2
            said = await refused(client, "submit_kernel", run=runs[0], attempt=2, kernel=RIGHT)
            assert said == f"attempt 2 of run {runs[0]} is judged already; attempt 3 is next"
            _, ended = await told(client, "finish", run=runs[0])
            assert ended["ending"] == "author-done"
            assert "has ended" in await refused(client, "submit_kernel", run=runs[0], attempt=3, kernel=RIGHT)
            _, found = await told(client, "specify", **ASKED, accept=True)
            assert (found["state"], found["run"]) == ("found", runs[0])

    runs: list[str] = []
    with pytest.raises(BaseExceptionGroup):  # the client's, whose server was killed
        anyio.run(drive)
    anyio.run(take_up)


ESCAPE = """import functools
import os
import torch


def act(x):
    def g(x: "open('<HERE>/escaped', 'w').write(open('/proc/%d/environ' % os.getppid()).read())"): ...
    functools.singledispatch(lambda x: x).register(g)
    return x * 2
"""


@pytest.mark.skipif(strength() is not Strength.FULL, reason=f"no whole boundary: {strength_words()}")
def test_a_source_that_reaches_out_gets_nothing(tmp_path: Path) -> None:
    async def drive() -> None:
        async with connected(tmp_path) as client:
            source = ESCAPE.replace("<HERE>", str(tmp_path))
            asked = {"source": source, "function": "act", "shapes": {"x": "4:f32"}}
            said = await refused(client, "specify", **asked, accept=True)
            assert "PermissionError" in said
            assert SECRET not in said

    anyio.run(drive)
    assert not (tmp_path / "escaped").exists()


async def _kill_at_work() -> None:
    await anyio.sleep(0.5)
    for process in servers():
        os.kill(process, signal.SIGKILL)


@pytest.mark.slow
def test_two_clients_have_runs_of_their_own_and_share_one_only_in_turns(tmp_path: Path) -> None:
    async def drive() -> None:
        async with connected(tmp_path) as one, connected(tmp_path) as other:
            begun: dict[str, str] = {}

            async def begin(name: str, client: Any) -> None:
                begun[name] = (await told(client, "specify", **ASKED, accept=True))[1]["run"]

            async with anyio.create_task_group() as group:
                group.start_soon(begin, "one", one)
                group.start_soon(begin, "other", other)
            assert begun["one"] != begun["other"]

            answers: list[Any] = []

            async def send(client: Any, kernel: str) -> None:
                arguments = {"run": begun["one"], "attempt": 1, "kernel": kernel}
                answers.append(await client.call_tool("submit_kernel", arguments))

            async with anyio.create_task_group() as group:
                group.start_soon(send, one, RIGHT)
                group.start_soon(send, other, BEYOND)
            said = [answer.content[0].text for answer in answers if answer.is_error]
            assert len(said) == 1
            assert "is being worked on by another call" in said[0]
            _, past = await told(other, "history", run=begun["one"])
            assert len(past["attempts"]) == 1

    anyio.run(drive)


@pytest.mark.slow
def test_nothing_but_the_protocol_is_on_stdout_and_no_secret_in_any_answer(tmp_path: Path) -> None:
    async def drive() -> None:
        async with connected(tmp_path) as client:
            texts = [(await told(client, "history"))[0]]
            for run in ("../../etc/passwd", "/etc", "none-such", "a" * 5000, "last", ""):
                texts.append(await refused(client, "advise", run=run))
            texts.append(await refused(client, "check", kernel=f'#include "/etc/passwd"\n{RIGHT}'))
            texts.append(await refused(client, "submit_kernel", run=3, attempt="1"))
            texts.append(await refused(client, "none_such"))
            for text in texts:
                assert SECRET not in text
                assert str(tmp_path) not in text
                assert "Traceback" not in text

    anyio.run(drive)
