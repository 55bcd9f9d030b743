"""From the command line to a server, and what to install where its package is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tilewright.frontends.kernel_arguments import BadArgument, named_gpu


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
