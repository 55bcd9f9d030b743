"""NVRTC builds of kernel files: cubin, PTX, resource use and located diagnostics, cached by content."""

from tilewright.toolchain.builder import (
    BuildCache,
    BuiltPlan,
    LaunchReport,
    bind_plan,
    build,
    build_key,
    build_many,
    build_plan,
    cache_size_bytes,
    launch_occupancy,
    report_launch,
)
from tilewright.toolchain.file_cache import FileCache, cache_directory
from tilewright.toolchain.nvrtc import ToolchainError, Toolkit, find_toolkit
from tilewright.toolchain.pool import BuildLimits, CompilePool
from tilewright.toolchain.sass import SassInstruction, SassListing, disassemble, highlights, sass_text
