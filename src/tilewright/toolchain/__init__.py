"""NVRTC builds of kernel files: cubin, PTX, resource use and located diagnostics, cached by content."""

from tilewright.toolchain.builder import (
    DEFAULT_CACHE,
    DEFAULT_LIMITS,
    build,
    build_key,
    build_many,
    cache_directory,
    cache_size_bytes,
    default_pool,
)
from tilewright.toolchain.cache import BuildCache
from tilewright.toolchain.errors import ToolchainError
from tilewright.toolchain.pool import BuildLimits, CompilePool
from tilewright.toolchain.sass import SassInstruction, SassListing, disassemble, highlights, sass_text
from tilewright.toolchain.toolkit import Toolkit, find_toolkit

__all__ = [
    "DEFAULT_CACHE",
    "DEFAULT_LIMITS",
    "BuildCache",
    "BuildLimits",
    "CompilePool",
    "SassInstruction",
    "SassListing",
    "ToolchainError",
    "Toolkit",
    "build",
    "build_key",
    "build_many",
    "cache_directory",
    "cache_size_bytes",
    "default_pool",
    "disassemble",
    "find_toolkit",
    "highlights",
    "sass_text",
]
