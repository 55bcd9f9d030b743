"""Tests of this part have their references in their own process; with children they are the front ends' tests."""

from tests.tasks.in_process import references_here

__all__ = ["references_here"]
