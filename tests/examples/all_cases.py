"""Every case of every example, in one tuple."""

from __future__ import annotations

from . import cases_llama, cases_matmul, cases_memory
from .cases import Case

CASES: tuple[Case, ...] = cases_memory.CASES + cases_llama.CASES + cases_matmul.CASES
