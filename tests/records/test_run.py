"""What a run's records say of themselves."""

from __future__ import annotations

from tilewright.records import Ending, from_json, to_json


def test_an_ending_is_a_word_on_record_and_a_sentence_for_a_person() -> None:
    assert to_json(Ending.ATTEMPTS) == "attempts"
    assert Ending.ATTEMPTS.words == "the budget of attempts is spent"
    assert "performance model" in Ending.AT_BOUND.words
    assert all(" " not in one.value and " " in one.words for one in Ending)
    assert len({one.words for one in Ending}) == len(Ending)


def test_endings_on_record_as_sentences_are_read() -> None:
    former = {
        "within the wanted fraction of the roofline": Ending.GOOD_ENOUGH,
        "at what the least traffic takes in the model": Ending.AT_BOUND,
        "no step paid any more": Ending.SETTLED,
        "the budget of attempts is spent": Ending.ATTEMPTS,
        "the budget of tokens is spent": Ending.TOKENS,
        "the budget of dollars is spent": Ending.DOLLARS,
        "the budget of seconds is spent": Ending.SECONDS,
        "the author has nothing further to propose": Ending.AUTHOR_DONE,
        "several replies in a row could not be used": Ending.UNREADABLE,
    }
    assert {from_json(Ending, text) for text in former} == set(Ending)
    assert {text: from_json(Ending, text) for text in former} == former
