"""Tests of what models are told and of how their replies are read."""
