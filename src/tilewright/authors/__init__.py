"""Who writes kernels, as the loop sees it: a model that is asked with prompts, or the built-in playbook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tilewright.records import Proposal, Question, Reply, Situation, Specification

Ask = Callable[[Question], Reply]


class Author(Protocol):
    """Proposes kernel files. It keeps no state between calls: a situation says all there is to know, so a run that was
    stopped goes on as if it had not been."""

    @property
    def name(self) -> str: ...

    @property
    def reads_evidence(self) -> bool:
        """Whether it makes anything of the profiler's evidence, which takes seconds to have."""
        ...

    def specify(self, words: str, shapes: Mapping[str, str], gpu: str, ask: Ask) -> Specification:
        """The reference and the inputs for a request in words. Raises a `ValueError` that says why there is none."""

    def propose(self, situation: Situation, ask: Ask) -> Proposal | None:
        """The next candidate; None where the author has nothing further to propose."""
