"""The tools themselves, at a session in this process: what they take, what they refuse, what an agent reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from mcp import Client
from smolagents import CodeAgent, ToolCallingAgent
from tests.frontends.agents.scripted_model import ScriptedModel
from tests.frontends.agents.silu import ASKED, BEYOND, RIGHT, WRONG
from tests.frontends.in_process import tilewright
from tests.tasks.in_process import HereReference, ask_here

from tilewright import load, smolagents_tools
from tilewright.frontends.agents.author import AgentReporter, Cancelled
from tilewright.frontends.agents.guard import Refused
from tilewright.frontends.agents.mcp_server import McpServer
from tilewright.frontends.agents.session import Answer, Session, measurement_facts
from tilewright.frontends.agents.tools import TOOLS, Toolbox, tools_of
from tilewright.frontends.api import judges
from tilewright.frontends.cli.main import COMMANDS
from tilewright.records import Measured, Timing


@pytest.fixture(scope="module")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toolbox]:
    folder = tmp_path_factory.mktemp("agent")
    with pytest.MonkeyPatch.context() as patch:
        ask_here(patch)  # references in this process: children of theirs are test_mcp.py's
        patch.setattr(judges, "Reference", lambda source, function, **_: HereReference(source, function))
        patch.setenv("TILEWRIGHT_HOME", str(folder / "home"))
        root = folder / "root"
        root.mkdir()
        yield Toolbox(Session(root, agent="My Agent/2"))


def call(toolbox: Toolbox, tool: str, **arguments: Any) -> Answer:
    return toolbox.call(tool, arguments, AgentReporter())


@pytest.fixture(scope="module")
def run(toolbox: Toolbox) -> str:
    """A run that asks for its first attempt."""
    found: str = call(toolbox, "specify", **ASKED, accept=True).facts["run"]
    return found


def refusal(toolbox: Toolbox, tool: str, **arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        call(toolbox, tool, **arguments)
    said = str(refused.value)
    assert "\n" not in said
    assert str(toolbox.session.root.parent) not in said
    return said


def test_words_are_shown_before_anything_is_run(toolbox: Toolbox) -> None:
    shown = call(toolbox, "specify", words="softmax over the last dimension", shapes={"x": "8x64:f32"})
    assert "torch" in shown.facts["reference"]
    assert "accept=true" in shown.text
    assert call(toolbox, "history").facts["runs"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "give either words or source"),
        ({"words": "softmax", **ASKED}, "give either words or source"),
        ({"words": "brew coffee"}, "write the PyTorch function yourself"),
        ({"words": "/etc/passwd"}, "look like a path"),
        ({**ASKED, "function": ""}, "function names nothing"),
        ({**ASKED, "gpu": "abacus"}, "abacus is no GPU known here"),
        ({**ASKED, "precision": "perfect"}, "precision 'perfect' is not known"),
        ({**ASKED, "attempts": 10**9, "accept": True}, "attempts is 1000000000; give 1 to 100"),
        ({**ASKED, "shapes": {}, "accept": True}, 'give shapes={"x":'),
        ({**ASKED, "shapes": {"x": "8xlots:f32"}, "accept": True}, "lots"),
        ({**ASKED, "shapes": "8x64"}, "shapes takes an object of texts"),
        ({**ASKED, "surprise": 1}, "specify takes no 'surprise'"),
        ({"words": 7}, "words takes a text, not int"),
        ({**ASKED, "accept": "yes"}, "accept takes true or false"),
    ],
)
def test_specify_refuses_in_one_sentence(toolbox: Toolbox, arguments: dict[str, Any], said: str) -> None:
    assert said in refusal(toolbox, "specify", **arguments)


def test_calls_out_of_order_are_refused(toolbox: Toolbox, run: str) -> None:
    assert "asks for attempt 1, not 4" in refusal(toolbox, "submit_kernel", run=run, attempt=4, kernel=RIGHT)
    assert "asks for attempt 1, not 0" in refusal(toolbox, "submit_kernel", run=run, attempt=0, kernel=RIGHT)
    assert "give either kernel" in refusal(toolbox, "submit_kernel", run=run, attempt=1)
    assert "has 200,001 characters" in refusal(toolbox, "submit_kernel", run=run, attempt=1, kernel="x" * 200_001)
    assert "has passed" in refusal(toolbox, "bench", run=run)
    assert "has passed" in refusal(toolbox, "export", run=run, destination="x.cu")
    assert "has no attempt 3" in refusal(toolbox, "history", run=run, attempt=3)
    assert "submit_kernel needs run" in refusal(toolbox, "submit_kernel", attempt=1, kernel=RIGHT)
    assert "there is no tool 'rm'" in refusal(toolbox, "rm")


def test_what_is_unreadable_costs_one_correction_then_an_attempt(toolbox: Toolbox, run: str) -> None:
    answer = call(toolbox, "submit_kernel", run=run, attempt=1, kernel="int main() {}")
    assert answer.facts["attempt"] == 1  # it is asked again, as a model would be
    assert "it has no `//! op` line" in answer.text
    fenced = f"```cuda\n{WRONG}```"  # as a model would send it
    answer = call(toolbox, "submit_kernel", run=run, attempt=1, kernel=fenced, summary="forgot the scale")
    assert answer.facts["attempts"][0]["verdict"] == "wrong values"
    assert "The smallest case found to fail" in answer.text
    shown = call(toolbox, "history", run=run, attempt=1)
    assert shown.facts["kernel"].strip() == WRONG.strip()
    assert call(toolbox, "history", run=run).facts["author"] == "agent:My-Agent-2"


def test_a_cancelled_call_stops_and_loses_nothing(toolbox: Toolbox, run: str) -> None:
    reporter = AgentReporter()
    stopping = AgentReporter(
        lambda what: reporter._cancelled.set() if "emulating" in what else None, reporter._cancelled
    )
    with pytest.raises(Cancelled):
        toolbox.call("submit_kernel", {"run": run, "attempt": 2, "kernel": RIGHT}, stopping)
    answer = call(toolbox, "submit_kernel", run=run, attempt=2, kernel=BEYOND)
    assert answer.text.startswith("Attempt 2 had been submitted before")
    assert answer.facts["best"]["attempt"] == 2
    assert call(toolbox, "advise", run=run).facts["stage"] == "structure"


def test_a_finished_run_is_found_and_opened_again(toolbox: Toolbox, run: str) -> None:
    ended = call(toolbox, "finish", run=run)
    assert ended.facts["ending"] == "author-done"
    assert call(toolbox, "finish", run=run).facts["state"] == "ended"
    assert "has ended" in refusal(toolbox, "submit_kernel", run=run, attempt=3, kernel=BEYOND)
    assert call(toolbox, "specify", **ASKED, accept=True).facts["state"] == "found"
    again = call(toolbox, "advise", run=run, hint="two elements a thread")
    assert (again.facts["state"], again.facts["attempt"]) == ("asks", 3)
    assert "two elements a thread" in again.text


def test_an_agent_of_smolagents_mends_its_kernel_by_the_diagnosis(toolbox: Toolbox) -> None:
    model = ScriptedModel(as_code=False)
    tools = tools_of(toolbox)
    agent = ToolCallingAgent(tools=tools, model=model, max_steps=8, verbosity_level=0)
    assert agent.run("Make me a kernel of scaled_silu.") == "agent/silu.cu"
    x = torch.randn(5, 7)
    y = load(toolbox.session.root / "agent" / "silu.cu")(x, 0.5)
    torch.testing.assert_close(y, torch.nn.functional.silu(x) * 0.5)


@pytest.mark.slow
def test_a_module_is_specified_by_its_class_and_arguments(toolbox: Toolbox) -> None:
    source = """import torch

class Norm(torch.nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
"""
    asked = {"source": source, "function": "Norm(64, eps=1e-5)", "shapes": {"x": "8x64:f32"}}
    answer = call(toolbox, "specify", **asked, accept=True)
    assert answer.facts["op"] == "norm"
    assert "norm(x, weight" in answer.text


@pytest.mark.slow
def test_an_agent_that_writes_code_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    agent = CodeAgent(
        tools=smolagents_tools(tmp_path), model=ScriptedModel(as_code=True), max_steps=8, verbosity_level=0
    )
    assert agent.run("Make me a kernel of scaled_silu.") == "agent/silu.cu"
    assert (tmp_path / "agent" / "silu.cu").is_file()


def test_a_client_of_the_protocol_has_the_same_tools(toolbox: Toolbox) -> None:
    """In memory, for the server's own part; tests over a child's stdin and stdout are in test_mcp.py."""
    heard: list[str] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async def drive() -> None:
        async with Client(McpServer(toolbox).server()) as client:
            listed = {one.name: one for one in (await client.list_tools()).tools}
            assert {name: one.input_schema for name, one in listed.items()} == {
                name: tool.schema() for name, tool in TOOLS.items()
            }
            begun = await client.call_tool("specify", {**ASKED, "fresh": True, "accept": True})
            name = begun.structured_content["run"]
            sent = {"run": name, "attempt": 1, "kernel": RIGHT}
            answer = await client.call_tool("submit_kernel", sent, progress_callback=progress)
            assert answer.structured_content["best"]["attempt"] == 1
            again = await client.call_tool("submit_kernel", sent)
            assert again.is_error
            assert again.content[0].text == f"attempt 1 of run {name} is judged already; attempt 2 is next"

    anyio.run(drive)
    assert any("emulating" in message for message in heard)


def test_exports_stay_below_the_root(toolbox: Toolbox, run: str) -> None:
    for name in ("../x.cu", "/tmp/x.cu", "a/../../x.cu", "x y.cu"):
        assert "is no path to write to" in refusal(toolbox, "export", run=run, destination=name)
    written = call(toolbox, "export", run=run, destination="kernels/silu")
    assert written.facts["files"][0] == "kernels/silu.cu"
    assert (toolbox.session.root / "kernels" / "silu.cu").read_text() == RIGHT
    assert "is there already" in refusal(toolbox, "export", run=run, destination="kernels/silu.cu")


def test_the_other_forms_are_exports_too(toolbox: Toolbox, run: str) -> None:
    assert "is no form of an export" in refusal(toolbox, "export", run=run, destination="p", to="zip")
    assert "is no path to write to" in refusal(toolbox, "export", run=run, destination="../p", to="cuda")
    written = call(toolbox, "export", run=run, destination="plain", to="cuda")
    assert written.facts["standing"] == "verified"
    assert list((toolbox.session.root / "plain").glob("*.cu"))
    assert "is there already" in refusal(toolbox, "export", run=run, destination="plain", to="cuda")


def test_check_finds_what_values_do_not_show(toolbox: Toolbox, run: str) -> None:
    found = call(toolbox, "check", kernel=BEYOND)
    assert found.facts["outcome"] == "findings"
    assert not found.facts["compared"]
    assert "outside every tensor" in found.text
    with pytest.raises(Refused, match="op"):
        call(toolbox, "check", kernel="int x;")
    assert "no name of a run" in refusal(toolbox, "check", kernel=RIGHT, run="../x")


@pytest.mark.slow
def test_check_compares_with_the_reference_of_a_run(toolbox: Toolbox, run: str) -> None:
    found = call(toolbox, "check", kernel=WRONG, run=run)
    assert (found.facts["outcome"], found.facts["compared"]) == ("wrong", True)


def test_a_fault_of_the_program_shows_nothing_of_it(
    toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object, **__: object) -> Answer:
        raise KeyError("secret-of-this-machine")

    monkeypatch.setattr("tilewright.frontends.agents.session.Session.history", breaks)
    assert "fault of tilewright itself (KeyError)" in refusal(toolbox, "history")
    assert "secret-of-this-machine" in capsys.readouterr().err


def test_a_measured_time_has_its_baselines_and_a_modelled_one_has_none() -> None:
    timed = Measured("H200", {}, Timing("kernel", (2.0,)), (Timing("eager", (8.0,)),), 1.0)
    facts = measurement_facts(timed)
    assert (facts["kind"], facts["time_us"], facts["baselines_us"]) == ("measured", 2.0, {"eager": 8.0})
    assert measurement_facts(None) == {"kind": "none"}


def test_every_tool_says_what_each_of_its_parameters_is() -> None:
    assert set(TOOLS) == {"specify", "submit_kernel", "advise", "check", "bench", "history", "finish", "export"}
    for tool in TOOLS.values():
        schema = tool.schema()
        assert all(one["description"].endswith(".") for one in schema["properties"].values()), tool.name
        assert set(schema["required"]) <= set(schema["properties"])


def test_the_docs_name_every_tool() -> None:
    page = (Path(__file__).parents[3] / "docs" / "agents.md").read_text()
    assert [name for name in TOOLS if f"| `{name}` |" not in page] == []


def test_the_command_refuses_what_it_cannot_serve(tmp_path: Path) -> None:
    assert "mcp" in COMMANDS
    done = tilewright(tmp_path, "mcp", "--root", tmp_path / "none")
    assert (done.returncode, "there is no such folder" in done.stderr) == (2, True)
    done = tilewright(tmp_path, "mcp", "--gpu", "abacus")
    assert (done.returncode, "is no GPU known here" in done.stderr) == (2, True)
