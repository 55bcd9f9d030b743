"""`build`: a request to a build, through the cache, in this process or in a limited child."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tilewright.records import ARCHITECTURES, Build, BuildFailure, BuildRequest
from tilewright.toolchain.cache import BuildCache
from tilewright.toolchain.compile import compile_request
from tilewright.toolchain.diagnostics import renamed
from tilewright.toolchain.errors import ToolchainError
from tilewright.toolchain.pool import BuildLimits, CompilePool
from tilewright.toolchain.source import assemble
from tilewright.toolchain.toolkit import Toolkit, find_toolkit

# Part of every key: changes when the same compiler output would be read or judged differently.
RULES_VERSION = 2

DEFAULT_CACHE = BuildCache()
DEFAULT_LIMITS = BuildLimits()


def build(
    request: BuildRequest,
    *,
    isolated: bool = True,
    limits: BuildLimits = DEFAULT_LIMITS,
    cache: BuildCache | None = DEFAULT_CACHE,
) -> Build | BuildFailure:
    """Build one request. A source that cannot be built is a `BuildFailure`; `ToolchainError` is ours or the machine's.

    `isolated` compiles in a child process under `limits`: for code nobody has vouched for. Without it the compiler runs
    in this process, without limits: for code its user chose to load. `cache=None` neither reads nor keeps builds.
    """
    if request.arch not in ARCHITECTURES:
        raise ToolchainError(f"no build target is called {request.arch!r}; known: {', '.join(ARCHITECTURES)}")
    toolkit = find_toolkit()
    key = build_key(request, toolkit)
    result = cache.get(key) if cache is not None else None
    if result is None:
        if isolated:
            result = default_pool().run(request, key, limits)
        else:
            result = compile_request(request, toolkit, key)
        if cache is not None:
            cache.put(key, result)
    return _called_by_name(result, request.name)


def build_many(
    requests: Sequence[BuildRequest],
    *,
    isolated: bool = True,
    limits: BuildLimits = DEFAULT_LIMITS,
    cache: BuildCache | None = DEFAULT_CACHE,
) -> tuple[Build | BuildFailure, ...]:
    """Build several requests on all cores; results in the order of the requests."""
    if not requests:
        return ()
    with ThreadPoolExecutor(max_workers=min(len(requests), default_pool().size)) as executor:
        futures = [
            executor.submit(build, request, isolated=isolated, limits=limits, cache=cache) for request in requests
        ]
        return tuple(future.result() for future in futures)


def build_key(request: BuildRequest, toolkit: Toolkit) -> str:
    """The content address of a request: source, constants, kernels, options, compiler and headers, not its name."""
    unit = assemble(request)
    parts = [RULES_VERSION, unit.text, unit.options, unit.kernels, toolkit.fingerprint]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def default_pool() -> CompilePool:
    """The pool of this process; its children start with the first isolated build."""
    return CompilePool()


def cache_directory() -> Path:
    """Where builds are kept."""
    return DEFAULT_CACHE.directory


def cache_size_bytes() -> int:
    """What the kept builds take."""
    return DEFAULT_CACHE.size_bytes()


def _called_by_name(result: Build | BuildFailure, name: str) -> Build | BuildFailure:
    if isinstance(result, Build):
        return replace(result, warnings=renamed(result.warnings, name)) if result.warnings else result
    return replace(result, diagnostics=renamed(result.diagnostics, name))
