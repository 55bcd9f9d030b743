"""A model as an author: one question, at most one correction, and a proposal whatever comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.prompts.samples import KERNEL, LAYERNORM, situation

from tilewright.authors import Author
from tilewright.authors.model_author import ModelAuthor
from tilewright.prompts.question import question_text, system_text
from tilewright.prompts.replies import ReplyProblem
from tilewright.records import Question, Reply, Role, Situation, Stage, StopReason

GOOD = f"Summary: a warp per row\n\n```cuda\n{KERNEL}```\n"
DRAFT = Situation(LAYERNORM, Stage.DRAFT, 3)


class Scripted:
    """Replies in turn, and keeps what it was asked."""

    def __init__(self, *replies: str | Reply) -> None:
        self.replies = [one if isinstance(one, Reply) else Reply("scripted", one, StopReason.END) for one in replies]
        self.asked: list[Question] = []

    def __call__(self, question: Question) -> Reply:
        self.asked.append(question)
        return self.replies[len(self.asked) - 1]


def test_a_good_reply_is_a_proposal() -> None:
    author: Author = ModelAuthor("anthropic:some-model")
    ask = Scripted(GOOD)
    proposal = author.propose(DRAFT, ask)
    assert proposal is not None
    assert (proposal.text, proposal.summary, proposal.problem) == (KERNEL, "a warp per row", "")
    (question,) = ask.asked
    assert question.id == "0003-1"
    assert question.system == system_text(LAYERNORM)
    assert question.messages[0].text == question_text(DRAFT)
    assert author.name == "anthropic:some-model"


def test_the_system_text_is_the_same_through_a_run() -> None:
    ask = Scripted(GOOD, GOOD)
    ModelAuthor("m").propose(DRAFT, ask)
    ModelAuthor("m").propose(situation(Stage.STRUCTURE), ask)
    assert ask.asked[0].system == ask.asked[1].system


def test_without_a_gpu_the_model_is_told_so() -> None:
    ask = Scripted(GOOD)
    ModelAuthor("m").propose(replace(DRAFT, emulated_only=True), ask)
    assert ask.asked[0].system == system_text(LAYERNORM, emulated_only=True)


def test_edits_are_of_the_file_that_was_shown() -> None:
    edit = "Summary: s\n<<<<<<< SEARCH\n#include <cuda_bf16.h>\n=======\n#include <mma.h>\n>>>>>>> REPLACE\n"
    for stage in (Stage.REPAIR_BUILD, Stage.STRUCTURE):
        proposal = ModelAuthor("m").propose(situation(stage), Scripted(edit))
        assert proposal.text == KERNEL.replace("#include <cuda_bf16.h>", "#include <mma.h>")


def test_one_correction_is_asked_for_in_the_same_conversation() -> None:
    bad = "Summary: s\n<<<<<<< SEARCH\nno such line\n=======\nx\n>>>>>>> REPLACE\n"
    ask = Scripted(bad, GOOD)
    proposal = ModelAuthor("m").propose(situation(Stage.STRUCTURE), ask)
    assert proposal.text == KERNEL
    first, second = ask.asked
    assert [question.id for question in ask.asked] == ["0009-1", "0009-2"]
    assert second.messages[0] == first.messages[0]
    assert [message.role for message in second.messages] == [Role.USER, Role.ASSISTANT, Role.USER]
    assert second.messages[1].text == bad.strip()
    assert "no line is `no such line`" in second.messages[2].text
    assert second.system == first.system


def test_a_second_bad_reply_ends_it() -> None:
    ask = Scripted("nothing", "nothing again", GOOD)
    proposal = ModelAuthor("m").propose(DRAFT, ask)
    assert proposal.text is None
    assert proposal.problem.startswith("asked twice, and the reply has neither a ```cuda block")
    assert len(ask.asked) == 2


def test_a_reply_that_was_cut_is_asked_for_shorter() -> None:
    cut = Reply("scripted", GOOD[: len(GOOD) // 2] + "x" * 9000, StopReason.LENGTH)
    ask = Scripted(cut, GOOD)
    assert ModelAuthor("m").propose(situation(Stage.STRUCTURE), ask).text == KERNEL
    quoted, correction = ask.asked[1].messages[1:]
    assert "reached the limit on output" in correction.text
    assert "SEARCH/REPLACE edits of the file above, or a shorter file" in correction.text
    assert len(quoted.text) < 4100
    assert quoted.text.endswith("[cut off here]")


def test_a_whole_file_before_the_limit_is_taken() -> None:
    ask = Scripted(Reply("scripted", GOOD + "and furthermore", StopReason.LENGTH))
    assert ModelAuthor("m").propose(DRAFT, ask).text == KERNEL


def test_a_refusal_is_not_asked_again() -> None:
    ask = Scripted(Reply("scripted", "I cannot help with that.", StopReason.REFUSED), GOOD)
    proposal = ModelAuthor("m").propose(DRAFT, ask)
    assert proposal.text is None
    assert proposal.problem == "the model refused: I cannot help with that."
    assert len(ask.asked) == 1


def test_an_empty_reply_can_be_quoted() -> None:
    ask = Scripted("", GOOD)
    assert ModelAuthor("m").propose(DRAFT, ask).text == KERNEL
    assert ask.asked[1].messages[1].text == "(empty reply)"


def test_a_missing_summary_costs_nothing() -> None:
    proposal = ModelAuthor("m").propose(DRAFT, Scripted(f"```cuda\n{KERNEL}```\n"))
    assert (proposal.text, proposal.summary) == (KERNEL, "no summary given")


# -- words --

SPECIFICATION = """```python
import torch


def double(x):
    return x * 2
```

```toml
name = "double"
function = "double"
assumptions = ["f32"]

[dimensions]
n = 1000000

[inputs]
x = "f32[n]"
```
"""


def test_words_become_a_specification_after_one_correction() -> None:
    ask = Scripted(SPECIFICATION.replace('x = "f32[n]"', 'z = "f32[n]"'), SPECIFICATION)
    found = ModelAuthor("m").specify("twice x", {"x": "1000000:f32"}, "H200", ask)
    assert found.assumptions == ("f32",)
    assert "return x * 2" in found.reference
    assert [question.id for question in ask.asked] == ["0000-1", "0000-2"]
    assert "the [inputs] are z but double takes x" in ask.asked[1].messages[2].text


def test_words_that_cannot_be_specified_raise() -> None:
    with pytest.raises(ReplyProblem, match="asked twice"):
        ModelAuthor("m").specify("twice x", {}, "H200", Scripted("?", "?"))
    with pytest.raises(ReplyProblem, match="refused"):
        ModelAuthor("m").specify("x", {}, "H200", Scripted(Reply("s", "", StopReason.REFUSED)))
