"""Atomic and durable file operations: after a kill or a power cut, a write is complete or absent.

A file is written under a temporary name, fsynced, renamed, and its folder fsynced. A journal line
is one append with an fsync; a line without newline does not count. Every operation has a failpoint
before and after it: ``point("journal", *LINE_ACTS)`` declares ``journal.write.before`` and so on.
The order follows Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014).

Errors of the disk (full, quota, read-only, broken) are raised as ``StorageError``.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NoReturn

from ppojob_trainer import failpoints
from ppojob_trainer.errors import StorageError

Act = Literal["write", "fsync", "rename", "fsync_folder", "truncate", "remove"]

FILE_ACTS: Final[tuple[Act, ...]] = ("write", "fsync", "rename", "fsync_folder")
LINE_ACTS: Final[tuple[Act, ...]] = ("write", "fsync", "fsync_folder")
RENAME_ACTS: Final[tuple[Act, ...]] = ("rename", "fsync_folder")
TRUNCATE_ACTS: Final[tuple[Act, ...]] = ("truncate", "fsync")
REMOVE_ACTS: Final[tuple[Act, ...]] = ("remove", "fsync_folder")

_STORAGE_ERRNOS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
    | {errno.ESTALE, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
)


def point(name: str, *acts: Act) -> str:
    """Declare the failpoints of a file for some of the ``*_ACTS``; return `name`.

    The functions below take that name.
    """
    for act in dict.fromkeys(acts):
        failpoints.declare(f"{name}.{act}.before")
        failpoints.declare(f"{name}.{act}.after")
    return name


@contextlib.contextmanager
def act(name: str, kind: Act, path: Path) -> Iterator[None]:
    """Run the block between the two failpoints of an operation on `path`."""
    failpoints.hit(f"{name}.{kind}.before")
    try:
        yield
    except OSError as error:
        raise_storage_error(path, kind, error)
    failpoints.hit(f"{name}.{kind}.after")


def make_folder(path: Path, *, parents: bool = False, exist_ok: bool = False) -> None:
    """Make a folder as `Path.mkdir` does, with StorageError for errors of the disk."""
    try:
        path.mkdir(parents=parents, exist_ok=exist_ok)
    except OSError as error:
        raise_storage_error(path, "mkdir", error)


def need_space(folder: Path, size_bytes: int) -> None:
    """Raise StorageError if the file system has less free space; quotas are not considered."""
    stat = os.statvfs(folder)
    # Some file systems report no sizes.
    if stat.f_blocks and stat.f_bavail * stat.f_frsize < size_bytes:
        doing = f"write of {size_bytes / 2**20:.0f} MiB"
        raise_storage_error(folder / "_", doing, OSError(errno.ENOSPC, ""))


def raise_storage_error(path: Path, doing: str, error: OSError) -> NoReturn:
    """Raise StorageError with the free space for an error of the disk, else `error` itself."""
    if error.errno not in _STORAGE_ERRNOS:
        raise error
    text = os.strerror(error.errno)
    raise StorageError(path, f"{doing} failed: {text}; {_free_space(path)}") from error


def _free_space(path: Path) -> str:
    for folder in path.parents:
        try:
            stat = os.statvfs(folder)
        except OSError:
            continue
        free_mib = stat.f_bavail * stat.f_frsize / 2**20
        return f"{free_mib:.0f} MiB and {stat.f_favail} inodes are free in {folder}"
    return "free space is unknown"


def write_file(path: Path, data: bytes, name: str) -> None:
    """Replace a file atomically; on an error the old content stays.

    `name` is a point with FILE_ACTS.
    """
    aside = path.with_name(f".{path.name}.aside")
    try:
        with act(name, "write", path):
            aside.write_bytes(data)
        with act(name, "fsync", path):
            _fsync_path(aside)
    except StorageError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    rename(aside, path, name)


def append_line(path: Path, line: bytes, name: str) -> None:
    """Append one line to a journal and fsync it; on an error the file is unchanged.

    An incomplete last line of a killed writer is removed first. `name` is a point with LINE_ACTS.
    """
    assert b"\n" not in line, "a journal line holds no newline"
    file = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        end = _whole_lines_end(file)
        if end != os.fstat(file).st_size:
            os.ftruncate(file, end)
        if end == 0:
            # Make the file name durable before the first line.
            fsync_folder(path.parent, name)
        try:
            with act(name, "write", path):
                write_all(file, memoryview(line + b"\n"))
            with act(name, "fsync", path):
                os.fsync(file)
        except StorageError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, end)
            raise
    finally:
        os.close(file)


def read_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a journal, without newlines; none if the file is absent."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]


def truncate(path: Path, size_bytes: int, name: str) -> None:
    """Truncate a file durably; `name` is a point with TRUNCATE_ACTS."""
    with act(name, "truncate", path):
        os.truncate(path, size_bytes)
    with act(name, "fsync", path):
        _fsync_path(path)


def sha256_of(path: Path) -> tuple[int, str]:
    """Return size in bytes and sha256 in hex of a file, read through one small buffer.

    Read, not mapped: a bad sector raises OSError here, and SIGBUS in a mapping.
    """
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def rename(source: Path, target: Path, name: str) -> None:
    """Rename durably within one file system; `name` is a point with RENAME_ACTS.

    The content of `source` must be fsynced already. `target` is replaced if it is a file or a link.
    """
    with act(name, "rename", target):
        source.rename(target)
    fsync_folder(target.parent, name)
    if source.parent != target.parent:
        fsync_folder(source.parent, name)


def fsync_folder(path: Path, name: str) -> None:
    """Make the entries of a folder durable, such as a rename or a new file."""
    with act(name, "fsync_folder", path):
        _fsync_path(path)


def fsync_file(path: Path, name: str) -> None:
    """Make the content of a file durable, after a library has written it."""
    with act(name, "fsync", path):
        _fsync_path(path)


def remove_tree(path: Path, name: str) -> None:
    """Remove a folder or a file, if present; `name` is a point with REMOVE_ACTS.

    This is not atomic: rename a folder first if a partly removed one must not be seen.
    """
    with act(name, "remove", path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    fsync_folder(path.parent, name)


def open_file(path: Path, flags: int) -> int:
    """Open a file that children do not inherit; StorageError for errors of the disk."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise_storage_error(path, "open", error)


def write_all(file: int, data: memoryview) -> None:
    """Write a whole buffer to a file descriptor, also if single writes are short."""
    while data:
        data = data[os.write(file, data) :]


def _fsync_path(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _whole_lines_end(file: int) -> int:
    """Return the offset after the last newline."""
    end = os.fstat(file).st_size
    if not end or os.pread(file, 1, end - 1) == b"\n":
        return end
    return os.pread(file, end, 0).rfind(b"\n") + 1
