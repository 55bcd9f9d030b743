"""NVRTC builds of kernel files: cubin, PTX, resource use and located diagnostics, cached by content."""

from tilewright.toolchain.builder import (
    BuiltPlan,
    LaunchReport,
    bind_plan,
    build,
    build_key,
    build_many,
    build_plan,
    cache_directory,
    cache_size_bytes,
    launch_occupancy,
    report_launch,
)
from tilewright.toolchain.cache import BuildCache
from tilewright.toolchain.errors import ToolchainError
from tilewright.toolchain.pool import BuildLimits, CompilePool
from tilewright.toolchain.sass import SassInstruction, SassListing, disassemble, highlights, sass_text
from tilewright.toolchain.toolkit import Toolkit, find_toolkit
