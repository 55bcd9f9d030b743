"""What foreign code may try to get out of its box: none of it reads, changes, reaches or kills anything outside."""

from __future__ import annotations

import ast
import os
import platform
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tilewright.child.boundary import Strength, strength, strength_words
from tilewright.reference import Reference, ReferenceLimits, ReferenceProblem
from tilewright.reference.loading import search_line, searched_folders

needs_boundary = pytest.mark.skipif(strength() is not Strength.FULL, reason=f"no whole boundary: {strength_words()}")

SECRET = "sk-not-for-references"
MARK = "tilewright_escaped"
SOURCE = """
import ctypes, os, socket, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(*arguments):
    made = libc.syscall(*arguments)
    if made < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return made

def act(code):
    scope = dict(globals())
    exec(code, scope)
    return scope.get("found")
"""
HOLDER = f"""
import ctypes, time
held = ctypes.create_string_buffer(b"{SECRET}" + b"!" * 100)
print(ctypes.addressof(held), flush=True)
time.sleep(1000)
"""
PACKAGES = sysconfig.get_path("purelib")
SHARED = Path("/dev/shm", MARK)


@dataclass
class World:
    """What lies outside of the box."""

    folder: Path
    victim: subprocess.Popen[str]  # a process of the same user, with the secret in its memory and environment
    address: int
    tcp: socket.socket
    udp: socket.socket
    unix: socket.socket
    abstract: socket.socket
    before: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def fill(self, code: str) -> str:
        names = {
            "FOLDER": self.folder,
            "VICTIM": self.victim.pid,
            "PARENT": os.getpid(),
            "ADDRESS": self.address,
            "TCP": self.tcp.getsockname()[1],
            "UDP": self.udp.getsockname()[1],
            "PACKAGES": PACKAGES,
            "MARK": MARK,
        }
        for name, value in names.items():
            code = code.replace(f"<{name}>", str(value))
        return code

    def state(self) -> dict[str, tuple[object, ...]]:
        paths = [self.folder, *sorted(self.folder.rglob("*"))]
        found = {
            str(path): (path.lstat().st_mode, path.lstat().st_uid, path.lstat().st_mtime_ns, path.lstat().st_nlink)
            for path in paths
        }
        texts = {f"text of {path}": (path.read_text(),) for path in paths if path.is_file()}
        attributes = {f"attributes of {path}": (tuple(os.listxattr(path)),) for path in paths if path.is_file()}
        return found | texts | attributes

    def check_unharmed(self, answer: str) -> None:
        assert SECRET not in answer, answer
        assert self.state() == self.before
        assert self.victim.poll() is None
        assert Path(f"/proc/{self.victim.pid}/stat").read_text().rpartition(")")[2].split()[0] in "SR", "not stopped"
        assert os.getpriority(os.PRIO_PROCESS, self.victim.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        assert os.sched_getaffinity(self.victim.pid) == os.sched_getaffinity(0)
        for listening in (self.tcp, self.unix, self.abstract):
            with pytest.raises(BlockingIOError):
                listening.accept()
        with pytest.raises(BlockingIOError):
            self.udp.recv(100)
        assert not SHARED.exists()
        assert not list(Path(PACKAGES).glob(f"*{MARK}*"))


def living(session: int | None) -> list[int]:
    """The processes of a session that live."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[3] == str(session) and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret.txt").write_text(SECRET)
    (folder / "notes.txt").write_text("mine")
    (folder / "settings.py").write_text(f"KEY = '{SECRET}'\n")
    (folder / "folder").mkdir()
    environment = {**os.environ, "SOME_API_KEY": SECRET}
    victim = subprocess.Popen([sys.executable, "-c", HOLDER], env=environment, stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    address = int(victim.stdout.readline())
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(folder / "socket"))
    abstract.bind(f"\0{MARK}")
    unix.listen()
    abstract.listen()
    for one in (tcp, udp, unix, abstract):
        one.setblocking(False)
    made = World(folder, victim, address, tcp, udp, unix, abstract)
    made.before = made.state()
    yield made
    victim.kill()
    victim.wait()
    for one in (tcp, udp, unix, abstract):
        one.close()


LIMITS = ReferenceLimits(resident_bytes=3 << 30, address_bytes=2 << 30, load_seconds=300)


@pytest.fixture(scope="module")
def plain() -> Iterator[Reference]:
    with Reference(SOURCE, "act", limits=LIMITS, folder=Path(__file__).parent) as made:
        yield made


@pytest.fixture(scope="module")
def honest() -> Iterator[Reference]:
    """One in which nothing was tried: a subinterpreter that is left behind stops torch's gradients."""
    with Reference(SOURCE, "act", limits=LIMITS, folder=Path(__file__).parent) as made:
        yield made


@pytest.fixture(scope="module")
def starting() -> Iterator[Reference]:
    """One that may start programs, as one for a GPU or for an imported project may."""
    with Reference(SOURCE, "act", limits=LIMITS, folder=Path(__file__).parent, programs=True) as made:
        yield made


def ask(reference: Reference, code: str, seconds: float = 120.0) -> str:
    try:
        return reference.call("handlers:run", code, str, seconds)
    except ReferenceProblem as problem:
        return f"ended: {problem}"


READ = "found = open('<FOLDER>/secret.txt').read()"
ESCAPES = {
    # what a list of forbidden names did not see
    "an annotation that is evaluated": """
import functools
@functools.singledispatch
def f(x): ...
def g(x: "open('<FOLDER>/<MARK>', 'w')"): ...
f.register(g)""",
    "a module found inside another": """
import torch
torch.autograd.graph.logging.FileHandler('<FOLDER>/<MARK>')""",
    "a file opened by numpy": """
import numpy.ma.mrecords as m
found = m.openfile('<FOLDER>/secret.txt').read()""",
    # files
    "reading a file": READ,
    "reading with numpy": "import numpy; found = numpy.fromfile('<FOLDER>/secret.txt', dtype='S1').tobytes()",
    "reading with torch": """
import torch
found = bytes(torch.UntypedStorage.from_file('<FOLDER>/secret.txt', False, 21))""",
    "reading /etc": "import pathlib; found = [p.read_text() for p in pathlib.Path('/etc').glob('shadow')]",
    "importing a file elsewhere": "sys.path.insert(0, '<FOLDER>'); import settings; found = settings.KEY",
    "an import hook": """
import importlib.abc, importlib.machinery, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == 'settings':
            loader = importlib.machinery.SourceFileLoader(name, '<FOLDER>/settings.py')
            return importlib.machinery.ModuleSpec(name, loader)
sys.meta_path.insert(0, Finder())
import settings
found = settings.KEY""",
    "a link out of the folder": """
os.symlink('<FOLDER>/secret.txt', 'link')
found = open('link').read()""",
    "a hard link out of the folder": "os.link('<FOLDER>/secret.txt', 'hard'); found = open('hard').read()",
    "moving a file into the folder": "os.rename('<FOLDER>/secret.txt', 'mine'); found = open('mine').read()",
    "a path through /proc": "found = open('/proc/self/root<FOLDER>/secret.txt').read()",
    "a file by its handle": "found = call(303 if os.uname().machine == 'x86_64' else 264, -100, b'<FOLDER>', 0, 0, 0)",
    "writing a file": "open('<FOLDER>/notes.txt', 'w').write('yours')",
    "truncating while reading": "os.open('<FOLDER>/notes.txt', os.O_RDONLY | os.O_TRUNC)",
    "truncating by name": "os.truncate('<FOLDER>/notes.txt', 0)",
    "removing a file": "os.remove('<FOLDER>/notes.txt')",
    "removing a folder": "os.rmdir('<FOLDER>/folder')",
    "making a folder": "os.mkdir('<FOLDER>/<MARK>')",
    "changing a mode": "os.chmod('<FOLDER>/notes.txt', 0o777)",
    "changing a time": "os.utime('<FOLDER>/notes.txt', (1, 1))",
    "changing an owner": "os.chown('<FOLDER>/notes.txt', 12345, 12345)",
    "an extended attribute": "os.setxattr('<FOLDER>/notes.txt', 'user.<MARK>', b'x')",
    "/dev/shm": "open('/dev/shm/<MARK>', 'w').write('x')",
    "shared memory of Python": """
from multiprocessing import shared_memory
shared_memory.SharedMemory(name='<MARK>', create=True, size=16)""",
    "writing into site-packages": "open('<PACKAGES>/<MARK>.py', 'w').write('x')",
    "a .pth file": "open('<PACKAGES>/<MARK>.pth', 'w').write('import os')",
    "a mount": "libc.mount(b'<FOLDER>', b'.', None, 4096, None) and call(-1); " + READ,
    "another root": "os.chroot('<FOLDER>'); found = open('/secret.txt').read()",
    "io_uring": "found = call(425, 8, ctypes.create_string_buffer(120)) if call(425, 8, 0) else 0",
    # other processes
    "the parent's environment": "found = open('/proc/%d/environ' % os.getppid()).read()",
    "another process's environment": "found = open('/proc/<VICTIM>/environ').read()",
    "another process's memory": "f = open('/proc/<VICTIM>/mem', 'rb'); f.seek(<ADDRESS>); found = f.read(30)",
    "own environment": "found = dict(os.environ), open('/proc/self/environ').read()",
    "ptrace": "call(101 if os.uname().machine == 'x86_64' else 117, 16, <VICTIM>, 0, 0)",
    "process_vm_readv": """
class Part(ctypes.Structure):
    _fields_ = (('at', ctypes.c_void_p), ('size', ctypes.c_size_t))
into = ctypes.create_string_buffer(30)
number = 310 if os.uname().machine == 'x86_64' else 270
here, there = Part(ctypes.addressof(into), 30), Part(<ADDRESS>, 30)
libc.syscall(number, <VICTIM>, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
found = into.raw""",
    "killing the parent": "os.kill(<PARENT>, 9)",
    "killing another process": "os.kill(<VICTIM>, 9)",
    "killing all": "import signal; os.kill(<VICTIM>, signal.SIGSTOP); os.killpg(os.getpgid(<VICTIM>), 19)",
    "killing by a process descriptor": "import signal; signal.pidfd_send_signal(os.pidfd_open(<VICTIM>), 9)",
    "a signal by way of a pipe": """
import fcntl
r, w = os.pipe()
fcntl.fcntl(r, 10, 9)
fcntl.fcntl(r, fcntl.F_SETOWN, <VICTIM>)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
os.write(w, b'x')""",
    "another process's priority": "os.setpriority(os.PRIO_PROCESS, <VICTIM>, 19)",
    "another process's cores": "os.sched_setaffinity(<VICTIM>, {0})",
    "another process's limits": "import resource; resource.prlimit(<VICTIM>, resource.RLIMIT_CPU, (1, 1))",
    # the network
    "TCP": "socket.create_connection(('127.0.0.1', <TCP>))",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', <UDP>))",
    "a web request": "import urllib.request; found = urllib.request.urlopen('http://127.0.0.1:<TCP>')",
    "a unix socket": "s = socket.socket(socket.AF_UNIX); s.connect('<FOLDER>/socket')",
    "an abstract socket": "s = socket.socket(socket.AF_UNIX); s.connect('\\0<MARK>')",
    "a pair of datagram sockets": """
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
a.sendto(b'x', '<FOLDER>/socket')""",
    "a socket by number": """
number = 41 if os.uname().machine == 'x86_64' else 198
s = socket.socket(fileno=call(number, 2, 1, 0))
s.connect(('127.0.0.1', <TCP>))""",
    # programs
    "a shell": "found = os.popen('cat <FOLDER>/secret.txt').read()",
    "a pickle": """
import pickle
class Bad:
    def __reduce__(self):
        return os.system, ('touch <FOLDER>/<MARK>',)
pickle.loads(pickle.dumps(Bad()))""",
    "torch.load of a pickle": """
import io, torch
class Bad:
    def __reduce__(self):
        return os.system, ('touch <FOLDER>/<MARK>',)
file = io.BytesIO()
torch.save(Bad(), file)
file.seek(0)
torch.load(file, weights_only=False)""",
    "a C++ extension": """
from torch.utils.cpp_extension import load_inline
code = '#include <fstream>\\nint f() { std::ofstream("<FOLDER>/<MARK>") << 1; return 1; }'
load_inline('<MARK>', code, functions=['f']).f()""",
    "a program in memory": """
fd = os.memfd_create('x')
os.write(fd, open('/bin/sleep', 'rb').read())
number = 322 if os.uname().machine == 'x86_64' else 281
arguments = (ctypes.c_char_p * 3)(b'<MARK>', b'1000', None)
if os.fork() == 0:
    call(number, fd, b'', arguments, None, 0x1000)
    os._exit(0)""",
    # ways around the filter's arguments, and what root could do
    **{
        f"a signal by way of a socket, {command:#x}": f"""
import fcntl, struct
a, b = socket.socketpair()
fcntl.fcntl(a, 10, 9)
try:
    fcntl.ioctl(a, {command}, struct.pack('i', <VICTIM>))
finally:
    fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC)
    b.send(b'x')"""
        for command in (0x8901, 0x8902)
    },
    "a signal by way of urgent data": "import fcntl, struct; a, b = socket.socketpair(); "
    "fcntl.fcntl(a, 15, struct.pack('ii', 1, <VICTIM>)); b.send(b'x', socket.MSG_OOB)",
    "a signal by way of a timer": """
class Event(ctypes.Structure):
    _fields_ = (('value', ctypes.c_void_p), ('signo', ctypes.c_int), ('how', ctypes.c_int), ('tid', ctypes.c_int),
                ('rest', ctypes.c_char * 44))
number = 222 if os.uname().machine == 'x86_64' else 107
call(number, 0, ctypes.byref(Event(None, 9, 4, <VICTIM>)), ctypes.byref(ctypes.c_int()))""",
    "a library that is mapped": "ctypes.CDLL('<FOLDER>/secret.txt')",
    "a database elsewhere": "import sqlite3; sqlite3.connect('<FOLDER>/<MARK>').execute('create table t (x)')",
    "a source line": "import linecache; found = linecache.getlines('<FOLDER>/secret.txt')",
    "a script by its path": "import runpy; found = runpy.run_path('<FOLDER>/settings.py')['KEY']",
    "a file of the first process": "found = open('/proc/1/root<FOLDER>/secret.txt').read()",
    "a folder of the parent": "found = open('/proc/<PARENT>/cwd<FOLDER>/secret.txt').read()",
    "a file held open by another": "found = [open(f'/proc/<VICTIM>/fd/{n}').read(9) for n in range(3)]",
    "a file in a folder that was opened": """
found = []
for folder in ('/', '/usr', '/proc/self/cwd', '/proc/self/root'):
    at = os.open(folder, os.O_PATH)
    try:
        found.append(os.read(os.open('..' * 0 + '<FOLDER>/secret.txt'[1:], os.O_RDONLY, dir_fd=at), 99))
    except OSError:
        pass""",
    "a link that is swapped": """
import threading
open('own', 'w').write('mine')
found, over = [], []
def swap():
    for k in range(2000):
        os.symlink('<FOLDER>/secret.txt' if k % 2 else 'own', 'next')
        os.rename('next', 'turn')
    over.append(1)
threading.Thread(target=swap).start()
while not over:
    try:
        found.append(open('turn').read())
    except OSError:
        pass
found = set(found)""",
    "its own folder as a link": "home = os.environ['HOME']; os.rename(home, home + '2'); os.symlink('<FOLDER>', home)",
    "a link to what its owner removes": "os.symlink('<FOLDER>', 'over'); os.mkdir('d'); os.symlink('<FOLDER>', 'd/x')",
    "a device of the kernel": "found = [open(p, 'rb').read(9) for p in ('/dev/mem', '/dev/kmsg', '/proc/kcore')]",
    "a page that is watched": "call(323 if os.uname().machine == 'x86_64' else 282, 0)",
    # more ways of torch, numpy and the kernel to a file, a process or a socket
    "torch.load of a mapped file": """
import torch
found = torch.load('<FOLDER>/secret.txt', mmap=True, weights_only=False)""",
    "torch.save over a file": "import torch; torch.save({'a': 1}, '<FOLDER>/notes.txt')",
    "torch.ops.load_library": "import torch; torch.ops.load_library('<FOLDER>/secret.txt')",
    "torch shared memory": """
import torch
torch.UntypedStorage._new_using_filename_cpu(64)
found = torch.zeros(4).share_memory_()""",
    "a profiler's trace": """
import torch
with torch.profiler.profile() as p:
    torch.ones(2) + 1
p.export_chrome_trace('<FOLDER>/<MARK>')""",
    "torch.distributed": """
import torch
torch.distributed.init_process_group('gloo', init_method='file://<FOLDER>/<MARK>', rank=0, world_size=1)""",
    "numpy memmap": "import numpy; m = numpy.memmap('<FOLDER>/notes.txt', mode='r+'); m[0] = 65; m.flush()",
    "writing its own program's memory": """
f = os.open('/proc/%d/mem' % os.getpid(), os.O_RDWR)
os.pwrite(f, b'x', 0)""",
    "a user namespace": "call(272 if os.uname().machine == 'x86_64' else 97, 0x10000000)",
    "entering a namespace": """
f = os.open('/proc/<VICTIM>/ns/mnt', os.O_RDONLY)
call(308 if os.uname().machine == 'x86_64' else 268, f, 0)""",
    "clone with a namespace": "call(56 if os.uname().machine == 'x86_64' else 220, 0x10000000 | 17, 0, 0, 0, 0)",
    "memfd and exec of it": """
fd = os.memfd_create('x')
os.write(fd, b'#!/bin/sh\\ntouch <FOLDER>/<MARK>\\n')
os.execv(f'/proc/self/fd/{fd}', ['x'])""",
    "exec through the loader": """
loader = '/lib64/ld-linux-x86-64.so.2'
os.execv(loader, [loader, '/bin/touch', '<FOLDER>/<MARK>'])""",
    "posix_spawn": "os.posix_spawn('/bin/touch', ['touch', '<FOLDER>/<MARK>'], {})",
    "a subinterpreter": """
import _xxsubinterpreters as s
i = s.create()
s.run_string(i, "open('<FOLDER>/<MARK>', 'w')")""",
    "an exit handler": "import atexit; atexit.register(lambda: open('<FOLDER>/<MARK>', 'w')); os.environ['X'] = '1'",
    "a finaliser": """
class A:
    def __del__(self): open('<FOLDER>/<MARK>', 'w')
A()""",
    "reopening a descriptor to write": "f = os.open('/usr/bin/env', os.O_RDONLY); open(f'/proc/self/fd/{f}', 'r+b')",
    "splice into a file": """
r, w = os.pipe()
os.write(w, b'x')
f = os.open('<FOLDER>/notes.txt', os.O_WRONLY)
os.splice(r, f, 1)""",
    "copy_file_range": """
a = os.open('own', os.O_CREAT | os.O_RDWR)
os.write(a, b'x')
b = os.open('<FOLDER>/notes.txt', os.O_RDWR)
os.copy_file_range(a, b, 1)""",
    "an ioctl that clones a file": """
import fcntl
a = os.open('own', os.O_CREAT | os.O_RDWR)
fcntl.ioctl(a, 0x40049409, os.open('<FOLDER>/secret.txt', os.O_RDONLY))""",
    "a netlink socket": "s = socket.socket(16, 3, 0); found = s.getsockname()",
    "a data loader's workers": "import torch; found = list(torch.utils.data.DataLoader(range(4), num_workers=2))",
    "the maps of another": "found = open('/proc/<VICTIM>/maps').read()[:9]; raise SystemExit",
    "a coredump filter of another": "open('/proc/<VICTIM>/coredump_filter', 'w').write('0')",
    "expat external entity": """
import xml.dom.minidom as m
found = m.parseString('<!DOCTYPE a [<!ENTITY b SYSTEM "file://<FOLDER>/secret.txt">]><a>&b;</a>').toxml()""",
    "a tzfile": "os.environ['TZ'] = ':<FOLDER>/secret.txt'; import time; time.tzset(); found = time.tzname",
    "a process that stays": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1000)'])
    os._exit(0)""",
}


@needs_boundary
@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_leaves_the_box(plain: Reference, world: World, name: str) -> None:
    world.check_unharmed(ask(plain, world.fill(ESCAPES[name])))
    assert living(plain.pid) == [plain.pid]


@needs_boundary
@pytest.mark.parametrize("name", [one for one in ESCAPES if one != "a C++ extension"])  # compiling takes minutes
def test_nor_does_anything_that_programs_inside_it_do(starting: Reference, world: World, name: str) -> None:
    world.check_unharmed(ask(starting, world.fill(ESCAPES[name])))


SHELLS = {
    "its own files": "echo <MARK> > here && cat here",
    "a file outside": "cat <FOLDER>/secret.txt || cp <FOLDER>/secret.txt .",
    "a write outside": "echo x > <FOLDER>/<MARK> || touch <FOLDER>/notes.txt || ln -f <FOLDER>/notes.txt <FOLDER>/two",
    "a changed mode": "chmod 777 <FOLDER>/notes.txt",
    "an environment": "cat /proc/<VICTIM>/environ /proc/<PARENT>/environ",
    "a signal": "kill -9 <VICTIM> <PARENT>",
    "the network": "exec 3<>/dev/tcp/127.0.0.1/<TCP> && echo x >&3",
    "another namespace": "unshare -rmpf cat <FOLDER>/secret.txt",
    "another user": "su nobody -s /bin/sh -c 'cat <FOLDER>/secret.txt'",
}


@needs_boundary
@pytest.mark.parametrize("name", SHELLS)
def test_a_program_is_inside_the_same_box(starting: Reference, world: World, name: str) -> None:
    line = world.fill(SHELLS[name])
    code = f"import subprocess; found = subprocess.run(['bash', '-c', {line!r}], capture_output=True).stdout"
    answer = ask(starting, code)
    assert "failed" not in answer, "the shell did run"
    assert (MARK in answer) is (name == "its own files")
    world.check_unharmed(answer)


STAYS = """
import time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        os.environ.clear()
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1000)'])
"""


@needs_boundary
@pytest.mark.parametrize(
    "ending",
    ["it is closed", *(pytest.param(one, marks=pytest.mark.slow) for one in ("it ends itself", "it is killed"))],
)
def test_what_it_started_ends_with_it(ending: str) -> None:
    with Reference(SOURCE, "act", limits=LIMITS, folder=Path(__file__).parent, programs=True) as made:
        assert ask(made, STAYS) == "None"
        session = made.pid
        assert len(living(session)) == 4
        if ending == "it ends itself":
            assert "exit status 3" in ask(made, "os._exit(3)")
        if ending == "it is killed":
            assert session is not None
            os.kill(session, signal.SIGKILL)
            ask(made, "found = 1")  # sees that it is gone
    assert not living(session)


@pytest.mark.slow
@needs_boundary
def test_a_fork_bomb_is_ended() -> None:
    with Reference(SOURCE, "act", limits=LIMITS, folder=Path(__file__).parent, programs=True) as made:
        made.check()
        session = made.pid
        answer = ask(made, "while True: os.fork()", seconds=20.0)
        assert "was ended" in answer or "Resource temporarily unavailable" in answer  # too many, or too large
    assert not living(session)


@needs_boundary
def test_no_open_file_is_inherited(world: World) -> None:
    secret = os.open(world.folder / "secret.txt", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        with Reference(SOURCE, "act", limits=LIMITS, folder=Path(__file__).parent) as made:
            code = """
found = []
for name in os.listdir('/proc/self/fd'):
    try:
        found.append(os.readlink(f'/proc/self/fd/{name}').split(':')[0])
    except OSError:
        pass"""
            found = set(ast.literal_eval(ask(made, code)))
            assert {one for one in found if not one.startswith("/proc/")} <= {"pipe", "/dev/null"}, found
    finally:
        os.close(secret)


@pytest.mark.slow
@needs_boundary
@pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86-64, which has a second table of system calls")
def test_the_calls_of_another_machine_end_it(world: World) -> None:
    code = """
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex('b814000000cd80c3'))  # getpid by way of int 0x80
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
found = 'went on'"""
    with Reference(SOURCE, "act", limits=LIMITS, folder=Path(__file__).parent) as made:
        assert "killed by SIG" in ask(made, code)  # SIGSYS, or SIGSEGV where the machine has no such calls


@pytest.mark.slow
def test_folders_nested_by_the_thousand_do_not_fail_its_owner() -> None:
    code = """
for _ in range(3000):
    os.mkdir('d')
    os.chdir('d')"""
    with Reference(SOURCE, "act", limits=LIMITS, folder=Path(__file__).parent) as made:
        home = ast.literal_eval(ask(made, "found = os.environ['HOME']"))
        assert ask(made, code) == "None"
    subprocess.run(["rm", "-rf", home], check=True)


REFUSED = {
    "any family of sockets": """
found = []
for family in range(46):
    for kind in (1, 2, 3):
        try:
            socket.socket(family, kind)
            found.append((family, kind))
        except OSError:
            pass
assert not found, found
raise PermissionError""",
    "thawing the filesystem": "import fcntl; fcntl.ioctl(os.open('.', os.O_RDONLY), 0xC0045878, 0)",
    "a file that cannot be removed": """
import fcntl, struct
fcntl.ioctl(os.open('kept', os.O_CREAT | os.O_RDWR), 0x40086602, struct.pack('l', 0x10))""",
    "real-time scheduling": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))",
    "memory that is locked": """
import mmap, resource
page = mmap.mmap(-1, 64 << 20)
if libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page))), ctypes.c_size_t(64 << 20)):
    raise PermissionError""",
    "shared memory of System V": "call(29 if os.uname().machine == 'x86_64' else 194, 77, 4096, 0o1666)",
    "a message queue": "call(240 if os.uname().machine == 'x86_64' else 180, b'<MARK>', 66, 0o600, 0)",
    "a keyring": "call(250 if os.uname().machine == 'x86_64' else 219, 0, -3, 1)",
    "a program in the kernel": "call(321 if os.uname().machine == 'x86_64' else 280, 0, 0, 0)",
    "counters of the processor": "call(298 if os.uname().machine == 'x86_64' else 241, 0, 0, -1, -1, 0)",
    "a parameter of the kernel": "open('/proc/sys/kernel/core_pattern', 'w')",
    "its own place in the order of killing": "open('/proc/self/oom_score_adj', 'w').write('-999')",
    "a tree of mounts": "call(428, -100, b'<FOLDER>', 1)",
}


@needs_boundary
@pytest.mark.parametrize("name", REFUSED)
def test_what_concerns_the_machine_is_refused(plain: Reference, world: World, name: str) -> None:
    code = f"""
def attempt():
    exec({world.fill(REFUSED[name])!r}, globals())
try:
    attempt()
    found = 'it was done'
except (PermissionError, FileNotFoundError) as error:
    found = 'refused'"""
    assert ask(plain, code) == "'refused'"
    world.check_unharmed("")


@needs_boundary
def test_what_is_no_message_ends_it(world: World) -> None:
    with Reference(SOURCE, "act", limits=LIMITS, folder=Path(__file__).parent) as made:
        code = """
a = open("/proc/self/cmdline").read().split("\\0")
os.write(int(a[a.index("--replies") + 1]), b"x" * 999)"""
        assert "no message" in ask(made, code)
    world.check_unharmed("")


@needs_boundary
def test_a_full_folder_is_ended() -> None:
    limits = ReferenceLimits(resident_bytes=1 << 30, address_bytes=2 << 30, load_seconds=300)
    with Reference(SOURCE, "act", limits=limits, folder=Path(__file__).parent) as made:
        code = """
import time
for k in range(20):
    os.posix_fallocate(os.open(str(k), os.O_CREAT | os.O_RDWR), 0, 200 << 20)
time.sleep(60)"""
        assert "files of 4000 MiB together; 20000 files and 1024 MiB are allowed" in ask(made, code, seconds=60.0)


# -- without Landlock, and without either --

PARTLY = {
    "a socket": "socket.socket()",
    "a process": "os.fork()",
    "a program": "os.execv('/bin/true', ['true'])",
    "a file": "open(os.environ['HOME'] + '/x', 'w')",
    "a file without a name": "os.open(os.environ['HOME'], os.O_TMPFILE | os.O_RDWR)",
    "a folder": "os.mkdir(os.environ['HOME'] + '/x')",
    "another name": "os.rename(os.environ['HOME'], os.environ['HOME'] + '2')",
    "a signal": "os.kill(os.getppid(), 0)",
}


@needs_boundary
def test_without_landlock_there_is_no_network_no_program_and_no_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_BOUNDARY", "partial")
    assert strength_words().startswith("seccomp without Landlock")
    with Reference(SOURCE, "act", folder=Path(__file__).parent) as made:
        for name, code in PARTLY.items():
            assert "Operation not permitted" in ask(made, code), name
        assert ask(made, world.fill("found = open('<FOLDER>/notes.txt').read()")) == "'mine'"
        assert ask(made, HONEST["torch"]) == "64.0"


def test_it_can_be_switched_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_BOUNDARY", "off")
    assert strength() is Strength.NONE
    assert strength_words() == "switched off by TILEWRIGHT_BOUNDARY=off"
    with Reference(SOURCE, "act", folder=Path(__file__).parent) as made:
        assert ask(made, world.fill("found = open('<FOLDER>/notes.txt').read()")) == "'mine'"


# -- what honest references need --

HONEST = {
    "torch": "import torch; x = torch.ones(1, 1, 8, 8); found = float(torch.nn.functional.conv2d(x, x).sum())",
    "BLAS of numpy": "import numpy as np; found = float((np.ones((300, 300)) @ np.ones((300, 300))).sum())",
    "threads": "from concurrent.futures import ThreadPoolExecutor as T; found = sum(T(4).map(abs, range(-9, 0)))",
    "files of its own": "open('a', 'w').write('x'); os.rename('a', 'b'); found = open('b').read(); os.remove('b')",
    "a temporary file": "import tempfile; found = tempfile.NamedTemporaryFile(delete=False).write(b'x')",
    "the random source": "import secrets; found = len(secrets.token_bytes(8))",
    "the processor": "found = os.cpu_count() and len(open('/proc/cpuinfo').read()) > 0",
    "its own state": "import resource; found = resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0 and os.getpid() > 0",
    "a graph": "import torch; found = str(torch.fx.symbolic_trace(lambda x: x.relu()).code)",
    "an export": "import torch; found = str(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)))",
    "a gradient": "import torch; x = torch.ones(3, requires_grad=True); x.square().sum().backward(); found = x.grad",
}


@needs_boundary
@pytest.mark.parametrize("name", HONEST)
def test_honest_code_runs(honest: Reference, name: str) -> None:
    answer = ask(honest, HONEST[name])
    assert "failed" not in answer, answer
    assert "ended" not in answer, answer


@needs_boundary
@pytest.mark.slow
def test_models_of_transformers_run(honest: Reference) -> None:
    pytest.importorskip("transformers")
    code = """
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP
found = LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=16))(torch.ones(1, 64)).shape
"""
    assert ask(honest, code) == "torch.Size([1, 64])"


def test_files_beside_it_are_read_and_others_there_are_not(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("from inner.deep import two\n\ndef scaled(x): return x * two()\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").write_text("")
    (tmp_path / "inner" / "deep.py").write_text("def two(): return 2\n")
    (tmp_path / "key.txt").write_text(SECRET)
    (tmp_path / ".hidden.py").write_text(f"KEY = '{SECRET}'")
    (tmp_path / "linked.py").symlink_to(tmp_path / "key.txt")
    source = f"{search_line(str(tmp_path), ['helper'])}\nimport helper\n{SOURCE}"
    assert searched_folders(source) == (str(tmp_path),)
    handlers = search_line(str(Path(__file__).parent), ["handlers"])
    with Reference(f"{handlers}\n{source}", "act") as made:
        assert ask(made, "import helper; found = helper.scaled(21)") == "42"
        if strength() is Strength.FULL:
            for name in ("key.txt", ".hidden.py", "linked.py"):
                assert "Permission denied" in ask(made, f"found = open({str(tmp_path / name)!r}).read()")
