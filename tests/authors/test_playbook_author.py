"""The author without a model, from words to kernels that the referee passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.tasks.in_process import HereReference

from tilewright.authors import Author
from tilewright.authors.playbook_author import PlaybookAuthor
from tilewright.devices.child_device import EmulatedDevice
from tilewright.playbook.errors import NotSupported
from tilewright.playbook.understanding import understand
from tilewright.records import (
    PROFILES,
    Attempt,
    Dimension,
    DType,
    Passed,
    Proposal,
    Question,
    Rejected,
    Reply,
    Situation,
    Stage,
    Task,
    TaskOutput,
    TensorInput,
    WrongValues,
)
from tilewright.records.json_form import from_json, to_json
from tilewright.records.verdict import Case
from tilewright.tasks import TaskOptions, task_from_specification
from tilewright.verify import Referee
from tilewright.words import NotUnderstood

AUTHOR: Author = PlaybookAuthor()


def no_model(question: Question) -> Reply:
    raise AssertionError("the playbook asked a model")


@pytest.fixture(scope="module")
def task() -> Task:
    shapes = {"x": "4096x1024:bf16"}
    made = AUTHOR.specify("layernorm then gelu", shapes, "H200", no_model)
    return task_from_specification(made, TaskOptions())


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(PROFILES["H200"]) as device:
        yield device


def _attempt(number: int, stage: Stage, proposal: Proposal, passed: bool = True) -> Attempt:
    wrong = Rejected(WrongValues(Case({"rows": 1, "cols": 8}, 0), ()))
    return Attempt(
        number, number, stage, None, proposal.summary, None, Passed(()) if passed else wrong, recipe=proposal.recipe
    )


def _proposals(task: Task, emulated_only: bool = True) -> list[Proposal]:
    """What the author proposes when everything passes."""
    history: tuple[Attempt, ...] = ()
    found: list[Proposal] = []
    for number in range(1, 20):
        stage = Stage.STRUCTURE if number > 1 else Stage.DRAFT
        proposal = AUTHOR.propose(
            Situation(task, stage, number, history=history, emulated_only=emulated_only), no_model
        )
        if proposal is None:
            return found
        found.append(proposal)
        history += (_attempt(number, stage, proposal),)
    raise AssertionError("the author never ends")


@pytest.mark.slow
def test_the_first_proposals_pass_the_referee(task: Task, emulator: EmulatedDevice) -> None:
    proposals = _proposals(task)
    assert len(proposals) >= 3
    assert len({one.text for one in proposals}) == len(proposals)
    _check_passed(task, emulator, proposals[:2])


@pytest.mark.slow
def test_every_proposal_passes_the_referee(task: Task, emulator: EmulatedDevice) -> None:
    _check_passed(task, emulator, _proposals(task))


def _check_passed(task: Task, emulator: EmulatedDevice, proposals: list[Proposal]) -> None:
    with HereReference(task.reference, task.function) as reference:
        referee = Referee(task, reference, emulator=emulator)
        for proposal in proposals:
            assert proposal.text is not None
            verdict = referee.judge(proposal.text)
            assert isinstance(verdict, Passed), (proposal.summary, verdict)


def test_a_large_product_is_for_wgmma_with_a_gpu_and_without() -> None:
    inputs = (TensorInput("x", DType.F16, ("m", "k")), TensorInput("w", DType.F16, ("k", "n")))
    sizes = (Dimension("m", 2048), Dimension("k", 2048), Dimension("n", 2048))
    reference = "import torch\n\n\ndef f(x, w):\n    return x @ w\n"
    product = Task("f", reference, "f", inputs, (TaskOutput("y", DType.F16, ("m", "n")),), sizes)
    with_gpu = [one.summary for one in _proposals(product, emulated_only=False)]
    without = [one.summary for one in _proposals(product)]
    assert "wgmma" in with_gpu[0]
    assert "baseline" in with_gpu[-1], "which comes last where there is a GPU"
    assert without == [with_gpu[-1], *with_gpu[:-1]]


def test_what_is_known_to_lose_is_tried_only_where_nothing_passes() -> None:
    inputs = (TensorInput("x", DType.F32, ("m", "k")), TensorInput("w", DType.F32, ("k", "n")))
    sizes = (Dimension("m", 4096), Dimension("k", 4096), Dimension("n", 4096))
    reference = "import torch\n\n\ndef f(x, w):\n    return x @ w\n"
    product = Task("f", reference, "f", inputs, (TaskOutput("y", DType.F32, ("m", "n")),), sizes)
    first = AUTHOR.propose(Situation(product, Stage.DRAFT, 1), no_model)
    assert first is not None
    assert "wgmma" in first.summary
    passed, failed = (_attempt(1, Stage.DRAFT, first, passed=one) for one in (True, False))
    third = AUTHOR.propose(Situation(product, Stage.STRUCTURE, 2, history=(passed,)), no_model)
    assert third is not None
    assert "baseline" in third.summary
    second = AUTHOR.propose(Situation(product, Stage.DRAFT, 2, history=(failed,)), no_model)
    assert second is not None
    assert "mma.sync" in second.summary


def test_with_a_gpu_the_draft_comes_when_no_structure_has_passed(task: Task) -> None:
    history: tuple[Attempt, ...] = ()
    summaries = []
    for number in range(1, 20):
        situation = Situation(task, Stage.DRAFT, number, history=history, emulated_only=False)
        proposal = AUTHOR.propose(situation, no_model)
        if proposal is None:
            break
        summaries.append(proposal.summary)
        history += (_attempt(number, Stage.DRAFT, proposal, passed=False),)
    assert len(summaries) > 2
    assert ["baseline" in one for one in summaries] == [False] * (len(summaries) - 1) + [True]


def test_the_same_situation_gets_the_same_file(task: Task) -> None:
    situation = Situation(task, Stage.STRUCTURE, 2)
    assert AUTHOR.propose(situation, no_model) == PlaybookAuthor().propose(situation, no_model)


def test_candidates_of_one_step_differ(task: Task) -> None:
    first = AUTHOR.propose(Situation(task, Stage.STRUCTURE, 2), no_model)
    assert first is not None
    for history in ((), (_attempt(2, Stage.STRUCTURE, first),)):
        second = AUTHOR.propose(Situation(task, Stage.STRUCTURE, 3, candidate=1, history=history), no_model)
        assert second is not None
        assert second.summary != first.summary


def test_a_structure_that_fails_is_tried_with_exact_functions_once(task: Task) -> None:
    failed = AUTHOR.propose(Situation(task, Stage.STRUCTURE, 2), no_model)
    assert failed is not None
    failing = _attempt(2, Stage.STRUCTURE, failed, passed=False)
    repair = Situation(task, Stage.REPAIR_WRONG, 3, failing=failing, history=(failing,))
    safer = AUTHOR.propose(repair, no_model)
    assert safer is not None
    assert safer.text is not None
    assert "erff" in safer.text
    assert "approx" not in safer.text
    again = _attempt(3, Stage.REPAIR_WRONG, safer, passed=False)
    assert (
        AUTHOR.propose(Situation(task, Stage.REPAIR_WRONG, 4, failing=again, history=(failing, again)), no_model)
        is None
    )


def test_the_last_stage_offers_one_hint_and_ends(task: Task) -> None:
    best = AUTHOR.propose(Situation(task, Stage.STRUCTURE, 2), no_model)
    assert best is not None
    parent = _attempt(2, Stage.STRUCTURE, best)
    polished = AUTHOR.propose(Situation(task, Stage.PROFILED, 3, parent=parent, history=(parent,)), no_model)
    assert polished is not None
    assert polished.text is not None
    assert "__stcs" in polished.text
    history = (parent, _attempt(3, Stage.PROFILED, polished))
    assert AUTHOR.propose(Situation(task, Stage.PROFILED, 4, parent=parent, history=history), no_model) is None


def test_a_task_outside_the_playbook_is_refused_in_one_sentence() -> None:
    inputs = (TensorInput("a", DType.F32, ("m", "k")),)
    sizes = tuple(Dimension(name, 64) for name in "mk")
    source = "import torch\n\n\ndef f(a):\n    return torch.linalg.svdvals(a)\n"
    solved = Task("f", source, "f", inputs, (TaskOutput("y", DType.F32, ("k",)),), sizes)
    with pytest.raises(NotSupported, match=r"no rule for .*svd.*;.*model"):
        AUTHOR.propose(Situation(solved, Stage.DRAFT, 1), no_model)


def test_words_outside_the_grammar_are_refused() -> None:
    with pytest.raises(NotUnderstood, match=r"frobnicate.*model"):
        AUTHOR.specify("frobnicate each row", {}, "H200", no_model)


# -- what was proposed before --


def test_a_reworded_summary_is_known_by_its_recipe(task: Task) -> None:
    first = AUTHOR.propose(Situation(task, Stage.STRUCTURE, 2), no_model)
    assert first is not None
    assert first.recipe
    history = (replace(_attempt(2, Stage.STRUCTURE, first), summary="said in other words"),)
    second = AUTHOR.propose(Situation(task, Stage.STRUCTURE, 3, history=history), no_model)
    assert second is not None
    assert second.recipe not in ("", first.recipe)


# -- what algebra has removed --


def test_notes_go_with_the_proposal_and_into_the_file(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, found = ("diag(A) @ B is a row scale, so no product is computed.",), understand(task)
    noted = replace(found, structures=tuple(one.noted(notes) for one in found.structures))
    monkeypatch.setattr("tilewright.authors.playbook_author.understand", lambda _: noted)
    proposal = AUTHOR.propose(Situation(task, Stage.DRAFT, 1), no_model)
    assert proposal is not None
    assert proposal.notes == notes
    assert proposal.text is not None
    comment, _, plan = proposal.text.partition("\n\n")
    assert comment.endswith("//\n// By algebra: diag(A) @ B is a row scale, so no product is computed.")
    assert plan.startswith("//! op")
    assert from_json(Proposal, to_json(proposal)) == proposal
    assert "notes" not in to_json(replace(proposal, notes=()))  # as it was stored before there were any
