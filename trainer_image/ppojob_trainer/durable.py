"""Writes that survive a kill or a power cut at any moment, or did not happen at all.

A file is written aside, fsynced, renamed, and its folder fsynced; a journal line is one append
with an fsync, and a line without its newline was never written. Every act has a failpoint on both
sides: ``point("journal", *LINE_ACTS)`` declares ``journal.write.before`` and so on, and the
functions here hit them. The order is that of Pillai et al., "All File Systems Are Not Created
Equal" (OSDI 2014): no rename before the data's fsync, no claim before the folder's.

Refusals of the disk (full, quota, read-only, broken) become ``StorageError``.
"""

import contextlib
import errno
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
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EROFS,
        errno.ESTALE,
        errno.EACCES,
        errno.EPERM,
        errno.ENAMETOOLONG,
    }
)
_TAIL_WINDOW_BYTES: Final = 1 << 16


def point(name: str, *acts: Act) -> str:
    """Declare the failpoints of one durable thing.

    The acts are those of one of the ``*_ACTS`` above, or some of them. Returns the name, which is
    handed to the functions below.
    """
    for act in dict.fromkeys(acts):
        failpoints.declare(f"{name}.{act}.before")
        failpoints.declare(f"{name}.{act}.after")
    return name


@contextlib.contextmanager
def act(name: str, kind: Act, path: Path) -> Iterator[None]:
    """Do one durable act between its two failpoints.

    `path` is what is acted on, for the error.
    """
    failpoints.hit(f"{name}.{kind}.before")
    try:
        yield
    except OSError as error:
        raise_storage_error(path, kind, error)
    failpoints.hit(f"{name}.{kind}.after")


def make_folder(path: Path, *, parents: bool = False, exist_ok: bool = False) -> None:
    """Make a folder, as `Path.mkdir` does.

    Raises:
        StorageError: the disk refused.
    """
    try:
        path.mkdir(parents=parents, exist_ok=exist_ok)
    except OSError as error:
        raise_storage_error(path, "mkdir", error)


def need_space(folder: Path, size_bytes: int) -> None:
    """Refuse to write more than there is room for, before that takes the room that others need.

    Raises:
        StorageError: the disk has less; one with a quota may refuse later.
    """
    stat = os.statvfs(folder)
    # Some file systems tell no sizes.
    if stat.f_blocks and stat.f_bavail * stat.f_frsize < size_bytes:
        doing = f"write of {size_bytes / 2**20:.0f} MiB"
        raise_storage_error(folder / "_", doing, OSError(errno.ENOSPC, ""))


def raise_storage_error(path: Path, doing: str, error: OSError) -> NoReturn:
    """Raise the StorageError of an OSError, or the error itself where it is not the disk's.

    Raises:
        StorageError: with the free space beside the path, and what failed.
        OSError: ``error`` where it is a fault of the program (say, ENOENT).
    """
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
    """Replace a file as a whole: afterwards the old or the new content is there, never a mix.

    If the disk refuses, the old content stays. `name` is a point with FILE_ACTS.
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
    """Append one line to a journal; when this returns, the line is on the disk.

    A torn tail that a killed writer left behind is cut first: it was never acknowledged. On an
    error the file is as before.
    `name` is a point with LINE_ACTS.
    """
    assert b"\n" not in line, "a journal line holds no newline"
    file = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        end = _whole_lines_end(file)
        if end != os.fstat(file).st_size:
            os.ftruncate(file, end)
        if end == 0:
            # The file's name first: a line that is read then has a durable name.
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
    """Whole lines of a journal, without their newlines; a torn tail is left out.

    The file is not touched; an absent one is empty.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]


def truncate(path: Path, size_bytes: int, name: str) -> None:
    """Cut a file to its first bytes, durably; `name` is a point with TRUNCATE_ACTS."""
    with act(name, "truncate", path):
        os.truncate(path, size_bytes)
    with act(name, "fsync", path):
        _fsync_path(path)


def rename(source: Path, target: Path, name: str) -> None:
    """Rename within one file system and make that durable; `name` is a point with RENAME_ACTS.

    The content of `source` is fsynced already; `target` is replaced where it is a file or a link.
    """
    with act(name, "rename", target):
        source.rename(target)
    fsync_folder(target.parent, name)
    if source.parent != target.parent:
        fsync_folder(source.parent, name)


def fsync_folder(path: Path, name: str) -> None:
    """Make the entries of a folder durable (a rename or a new file is not, before this)."""
    with act(name, "fsync_folder", path):
        _fsync_path(path)


def fsync_file(path: Path, name: str) -> None:
    """Make the content of a file durable that a library has written."""
    with act(name, "fsync", path):
        _fsync_path(path)


def remove_tree(path: Path, name: str) -> None:
    """Remove a folder or a file; killed in between, part of it stays.

    What must never be seen in part is renamed out of sight first.
    `name` is a point with REMOVE_ACTS; `path` may be absent.
    """
    with act(name, "remove", path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    fsync_folder(path.parent, name)


def open_file(path: Path, flags: int) -> int:
    """Open a file for writing.

    It is never inherited by child processes. Returns the file descriptor, which the caller closes.

    Raises:
        StorageError: the disk refused.
        FileNotFoundError: its folder is gone.
    """
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise_storage_error(path, "open", error)


def write_all(file: int, data: memoryview) -> None:
    """Write a whole buffer to a file descriptor, however short the system's writes are."""
    while data:
        data = data[os.write(file, data) :]


def _fsync_path(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _whole_lines_end(file: int) -> int:
    """Offset behind the last newline."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - _TAIL_WINDOW_BYTES)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
