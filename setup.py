"""The compiled parts: the launcher of the CUDA device and the core of the emulator.

Both are optional, so that the package installs without a C compiler: the launcher has a pure Python path that does the
same work; the emulator says at first use that its core is missing. For a developer they are not: a failure would leave
the objects of an earlier build in place, so `make` sets TILEWRIGHT_REQUIRE_COMPILED and stops at an error in C. The core
is a plain shared object, loaded with ctypes. Nothing is built for this machine's processor in particular: wider code is
chosen at run time.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

CORE = Path("src/tilewright/ptx/core")
OPTIONAL = not os.environ.get("TILEWRIGHT_REQUIRE_COMPILED")

setup(
    ext_modules=[
        Extension(
            "tilewright.devices.cuda._launcher",
            sources=["src/tilewright/devices/cuda/launcher.c"],
            extra_compile_args=["-O2", "-std=c11"],
            libraries=["dl"],
            py_limited_api=True,
            optional=OPTIONAL,
        ),
        Extension(
            "tilewright.ptx._core",
            sources=[str(path) for path in sorted(CORE.glob("*.c"))],
            depends=[str(path) for path in sorted([*CORE.glob("*.h"), *CORE.glob("*.def")])],
            extra_compile_args=[
                "-O3",
                "-g0",  # Python's own flags ask for debug information, which is three quarters of the object
                "-std=gnu11",
                "-ffp-contract=off",
                "-fno-trapping-math",  # nobody looks at exceptions, and loops over lanes can be vectorised
                "-fno-math-errno",
                "-Wno-psabi",  # vectors pass between inlined functions only
                "-fno-strict-aliasing",
                "-fwrapv",
                "-pthread",
            ],
            extra_link_args=["-pthread"],
            libraries=["m"],
            py_limited_api=True,
            optional=OPTIONAL,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
