"""The boundary around a child that runs foreign code: what the kernel lets it reach, for good.

Inside it a process has its own folder, and may read the interpreter, its packages and the system's libraries. It has no
other file, no network, no new process or program, and no way to another process, its memory or its environment.
Landlock keeps it to its files and seccomp (`system_calls`) to its calls. Both hold for whatever it loads or starts.

A program that may start others (a C++ compiler, those behind torch.compile) starts them inside the same boundary.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import resource
import site
import stat
import struct
import sys
import time
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from tilewright.child import system_calls
from tilewright.child.system_calls import FilterRules

VARIABLE = "TILEWRIGHT_BOUNDARY"  # "off", or "partial" for one as without Landlock
OFF = "off"
_PR_SET_DUMPABLE = 4
_ALONE_WAIT_S = 2.0  # for threads of libraries to end
_MOST_PROCESSES = 512  # of a child that may start programs, above what its user has
_CPU_SECONDS = 48 * 3600  # should nothing else end it


class Strength(str, Enum):
    """How much of the boundary there is on this machine."""

    FULL = "full"
    PARTIAL = "partial"  # no network, no new programs and no changes to files, but it can read what its user can
    NONE = "none"


class BoundaryError(RuntimeError):
    """The boundary cannot be put up although this machine has one."""


@dataclass(frozen=True)
class Wall:
    """What a child needs beyond its own folder and the interpreter's packages."""

    sources: tuple[str, ...] = ()  # folders whose source files it may read
    writable: tuple[str, ...] = ()  # folders
    programs: bool = False
    gpu: bool = False


def strength() -> Strength:
    """What children that run foreign code get here."""
    found, wanted = _available(), os.environ.get(VARIABLE)
    if wanted == OFF:
        return Strength.NONE
    return Strength.PARTIAL if wanted == Strength.PARTIAL.value and found is Strength.FULL else found


@cache
def _available() -> Strength:
    if sys.platform != "linux" or not system_calls.filter_available():
        return Strength.NONE
    return Strength.FULL if _landlock_version() > 0 else Strength.PARTIAL


def strength_words() -> str:
    """What holds here, for a person."""
    found = strength()
    if found is Strength.FULL:
        return f"Landlock (version {_landlock_version()}) and seccomp"
    if os.environ.get(VARIABLE) == OFF:
        return f"switched off by {VARIABLE}={OFF}"
    if found is Strength.PARTIAL:
        return "seccomp without Landlock: references have no network and start nothing, but can read your files"
    return "this system has neither Landlock nor seccomp: references can do what you can"


def hide_from_others() -> None:
    """Keep this process's memory and environment from the other processes of its user, for one that holds keys."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def enclose(wall: Wall, home: str) -> Strength:
    """Put the boundary around this process. No thread of foreign code may have run; raises `BoundaryError`."""
    found = strength()
    if found is Strength.NONE:
        return found
    try:
        _limit_processes(wall)
        system_calls.no_new_privileges()
        if found is Strength.FULL:
            _be_alone()
            _restrict_files(_file_rules(wall, home))
        signals = found is Strength.FULL and wall.programs and _landlock_version() >= _SCOPES
        writing = found is Strength.FULL or wall.programs
        system_calls.drop_capabilities()
        system_calls.install_filter(FilterRules(wall.programs, wall.gpu, signals, writing))
    except OSError as error:
        raise BoundaryError(
            f"the boundary around foreign code cannot be put up here ({error}); {VARIABLE}={OFF} runs it without"
        ) from error
    return found


def _limit_processes(wall: Wall) -> None:
    limits = {resource.RLIMIT_CPU: _CPU_SECONDS}
    if wall.programs and os.getuid():  # the kernel does not count those of root
        threads = _MOST_PROCESSES * (os.cpu_count() or 1)  # a process may have one for each core
        limits[resource.RLIMIT_NPROC] = _processes_of_user() + threads
    for limit, most in limits.items():
        _, hard = resource.getrlimit(limit)
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(limit, (most, most))


def _processes_of_user() -> int:
    """Processes and threads of this user, as the kernel counts them."""
    found = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


def _be_alone() -> None:
    """Have one thread only: Landlock holds for the thread that asks for it and for those that this one starts.

    The idle workers of BLAS libraries end when their process forks, and come back with the next call that needs them.
    """
    deadline = time.monotonic() + _ALONE_WAIT_S
    while len(others := os.listdir("/proc/self/task")) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of a fork beside threads; this one only ends
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if time.monotonic() > deadline:
            raise BoundaryError(
                f"{len(others) - 1} threads of libraries run beside the main one, so the boundary around foreign code "
                f"cannot be put up; {VARIABLE}={OFF} runs it without"
            )


# -- what may be read and written --

_SYSTEM_FOLDERS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt/cuda",
    "/opt/nvidia",
    "/nix/store",
    "/gnu/store",
)
_SYSTEM_FILES = (
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/nsswitch.conf"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/devices", "/proc/modules", "/proc/version"),
    *("/proc/filesystems", "/proc/driver", "/proc/sys/vm"),
    *("/sys/devices", "/sys/bus", "/sys/class", "/sys/module", "/sys/fs/cgroup", "/sys/kernel/mm"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_GPU_DEVICES = ("nvidia*", "nvidia-caps/*", "dxg", "nvhost*", "nvmap")  # of a server, of WSL, of a Jetson
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")

_SOURCES = (".py", ".pyi", ".so", ".cu", ".cuh", ".h", ".hh", ".hpp", ".inl", ".c", ".cc", ".cpp", ".cxx")
_MOST_SOURCES = 20_000
_NO_SOURCES = ("node_modules", "__pycache__", "site-packages", "dist-packages")


def source_files(folder: str, *, but: Collection[str] = ()) -> list[str]:
    """The source files and compiled modules below a folder; none hidden, of a virtual environment, or in `but`."""
    found: list[str] = []
    looked_at = 0
    for place, folders, files in os.walk(folder):
        folders[:] = [
            one for one in folders if one[0] != "." and one not in _NO_SOURCES and os.path.join(place, one) not in but
        ]
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        found += [os.path.join(place, one) for one in files if one.endswith(_SOURCES) and one[0] != "."]
        looked_at += len(files) + len(folders)
        if looked_at > _MOST_SOURCES:
            break
    return found


def _interpreter_folders() -> Iterator[str]:
    """Where Python and its packages are. Any other folder of modules holds more than modules: its sources are read."""
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    yield os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # this package
    yield from (entry for entry in sys.path if os.path.basename(entry) in _PACKAGE_FOLDERS)
    yield site.getusersitepackages()
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    named = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "LD_PRELOAD")]
    yield from (place for place in (*libraries, *named) if not _holds_home(place))


def _module_folders() -> Iterator[str]:
    """Folders on the search path that are no installation, and packages that are installed where their sources are."""
    whole = [one for one in _interpreter_folders() if os.path.isabs(one)]
    editable = [vars(one).get("MAPPING", {}) for name, one in sys.modules.items() if name.startswith("__editable__")]
    for entry in (*sys.path, *(place for mapping in editable for place in mapping.values())):
        if os.path.isabs(entry) and not any(Path(entry).is_relative_to(one) for one in whole):
            yield entry


# Landlock's rights over files. Each version of it knows more of them; the later ones are refused by the filter before.
_EXECUTE, _WRITE, _READ, _LIST, _REMOVE_FOLDER, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_FOLDER, _MAKE_FILE, _MAKE_LINK, _REFER, _TRUNCATE, _CONTROL = 1 << 7, 1 << 8, 1 << 12, 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _CONTROL
_READING = _READ | _LIST
_CHANGING = _WRITE | _TRUNCATE | _MAKE_FILE | _REMOVE_FILE
_OWNING = _READING | _CHANGING | _REMOVE_FOLDER | _MAKE_FOLDER | _MAKE_LINK | _REFER


def _file_rules(wall: Wall, home: str) -> Iterator[tuple[str, int]]:
    """Paths, and the rights over them and all below them."""
    run = _EXECUTE if wall.programs else 0
    yield home, _OWNING | run
    yield from ((path, _OWNING) for path in wall.writable)
    for path in (*_SYSTEM_FOLDERS, *_interpreter_folders()):
        if os.path.isabs(path):
            yield path, _READING | run
    yield from ((path, _READING) for path in (*_SYSTEM_FILES, f"/proc/{os.getpid()}"))
    whole = {*_interpreter_folders()}
    for folder in (*_module_folders(), *wall.sources):
        yield folder, _LIST
        yield from ((path, _READ) for path in source_files(folder, but=whole))
    yield from ((path, _READ | _WRITE) for path in _DEVICES)
    if wall.gpu:
        yield f"/proc/{os.getpid()}/task", _READING | _WRITE | _TRUNCATE  # the driver names its threads there
        for pattern in _GPU_DEVICES:
            yield from ((str(path), _READ | _WRITE | _CONTROL) for path in Path("/dev").glob(pattern))
        yield "/dev/dri", _READING | _WRITE | _CONTROL
        yield "/dev/shm", _READ | _CHANGING  # where CUDA shares memory; others' files there cannot be listed


def _holds_home(path: str) -> bool:
    """Whether a folder on a search path is a whole home or more, as an entry in `LD_LIBRARY_PATH` may be."""
    with contextlib.suppress(KeyError):  # a user without an entry has no home
        return Path(pwd.getpwuid(os.getuid()).pw_dir).is_relative_to(path)
    return False


# -- Landlock --

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, by one number on all machines
_ASK_VERSION, _PATH_BENEATH = 1, 1
_RIGHTS_OF = {1: 13, 2: 14, 3: 15, 4: 15}  # how many rights a version knows; 16 from version 5 on
_NETWORK, _SCOPES = 4, 6  # versions from which on it keeps TCP ports, and signals and abstract sockets


@cache
def _landlock_version() -> int:
    """0 where the kernel has no Landlock."""
    if sys.platform != "linux":
        return 0
    return max(int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE, None, 0, _ASK_VERSION)), 0)


def _restrict_files(rules: Iterable[tuple[str, int]]) -> None:
    version = _landlock_version()
    known = (1 << _RIGHTS_OF.get(version, 16)) - 1
    asked = [known, *([0b11] if version >= _NETWORK else []), *([0b11] if version >= _SCOPES else [])]
    attributes = struct.pack(f"{len(asked)}Q", *asked)
    ruleset = _called("landlock_create_ruleset", _CREATE, attributes, len(attributes), 0)
    try:
        for path, rights in rules:
            _allow(ruleset, path, rights & known)
        _called("landlock_restrict_self", _RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow rights over a path; one that is not there, or a link that takes the place of a file, gets none."""
    flags = os.O_PATH | os.O_CLOEXEC
    try:
        place = os.open(path, flags | (os.O_NOFOLLOW if path.endswith(_SOURCES) else 0))
    except OSError:
        return
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISLNK(mode):
            return
        rights &= rights if stat.S_ISDIR(mode) else _OF_FILES
        if rights:
            _called("landlock_add_rule", _ADD, ruleset, _PATH_BENEATH, struct.pack("<Qi", rights, place), 0)
    finally:
        if not path.startswith("/proc/"):  # which makes an entry anew, without its rule, once nobody has it open
            os.close(place)


def _called(name: str, number: int, *arguments: object) -> int:
    made = int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    if made < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return made
