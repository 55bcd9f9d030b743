"""Tests of this part share the children of equal references."""

from tests.kept_references import kept_references

__all__ = ["kept_references"]
