import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer import durable, failpoints
from ppojob_trainer.errors import StorageError

FILE = durable.point("test_durable.file", *durable.FILE_ACTS)
LINE = durable.point("test_durable.line", *durable.LINE_ACTS)
TREE = durable.point("test_durable.tree", *durable.REMOVE_ACTS)
CUT = durable.point("test_durable.cut", *durable.TRUNCATE_ACTS)
MOVE = durable.point("test_durable.move", *durable.RENAME_ACTS)

OLD, NEW = b"old" * 1000, b"new" * 5000

lines = st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=6)


CHILD = """
import resource, signal, sys
from pathlib import Path
from ppojob_trainer import durable
from ppojob_trainer.errors import StorageError
FILE = durable.point("test_durable.file", *durable.FILE_ACTS)
LINE = durable.point("test_durable.line", *durable.LINE_ACTS)
path = Path(sys.argv[1])
"""


def run_child(code: str, path: Path, armed: str = "") -> tuple[int, str]:
    armed_environment = {failpoints.POINT_VARIABLE: armed, failpoints.ENABLE_VARIABLE: "1"}
    child = subprocess.run(
        [sys.executable, "-c", CHILD + code, str(path)],
        env=os.environ | armed_environment,
        capture_output=True,
        text=True,
        timeout=20,
    )
    return child.returncode, child.stderr


def points(name: str) -> list[str]:
    return [point for point in failpoints.all_points() if point.startswith(f"{name}.")]


def test_every_act_has_a_point_on_both_sides():
    acts = ("write", "fsync", "rename", "fsync_folder")
    assert set(points(FILE)) == {f"{FILE}.{a}.{side}" for a in acts for side in ("before", "after")}


@pytest.mark.parametrize("point", points("test_durable.file"))
@pytest.mark.processes
def test_killed_write_file_leaves_old_or_new(tmp_path: Path, point: str):
    path = tmp_path / "file"
    path.write_bytes(OLD)
    code = f"durable.write_file(path, {NEW!r}, FILE)"
    assert run_child(code, path, f"{point}=kill")[0] == -signal.SIGKILL
    is_renamed = point.endswith("rename.after") or ".fsync_folder." in point
    assert path.read_bytes() == (NEW if is_renamed else OLD)
    durable.write_file(path, NEW, FILE)
    assert path.read_bytes() == NEW
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("point", points("test_durable.line"))
@pytest.mark.processes
def test_killed_append_leaves_whole_lines(tmp_path: Path, point: str):
    path = tmp_path / "journal"
    if "fsync_folder" not in point:
        durable.append_line(path, b"one", LINE)
    before = durable.read_lines(path)
    code = "durable.append_line(path, b'two', LINE)"
    assert run_child(code, path, f"{point}=kill")[0] == -signal.SIGKILL
    is_written = ".fsync_folder." not in point and not point.endswith("write.before")
    assert durable.read_lines(path) == ([*before, b"two"] if is_written else before)


@given(written=lines, cut=st.integers(min_value=0), more=st.binary(max_size=9))
@pytest.mark.processes
def test_any_torn_tail_is_left_out_and_cut(tmp_path_factory, written, cut, more):
    path = tmp_path_factory.mktemp("torn") / "journal"
    for line in written:
        durable.append_line(path, line, LINE)
    data = path.read_bytes() if written else b""
    torn = data[: cut % (len(data) + 1)]
    path.write_bytes(torn)
    whole = torn.count(b"\n")
    assert durable.read_lines(path) == written[:whole]
    assert path.read_bytes() == torn, "reading touches nothing"
    line = more.replace(b"\n", b"")
    durable.append_line(path, line, LINE)
    assert path.read_bytes() == b"".join(one + b"\n" for one in [*written[:whole], line])


def test_a_torn_tail_longer_than_the_window_is_cut(tmp_path: Path):
    path = tmp_path / "journal"
    path.write_bytes(b"one\n" + b"x" * 200_000)
    durable.append_line(path, b"two", LINE)
    assert path.read_bytes() == b"one\ntwo\n"
    path.write_bytes(b"x" * 200_000)
    durable.append_line(path, b"two", LINE)
    assert path.read_bytes() == b"two\n"


def test_remove_tree_takes_folders_files_links_and_nothing(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("a")
    for name in ("link", "file", "a", "absent"):
        durable.remove_tree(tmp_path / name, TREE)
    assert os.listdir(tmp_path) == []


def test_truncate_and_rename(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"12345")
    durable.truncate(tmp_path / "file", 2, CUT)
    durable.rename(tmp_path / "file", tmp_path / "folder" / "file", MOVE)
    assert (tmp_path / "folder" / "file").read_bytes() == b"12"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_refusals_of_the_disk_name_path_and_free_space(tmp_path: Path, number: int):
    with pytest.raises(StorageError) as caught:
        durable.raise_storage_error(tmp_path / "no" / "file", "write", OSError(number, "x"))
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/no/file: write failed: {os.strerror(number)}; ")
    assert "MiB and" in text


def test_faults_of_the_program_stay_what_they_are(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        durable.write_file(tmp_path / "no" / "file", NEW, FILE)


TOO_LARGE = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
def refused(write):
    try:
        write()
    except StorageError as error:
        assert "File too large" in str(error), error
        return
    raise AssertionError("not refused")
refused(lambda: durable.write_file(path / "file", b"n" * 10_000, FILE))
refused(lambda: durable.append_line(path / "journal", b"x" * 5000, LINE))
"""


@pytest.mark.processes
def test_file_too_large_leaves_the_old_content(tmp_path: Path):
    """RLIMIT_FSIZE: the refusal comes in the middle of the write."""
    path, journal = tmp_path / "file", tmp_path / "journal"
    path.write_bytes(OLD)
    durable.append_line(journal, b"one", LINE)
    assert run_child(TOO_LARGE, tmp_path) == (0, "")
    assert path.read_bytes() == OLD
    assert journal.read_bytes() == b"one\n"
    assert sorted(os.listdir(tmp_path)) == ["file", "journal"]
