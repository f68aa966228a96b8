"""Entry of a sandboxed process: it confines itself irrevocably, then runs the program.

The program is Python code in this process, or a shell command in a workspace.
`ppojob_trainer.sandbox.process` passes the text of this file to a new interpreter, and a message on
a pipe. The program is compiled and run only after `_confine`, which it cannot undo. The message has
no expected value, so the memory of this process reveals only the program's own input, and a nonce
that marks answers.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from types import ModuleType

TYPE_CHECKING = False  # fast start: typing, json and signal are not always needed
if TYPE_CHECKING:
    from typing import Any

NOT_PYTHON = 3
"""Exit status for code that does not compile."""

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_SECCOMP_MODE_FILTER = 2
_SIGKILL = 9
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_MAKE_DEVICES = 1 << 6 | 1 << 11
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of file rights by Landlock version."""
TRUNCATION_SINCE, _NETWORK_SINCE, SCOPES_SINCE = 3, 4, 6

_libc = ctypes.CDLL(None, use_errno=True)


def _main(message_fd: int, answer_fd: int) -> None:
    with os.fdopen(message_fd, "rb") as pipe:
        message = eval(pipe.read(), {"__builtins__": {}})  # a literal, written by our own parent
    os.set_inheritable(answer_fd, False)
    _confine(message)
    if message["shell"]:
        _become_shell(**message["shell"])
    sys.path[:] = message["modules"]
    sys.argv[:] = [""]
    module = ModuleType("solution" if message["function"] else "__main__")
    sys.modules[module.__name__] = module
    module.__dict__.update(exit=sys.exit, quit=sys.exit)  # without -S, site gives them
    exec(message["prelude"], module.__dict__)
    try:
        code = compile(message["code"], "<response>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        os._exit(NOT_PYTHON)
    if message["function"]:
        arguments = _arguments(message)
        exec(code, module.__dict__)
        value = eval(message["function"], module.__dict__)(*arguments)
        _answer(value, message["nonce"], answer_fd)
        return
    try:
        exec(code, module.__dict__)
    except SystemExit:  # as for verl, such a program has ended well
        return


def _become_shell(command: str, folder: str, files: dict[str, str]) -> None:
    """Write files into the folder, then replace this process by a shell that runs the command.

    The sandbox is on already: a link in the workspace leads these files nowhere else.
    """
    os.dup2(1, 2)
    os.chdir(folder)
    for path, text in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
    # Without --norc it takes its standard input, about which it may not ask, for a connection.
    os.execv("/bin/bash", ["bash", "--norc", "-c", command])


def _arguments(message: dict[str, Any]) -> list[Any]:
    """Decode the arguments of the call, before the program can replace any name."""
    import json

    arguments: list[Any] = json.loads(message["arguments"])
    if message["integer_keys"]:
        arguments[0] = {int(key): value for key, value in arguments[0].items()}
    return arguments


def _answer(value: object, nonce: str, answer_fd: int) -> None:
    """Send a value as JSON."""
    import json

    answer = memoryview((nonce + json.dumps(value)).encode())
    while answer:
        answer = answer[os.write(answer_fd, answer) :]


def _confine(message: dict[str, Any]) -> None:
    _control(_PR_SET_PDEATHSIG, _SIGKILL)
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    if message["shell"]:
        _control(PR_SET_CHILD_SUBREAPER, 1)  # so that all its processes can be counted
        os.nice(10)  # who counts them comes first, also before a fork bomb
    _limit(message)
    _drop_capabilities()
    if message["landlock"]:
        _hide_files(message["landlock"], message["readable"], message["writable"])
    if message["filter"]:
        _filter_system_calls(message["filter"])


def _limit(message: dict[str, Any]) -> None:
    seconds = message["cpu_seconds"]
    limits = {
        # Runtimes such as Node's reserve much more address space than they use.
        resource.RLIMIT_DATA if message["shell"] else resource.RLIMIT_AS: message["memory_bytes"],
        resource.RLIMIT_NOFILE: message["open_files"],
        resource.RLIMIT_FSIZE: message["file_bytes"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for name, value in limits.items():
        _, most = resource.getrlimit(name)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(name, (value, value))


def _drop_capabilities() -> None:
    """Drop all capabilities of root; no_new_privs makes it irrevocable."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked("capset", _libc.capset(header, (ctypes.c_uint32 * 6)()))


def _hide_files(version: int, readable: tuple[str, ...], writable: tuple[str, ...]) -> None:
    """Landlock: allow only reading, and only in a few folders, and all in the `writable` ones.

    Of both, paths may be files.
    If the kernel supports it, ports and signals to other processes are also blocked.
    """
    rights = (1 << max(n for since, n in _FILE_RIGHTS.items() if since <= version)) - 1
    ports = 0b11 if version >= _NETWORK_SINCE else 0
    scopes = 0b11 if version >= SCOPES_SINCE else 0
    ruleset = (ctypes.c_uint64 * 3)(rights, ports, scopes)
    rules = _call(_LANDLOCK_CREATE, ruleset, ctypes.c_size_t(ctypes.sizeof(ruleset)), 0)
    of_files = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
    for path in readable + writable:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = rights & ~_MAKE_DEVICES if path in writable else _EXECUTE | _READ_FILE | _READ_DIR
        if not os.path.isdir(path):
            allowed &= of_files
        beneath = allowed.to_bytes(8, sys.byteorder) + folder.to_bytes(4, sys.byteorder)
        _call(_LANDLOCK_ADD, rules, _LANDLOCK_RULE_PATH_BENEATH, beneath, 0)
        os.close(folder)
    _call(_LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _filter_system_calls(instructions: bytes) -> None:
    """Seccomp: the kernel refuses all system calls that the filter does not allow."""
    kept = ctypes.create_string_buffer(instructions, len(instructions))
    program = _Filter(len(instructions) // 8, ctypes.addressof(kept))
    _control(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))


def _control(option: int, value: int, pointer: object = None) -> None:
    _checked(f"prctl({option})", _libc.prctl(option, value, pointer, 0, 0))


def _call(number: int, *arguments: object) -> int:
    return _checked(f"system call {number}", _libc.syscall(number, *arguments))


def _checked(what: str, result: int) -> int:
    if result < 0:
        sys.exit(f"sandbox: {what}: {os.strerror(ctypes.get_errno())}")
    return result


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
