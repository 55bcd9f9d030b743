"""Launchers over the null driver: every test that takes `launcher` runs once compiled and once in Python."""

from __future__ import annotations

from typing import Any

import pytest
from tests.devices.cuda.null_driver import NullDriver, compiled_launcher_module

from tilewright.devices.cuda.launcher import CompiledLauncher, Launcher, PythonLauncher


@pytest.fixture(scope="session")
def built_driver(tmp_path_factory: pytest.TempPathFactory) -> NullDriver:
    return NullDriver(tmp_path_factory.mktemp("null_driver"))


@pytest.fixture
def driver(built_driver: NullDriver) -> NullDriver:
    built_driver.reset()
    return built_driver


@pytest.fixture(scope="session")
def launcher_module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiled_launcher_module(tmp_path_factory.mktemp("launcher"))


@pytest.fixture(params=["compiled", "python"])
def launcher(request: pytest.FixtureRequest, driver: NullDriver) -> Launcher:
    if request.param == "python":
        return PythonLauncher(driver.library)
    return CompiledLauncher(driver.library, request.getfixturevalue("launcher_module"), driver.path)
