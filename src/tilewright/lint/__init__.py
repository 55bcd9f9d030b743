"""Rules on source, PTX and machine code that tell what is wrong or slow in a kernel without running it."""

from tilewright.lint.catalogue import RULES
from tilewright.lint.linting import lint_plan

__all__ = ["RULES", "lint_plan"]
