"""Tilewright for agents: one set of tools, served over MCP or handed to smolagents.

An agent is one more author. What it submits goes through the same loop and referee as a model's reply, into a run of
the same form; nothing here judges, and nothing here decides what is asked next.
"""
