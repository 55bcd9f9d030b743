"""The one compiled part: the launcher of the CUDA device. Optional, since a pure Python path does the same work."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tilewright.devices.cuda._launcher",
            sources=["src/tilewright/devices/cuda/launcher.c"],
            extra_compile_args=["-O2", "-std=c11"],
            libraries=["dl"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
