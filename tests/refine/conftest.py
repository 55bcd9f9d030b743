"""The playbook's references of these tests are in their own process; test_kill.py has children."""

from tests.tasks.in_process import references_here

__all__ = ["references_here"]
