"""Tilewright for agents: one set of tools, served over MCP, handed to smolagents, and described in an Agent Skill.

An agent is one more author: its kernels go through the same loop and referee as a model's replies.
"""
