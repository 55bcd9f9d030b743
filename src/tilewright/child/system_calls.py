"""The seccomp filter of a child that runs foreign code: which system calls it may not make, as a BPF program.

Files are Landlock's (see `boundary`). This filter refuses what Landlock does not know: sockets, new processes and
programs, signals to others, the memory of others, changes of owners, modes and times, namespaces and mounts, and every
system call that is newer than this table. A refused call fails with EPERM, or with ENOSYS where callers have another
way when the kernel lacks the call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_KEPT_CAPABILITIES = 0b1111  # of root over files that it may not own; Landlock says which files
_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_ALL_THREADS = 1  # SECCOMP_FILTER_FLAG_TSYNC
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

# name: number on x86-64, on aarch64 ("-": the call does not exist there)
_NUMBERS = """
execve 59 221; execveat 322 281; fork 57 -; vfork 58 -; clone 56 220; clone3 435 435; ptrace 101 117;
process_vm_readv 310 270; process_vm_writev 311 271; kcmp 312 272; pidfd_open 434 434; pidfd_getfd 438 438;
pidfd_send_signal 424 424; process_madvise 440 440; process_mrelease 448 448; perf_event_open 298 241;
move_pages 279 239; migrate_pages 256 238; kill 62 129; tkill 200 130; tgkill 234 131; rt_sigqueueinfo 129 138;
rt_tgsigqueueinfo 297 240; prlimit64 302 261; setrlimit 160 164; setpriority 141 140; ioprio_set 251 30;
sched_setaffinity 203 122; sched_setscheduler 144 119; sched_setparam 142 118; sched_setattr 314 274; socket 41 198;
connect 42 203; bind 49 200; listen 50 201; accept 43 202; accept4 288 242; socketpair 53 199; io_uring_setup 425 425;
io_uring_enter 426 426; io_uring_register 427 427; mount 165 40; umount2 166 39; pivot_root 155 41; chroot 161 51;
unshare 272 97; setns 308 268; open_tree 428 428; move_mount 429 429; fsopen 430 430; fsconfig 431 431;
fsmount 432 432; fspick 433 433; mount_setattr 442 442; swapon 167 224; swapoff 168 225; reboot 169 142;
sethostname 170 161; setdomainname 171 162; init_module 175 105; finit_module 313 273; delete_module 176 106;
kexec_load 246 104; kexec_file_load 320 294; bpf 321 280; acct 163 89; quotactl 179 60; quotactl_fd 443 443;
iopl 172 -; ioperm 173 -; syslog 103 116; settimeofday 164 170; clock_settime 227 112; clock_adjtime 305 266;
adjtimex 159 171; vhangup 153 58; lookup_dcookie 212 18; nfsservctl 180 42; uselib 134 -; add_key 248 217;
request_key 249 218; keyctl 250 219; userfaultfd 323 282; open_by_handle_at 304 265; name_to_handle_at 303 264;
fanotify_init 300 262; inotify_init 253 -; inotify_init1 294 26; memfd_create 319 279; memfd_secret 447 447;
shmget 29 194; shmat 30 196; shmctl 31 195; semget 64 190; semop 65 193; semctl 66 191; semtimedop 220 192;
msgget 68 186; msgsnd 69 189; msgrcv 70 188; msgctl 71 187; mq_open 240 180; mq_unlink 241 181; personality 135 92;
setuid 105 146; setgid 106 144; setreuid 113 145; setregid 114 143; setresuid 117 147; setresgid 119 149;
setfsuid 122 151; setfsgid 123 152; setgroups 116 159; prctl 157 167; fcntl 72 25; ioctl 16 29;
chmod 90 -; fchmod 91 52; fchmodat 268 53; fchmodat2 452 452; chown 92 -; fchown 93 55; lchown 94 -; fchownat 260 54;
utime 132 -; utimes 235 -; futimesat 261 -; utimensat 280 88; setxattr 188 5; lsetxattr 189 6; fsetxattr 190 7;
removexattr 197 14; lremovexattr 198 15; fremovexattr 199 16; statmount 457 457; listmount 458 458;
open 2 -; openat 257 56; openat2 437 437; creat 85 -; truncate 76 45; mkdir 83 -; mkdirat 258 34; unlink 87 -;
unlinkat 263 35; rmdir 84 -; rename 82 -; renameat 264 38; renameat2 316 276; link 86 -; linkat 265 37; symlink 88 -;
symlinkat 266 36; mknod 133 -; mknodat 259 33; setsid 112 157; setpgid 109 154
"""
_FIRST_UNKNOWN = 463  # setxattrat; older ones that are not in the table are harmless
_X32 = 0x40000000  # x86-64 has a second table of calls above this number

_NEVER = """
ptrace process_vm_readv process_vm_writev kcmp pidfd_open pidfd_getfd pidfd_send_signal process_madvise
process_mrelease perf_event_open move_pages migrate_pages setrlimit setpriority ioprio_set
connect mount umount2 pivot_root chroot unshare setns open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
swapon swapoff reboot sethostname setdomainname init_module finit_module delete_module kexec_load kexec_file_load bpf
acct quotactl quotactl_fd iopl ioperm syslog settimeofday clock_settime clock_adjtime adjtimex vhangup lookup_dcookie
nfsservctl uselib add_key request_key keyctl userfaultfd open_by_handle_at name_to_handle_at fanotify_init inotify_init
inotify_init1 memfd_secret shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open
mq_unlink personality setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr
fsetxattr removexattr lremovexattr fremovexattr
"""
_AS_IF_ABSENT = "clone3 io_uring_setup io_uring_enter io_uring_register openat2 statmount listmount"
_NO_PROGRAMS = "execve execveat fork vfork"
_NO_GPU = "bind listen accept accept4 memfd_create"
_NO_WRITING = """
creat truncate mkdir mkdirat unlink unlinkat rmdir rename renameat renameat2 link linkat symlink symlinkat mknod mknodat
"""

_CLONE_THREAD, _CLONE_PARENT = 0x00010000, 0x00008000
_CLONE_NAMESPACES = 0x7E020000
_AF_UNIX, _SOCK_DGRAM, _SOCK_TYPE = 1, 2, 0xF
# Parent-death signal, dumpable, memory map, who may trace, child subreaper.
_REFUSED_PRCTL = (1, 4, 35, 0x59616D61, 36)
_F_SETOWN, _F_SETOWN_EX = 8, 15  # signals to others by way of a descriptor
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # typing into a terminal
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902  # as F_SETOWN, of sockets
_FIFREEZE, _FITHAW, _FITRIM, _EXT4_SHUTDOWN = 0xC0045877, 0xC0045878, 0xC0185879, 0x8004587D  # of a whole filesystem
_FS_SETFLAGS, _FS_SETXATTR = 0x40086602, 0x401C5820  # a file that nobody can remove
_REFUSED_IOCTL = (
    *(_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP, _FIFREEZE, _FITHAW, _FITRIM, _EXT4_SHUTDOWN),
    *(_FS_SETFLAGS, _FS_SETXATTR),
)
_O_ACCMODE, _O_CREAT, _O_TRUNC = 0o3, 0o100, 0o1000


@dataclass(frozen=True)
class FilterRules:
    """What the filter leaves open."""

    programs: bool = False  # new processes and programs, which get the same filter
    gpu: bool = False  # what a GPU's driver needs
    signals: bool = False  # signals to any process, where Landlock keeps them inside
    writing: bool = True  # creating and changing files, where Landlock says which


@dataclass(frozen=True)
class _Test:
    """A test of an argument's lower (or upper) 32 bits."""

    argument: int
    value: int
    mask: int = 0xFFFFFFFF
    equal: bool = True  # or unequal
    upper: bool = False


@dataclass(frozen=True)
class _Refusal:
    """A call that fails where all tests hold."""

    call: str
    tests: tuple[_Test, ...] = ()
    error: int = errno.EPERM


def _refusals(rules: FilterRules, pid: int) -> Iterator[_Refusal]:
    yield from map(_Refusal, _NEVER.split())
    yield from (_Refusal(name, error=errno.ENOSYS) for name in _AS_IF_ABSENT.split())
    yield from _of_processes(rules, pid)
    yield from _of_descriptors(rules)
    if not rules.gpu:
        yield from map(_Refusal, _NO_GPU.split())
        yield _Refusal("socket")
    yield _Refusal("socket", (_Test(0, _AF_UNIX, equal=False),))
    # A pair of datagram sockets could still send to others.
    yield _Refusal("socketpair", (_Test(1, _SOCK_DGRAM, _SOCK_TYPE),))


def _of_processes(rules: FilterRules, pid: int) -> Iterator[_Refusal]:
    if rules.programs:
        # A namespace of its own would take its processes out of sight, and so would another parent.
        yield _Refusal("clone", (_Test(0, 0, _CLONE_NAMESPACES, equal=False),))
        yield _Refusal("clone", (_Test(0, _CLONE_PARENT, _CLONE_PARENT), _Test(0, 0, _CLONE_THREAD)))
        # All stay in one session and group, which are killed at once. They are told that they left, and go on.
        yield from (_Refusal(name, error=0) for name in ("setsid", "setpgid"))
    else:
        yield from map(_Refusal, _NO_PROGRAMS.split())
        yield _Refusal("clone", (_Test(0, 0, _CLONE_THREAD),))
    if not rules.gpu:
        for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
            yield _Refusal(name, (_Test(0, 0, equal=False),))
    if not rules.signals:
        for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
            yield _Refusal(name, (_Test(0, pid, equal=False),))
        yield _Refusal("tkill")
    yield _Refusal("prlimit64", (_Test(0, 0, equal=False), _Test(0, pid, equal=False)))
    yield _Refusal("prlimit64", (_Test(2, 0, equal=False),))  # a new limit: the address of one
    yield _Refusal("prlimit64", (_Test(2, 0, equal=False, upper=True),))
    for option in _REFUSED_PRCTL:
        yield _Refusal("prctl", (_Test(0, option),))


def _of_descriptors(rules: FilterRules) -> Iterator[_Refusal]:
    for command in (_F_SETOWN, _F_SETOWN_EX):
        yield _Refusal("fcntl", (_Test(1, command),))
    for command in _REFUSED_IOCTL:
        yield _Refusal("ioctl", (_Test(1, command),))
    for name, flags in (("open", 1), ("openat", 2)):
        # Opening to read and truncating at once changes a file that may only be read, on kernels before 6.2.
        yield _Refusal(name, (_Test(flags, 0, _O_ACCMODE), _Test(flags, _O_TRUNC, _O_TRUNC)))
        if not rules.writing:
            yield _Refusal(name, (_Test(flags, 0, _O_ACCMODE, equal=False),))
            yield _Refusal(name, (_Test(flags, _O_CREAT, _O_CREAT),))
    if not rules.writing:
        yield from map(_Refusal, _NO_WRITING.split())


# -- as a BPF program --

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the table, audit number
_SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}


def _program(rules: FilterRules, pid: int) -> bytes:
    column, machine = _MACHINES[platform.machine()]
    numbers = _numbers(column)
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if column == 0:
        lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    lines += [(_AT_LEAST, 0, 1, _FIRST_UNKNOWN), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for one in _refusals(rules, pid):
        if one.call in numbers:
            lines += _refusal_lines(one, numbers[one.call])
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _refusal_lines(one: _Refusal, number: int) -> list[tuple[int, int, int, int]]:
    """The lines for a call; where a test does not hold they skip to the end."""
    body: list[tuple[int, int, int, int]] = [(_RETURN, 0, 0, _ERRNO | one.error)]
    for test in reversed(one.tests):
        skip = len(body)
        # The filter sees the call's number, the machine, the place in the program, then six arguments of 64 bits.
        load = [(_LOAD, 0, 0, 16 + 8 * test.argument + 4 * test.upper)]
        load += [(_AND, 0, 0, test.mask)] if test.mask != 0xFFFFFFFF else []
        jump = (_EQUAL, 0, skip, test.value) if test.equal else (_EQUAL, skip, 0, test.value)
        body = [*load, jump, *body]
    return [(_LOAD, 0, 0, 0), (_EQUAL, 0, len(body), number), *body]


def _numbers(column: int) -> dict[str, int]:
    rows = (row.split() for row in _NUMBERS.split(";"))
    return {name: int(number) for name, *both in rows if (number := both[column]) != "-"}


# -- installing it --


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def filter_available() -> bool:
    """Whether this kernel takes such a filter."""
    if platform.machine() not in _MACHINES:
        return False
    action = ctypes.c_uint32(_ERRNO)
    library = ctypes.CDLL(None, use_errno=True)
    number = _SECCOMP_CALL[platform.machine()]
    return int(library.syscall(number, _GET_ACTION_AVAIL, 0, ctypes.byref(action))) == 0


def no_new_privileges() -> None:
    """What the kernel wants before either part of the boundary: no program gets more rights than its starter has."""
    _checked(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def drop_capabilities() -> None:
    """Of root, what concerns the machine rather than files: filesystems, real-time scheduling, locked memory."""
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    library = ctypes.CDLL(None, use_errno=True)
    held = ctypes.create_string_buffer(24)
    _checked(library.capget(header, held), "capget")
    kept = [word & (_KEPT_CAPABILITIES if place < 3 else 0) for place, word in enumerate(struct.unpack("6I", held.raw))]
    _checked(library.capset(header, struct.pack("6I", *kept)), "capset")


def install_filter(rules: FilterRules) -> None:
    """Filter the system calls of all threads of this process and of all that it starts, for good. Raises `OSError`."""
    lines = _program(rules, os.getpid())
    program = _Program(len(lines) // 8, lines)
    library = ctypes.CDLL(None, use_errno=True)
    number = _SECCOMP_CALL[platform.machine()]
    _checked(library.syscall(number, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program)), "seccomp")


def _checked(status: int, what: str) -> None:
    if status < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    if status > 0:
        raise OSError(errno.ESRCH, f"{what}: thread {status} cannot be filtered")
