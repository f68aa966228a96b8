"""Seccomp filters of the sandbox: allowed system calls; the kernel refuses all others.

That of programs allows to compute, wait, start threads and read accessible files. It deliberately
lacks sockets, processes and programs, signals, memory, limits and priority of other processes,
owners, modes and times of files (which Landlock does not protect), mounts and namespaces, shared
memory that outlives its creator, and all newer system calls.

That of workspaces also allows processes, and to write the files that Landlock leaves accessible.
All processes stay in one process group, so that one signal ends them.
"""

import ctypes
import errno
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass

_ALLOWED = """
read readv pread64 preadv preadv2 write writev pwrite64 pwritev lseek close close_range
dup dup2 dup3 pipe pipe2 fsync fdatasync fadvise64 readahead
stat lstat fstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat
getdents getdents64 getcwd chdir fchdir umask
select pselect6 poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime recvfrom shutdown getsockopt
brk mmap munmap mremap mprotect madvise msync mincore membarrier
futex futex_waitv set_robust_list get_robust_list rseq set_tid_address sched_yield
sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min
rt_sigaction rt_sigprocmask rt_sigpending rt_sigreturn rt_sigsuspend rt_sigtimedwait sigaltstack
pause alarm getitimer setitimer restart_syscall wait4 waitid
clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times
timer_create timer_settime timer_gettime timer_getoverrun timer_delete
getpid getppid gettid getpgrp getpgid getsid getuid geteuid getgid getegid getgroups
getresuid getresgid getcpu getrandom getrlimit getrusage sysinfo uname capget arch_prctl
exit exit_group
"""

_OF_WORKSPACES = """
creat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link linkat
symlink symlinkat ftruncate copy_file_range sendfile flock
getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
execve execveat vfork getpriority
"""
_WITHOUT_EFFECT = """
chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat utime utimes utimensat futimesat
setsid setpgid sync syncfs
"""
"""Nothing confines modes, owners and times to the workspace: devices are the machine's, also in
namespaces. One signal to one process group ends all processes. Nobody waits for the disks."""
_UNSUPPORTED = "fallocate setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr"
"""Programs know file systems without them. `fallocate` takes space beyond the limit of a file."""
_SIGNALS = "tkill tgkill rt_sigqueueinfo"

_OPEN_TO_WRITE = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
_CLONE_THREAD = 0x10000
_CLONE_APART = 0x7E020080 | 0x8000
"""New namespaces, and CLONE_PARENT, whose processes are no descendants of the shell."""
_STREAM, _KINDS_OF_SOCKET = 1, 0xF
_UNIX = 1
_UNEQUAL, _EQUAL, _MASKED = 1, 4, 7
"""Comparisons of libseccomp: an argument differs from a value, or it or a masked one equals it."""

_Comparisons = tuple[tuple[int, int, int, int], ...]
_Conditions = tuple[tuple[str, _Comparisons], ...]
_Rule = tuple[int, str, _Comparisons]
_OF_A_PROGRAM: _Conditions = (
    # Only to read. Landlock restricts the files; its first versions allow to truncate them.
    ("open", ((1, _MASKED, _OPEN_TO_WRITE, 0),)),
    ("openat", ((2, _MASKED, _OPEN_TO_WRITE, 0),)),
    # Threads, and no processes.
    ("clone", ((0, _MASKED, _CLONE_THREAD, _CLONE_THREAD),)),
)
_OF_A_WORKSPACE: _Conditions = (("clone", ((0, _MASKED, _CLONE_APART, 0),)),)
_CONDITIONAL: _Conditions = (
    # asyncio wakes itself by a connected pair of sockets, without an address.
    ("socketpair", ((0, _EQUAL, _UNIX, 0), (1, _MASKED, _KINDS_OF_SOCKET, _STREAM))),
    ("sendto", ((4, _EQUAL, 0, 0),)),
    # Its own limits, and names of its threads.
    ("prlimit64", ((0, _EQUAL, 0, 0),)),
    *(("prctl", ((0, _EQUAL, option, 0),)) for option in (15, 16)),
    # Duplicates, flags and locks of descriptors: none of the commands that send signals.
    *(("fcntl", ((1, _EQUAL, command, 0),)) for command in (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032)),
    # Terminal or not, its width, readable bytes; close on exec, non-blocking.
    *(
        ("ioctl", ((1, _EQUAL, request, 0),))
        for request in (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
    ),
)

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
_PRETEND = _REFUSE  # the error 0


class FilterError(Exception):
    """libseccomp is missing, or failed."""


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class Shell:
    """What confines the commands of a workspace besides the filter."""

    signals: bool  # signals reach nothing outside
    truncation: bool  # no file outside can be truncated


@functools.cache
def filter_program(shell: Shell | None = None) -> bytes:
    """Compile the list to a BPF program for this processor, by libseccomp, or raise FilterError.

    It is that of workspaces with a `shell`.
    """
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        raise FilterError("libseccomp.so.2 is not installed") from None
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_REFUSE | errno.EPERM)))
    try:
        for action, name, comparisons in _rules(shell):
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number >= 0:  # not every processor has every call
                found = [_Comparison(*each) for each in comparisons]
                array = (_Comparison * len(found))(*found)
                add, code = library.seccomp_rule_add_array, ctypes.c_uint32(action)
                _checked(add(context, code, number, len(found), array))
        return _exported(library, context)
    finally:
        library.seccomp_release(context)


def _rules(shell: Shell | None) -> Iterator[_Rule]:
    yield from ((_ALLOW, name, ()) for name in _ALLOWED.split())
    conditional = (*(_OF_A_WORKSPACE if shell else _OF_A_PROGRAM), *_CONDITIONAL)
    yield from ((_ALLOW, name, comparisons) for name, comparisons in conditional)
    if shell is not None:
        yield from _rules_of_workspaces(shell)
    # The C library then uses clone, whose flags can be checked.
    yield _REFUSE | errno.ENOSYS, "clone3", ()


def _rules_of_workspaces(shell: Shell) -> Iterator[_Rule]:
    yield from ((_ALLOW, name, ()) for name in _OF_WORKSPACES.split())
    yield from ((_PRETEND, name, ()) for name in _WITHOUT_EFFECT.split())
    yield from ((_REFUSE | errno.ENOTSUP, name, ()) for name in _UNSUPPORTED.split())
    if shell.signals:
        yield from ((_ALLOW, name, ()) for name in _SIGNALS.split())
        # `timeout` also sends its signal to its group, which here is that of the shell.
        yield _ALLOW, "kill", ((0, _UNEQUAL, 0, 0),)
        yield _PRETEND, "kill", ((0, _EQUAL, 0, 0),)
    if shell.truncation:
        yield from ((_ALLOW, name, ()) for name in ("open", "openat", "truncate"))
        return
    # Without a right of its own, truncation needs that to write.
    for name, flags in (("open", 1), ("openat", 2)):
        yield _ALLOW, name, ((flags, _MASKED, os.O_TRUNC, 0),)
        for access in (os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC):
            yield _ALLOW, name, ((flags, _MASKED, os.O_ACCMODE | os.O_TRUNC, access),)


def _exported(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    descriptor = os.memfd_create("filter")
    try:
        _checked(library.seccomp_export_bpf(context, descriptor))
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read()
    finally:
        os.close(descriptor)


def _checked(result: int) -> None:
    if result < 0:
        raise FilterError(f"libseccomp: {os.strerror(-result)}")
