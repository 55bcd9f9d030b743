"""The ways in: a server from the command line, tools from Python; and what to install where a package is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tilewright.frontends.api.kernel_arguments import named_gpu
from tilewright.tasks.errors import BadArgument


def serve_mcp(root: Path, gpu: str | None, spool: Path | None) -> None:
    """Serve over stdin and stdout until the client goes away."""
    if importlib.util.find_spec("mcp") is None:
        raise BadArgument("tilewright mcp needs the package mcp: pip install 'tilewright[mcp]'")
    if not root.is_dir():
        raise BadArgument(f"--root {root}: there is no such folder; exports are written below it")
    if gpu is not None:
        named_gpu(gpu)
    if spool is not None and not spool.is_dir():
        raise BadArgument(
            f"--spool {spool}: there is no such folder; start `python -m tilewright.worker {spool}` first"
        )
    from tilewright.frontends.agents.mcp_server import serve  # with the package, which is not light

    serve(root, gpu=gpu or "", spool=str(spool) if spool else "")


def smolagents_tools(root: str | Path = ".", *, agent: str = "smolagents", gpu: str = "", spool: str = "") -> list[Any]:
    """Tools for an agent of smolagents, by which it writes kernels: `ToolCallingAgent(tools=smolagents_tools(), ...)`.

    What `export` writes goes below the folder `root`; `agent` is the author's name on record; `gpu` and `spool` are as
    for `make`.
    """
    if importlib.util.find_spec("smolagents") is None:
        raise ImportError("smolagents_tools needs the package smolagents: pip install 'tilewright[smolagents]'")
    if not Path(root).is_dir():
        raise BadArgument(f"root {root}: there is no such folder; exports are written below it")
    from tilewright.frontends.agents.smolagents_tools import tools_at  # with the package, which is not light

    return [*tools_at(Path(root), agent=agent, gpu=gpu, spool=spool)]
