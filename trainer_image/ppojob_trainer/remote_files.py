"""Files behind URLs, fetched once by fsspec into a folder beside the run folder (ADR 56).

A fetched version is a folder of its own, named after its URL and after what the store says of its
files (names, sizes, ETags): `<key>/files` holds them, `<key>/content` the SHA-256 of all of them.
It appears whole, by a rename, and is never changed, so processes share it without asking.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from ppojob_api import remote_files
from ppojob_api.problem import Problem, ReasonCode, printable, shown
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import CHECKPOINTS_FOLDER, FETCHED_FILE, JOURNAL_FILE
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.well_known import WEIGHTS_AGAIN
from ppojob_trainer import durable
from ppojob_trainer.errors import CannotResume, ConfigError, JobFailed, PPOJobError, StorageError

_log = logging.getLogger(__name__)
FETCHED_FOLDER: Final = ".fetched"
FETCH_POINT: Final = durable.point("fetched", "fsync", *durable.RENAME_ACTS)
CLEAR_POINT: Final = durable.point("fetched.clear", *durable.RENAME_ACTS, "remove")
PLACES_POINT: Final = durable.point("fetched.places", *durable.FILE_ACTS)

_OF_MODELS: Final = (".json", ".safetensors", ".jinja", ".model", ".txt", ".py")
"""Endings of what is read of a model's folder: weights in pickles are never fetched."""
_MARKS: Final = ("ETag", "etag", "md5Hash", "checksum", "generation", "blob_id", "Content-MD5",
                 "Last-Modified", "LastModified", "mtime")  # fmt: skip
"""By what stores tell one version of a file from another, besides its size."""
_KEPT_SECONDS: Final = 86_400.0
_PATIENT_SECONDS: Final = 300.0
_LONGEST_WAIT_SECONDS: Final = 30.0
_TOLD_SECONDS: Final = 10.0
_PACKAGES: Final = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "hdfs": "pyarrow"}

Tell = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where a URL's files are on this machine, in the form of the URL, and their SHA-256."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class _Listing:
    """What a URL stands for in its store: `files` maps the name of each file to where it is there.

    Attributes:
        last: how the path ends on this machine: a file's name, a pattern, or nothing for a folder.
        version: hex digest of names, sizes and marks.
    """

    system: Any
    files: Mapping[str, tuple[str, int | None]]
    last: str
    version: str


def fetch(config: RunConfig, run_folder: Path, tell: Tell = _log.info) -> RunConfig:
    """The run with paths of this machine for its URLs, whose files are fetched where they are not.

    A run that has begun goes on with the files that it began with, whatever lies at the URL now.

    Raises:
        ConfigError: a URL names nothing that can be read, or its package is not installed.
        CannotResume: files of a run that has begun are gone here, and are others at their URL.
        JobFailed: a store did not answer, however often it was asked.
    """
    urls = remote_files.urls(config.spec)
    if not urls:
        return config
    known = _kept(run_folder)
    has_begun = (run_folder / CHECKPOINTS_FOLDER / JOURNAL_FILE).exists()
    if has_begun and all(url in known and _is_there(known[url]) for url in urls):
        return config.located({url: known[url].path for url in urls})
    cache = run_folder.absolute().parent / FETCHED_FOLDER
    problems, found = list[str](), dict[str, Fetched]()
    for url, where in urls.items():
        try:
            found[url] = _fetched(url, where, cache, tell)
        except ConfigError as problem:
            problems += problem.problems
    if problems:
        raise ConfigError(problems)
    if has_begun:
        _refuse_changed(urls, known, found)
    durable.make_folder(run_folder, parents=True, exist_ok=True)
    kept = json.dumps({url: asdict(one) for url, one in found.items()}, indent=2, sort_keys=True)
    durable.write_file(run_folder / FETCHED_FILE, kept.encode(), PLACES_POINT)
    try:
        _clear(cache)
    except (OSError, StorageError) as problem:
        tell(f"{cache}: old versions stay: {_told(problem)}")
    return config.located({url: one.path for url, one in found.items()})


def with_local_paths(config: RunConfig, run_folder: Path) -> RunConfig:
    """The run with the paths that `fetch` found, in every process that comes after it.

    Raises:
        ConfigError: it has not been there.
    """
    urls = remote_files.urls(config.spec)
    known = _kept(run_folder) if urls else {}
    if missing := urls.keys() - known.keys():
        raise ConfigError(f"{run_folder / FETCHED_FILE}: got no {min(missing)}: it was not fetched")
    return config.located({url: known[url].path for url in urls})


def local_paths(run_folder: Path) -> dict[str, str]:
    """The paths that `fetch` found for the URLs of a run, by URL."""
    return {url: one.path for url, one in _kept(run_folder).items()}


def unreadable_urls(spec: PPOJobSpec) -> Iterator[str]:
    """A line for each URL of a job behind which there is nothing to read; nothing is fetched."""
    for url, where in remote_files.urls(spec).items():
        try:
            with_retries(partial(_list, url, where), url, "read", patient_seconds=0.0)
        except (ConfigError, JobFailed) as problem:
            yield from str(problem).splitlines()


def _clear(cache: Path) -> None:
    """Remove the versions that no run beside them names, a day after one has taken them last."""
    named = set[str]()
    for run in cache.parent.iterdir():
        with contextlib.suppress(OSError):  # such as lost+found of a volume
            named |= {part for one in _kept(run).values() for part in Path(one.path).parts}
    for path in cache.iterdir():
        if not path.is_dir() or path.name in named:
            continue
        taken = path / "content"
        age = time.time() - (taken if taken.exists() else path).stat().st_mtime
        with _locked(cache / f"{path.name.partition('.')[0]}.lock", wait=False) as is_ours:
            if is_ours and age > _KEPT_SECONDS:
                # Out of sight first: half of a version must not look like one.
                gone = path.with_suffix(".gone")
                if path != gone:
                    durable.rename(path, gone, CLEAR_POINT)
                durable.remove_tree(gone, CLEAR_POINT)


def _kept(run_folder: Path) -> dict[str, Fetched]:
    try:
        kept = json.loads((run_folder / FETCHED_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {url: Fetched(**one) for url, one in kept.items()}


def _is_there(fetched: Fetched) -> bool:
    return os.path.isdir(os.path.dirname(fetched.path))


def _refuse_changed(
    urls: Mapping[str, str], known: Mapping[str, Fetched], found: Mapping[str, Fetched]
) -> None:
    changed = [url for url in urls if url in known and known[url].sha256 != found[url].sha256]
    if changed:
        raise CannotResume(
            f"{urls[url]}: got {shown(url)}: its content is another one than this run began with, "
            "and the files of then are gone here; the content as it was, or a run of its own in "
            "another folder"
            for url in changed
        )


def _fetched(url: str, where: str, cache: Path, tell: Tell) -> Fetched:
    """Fetch what lies behind a URL, if this version of it is not there yet."""

    def attempt() -> Fetched:
        listing = _list(url, where)
        key = f"{hashlib.sha256(url.encode()).hexdigest()[:12]}-{listing.version[:12]}"
        folder = cache / key
        with _locked(cache / f"{key}.lock"):
            if not folder.is_dir():
                _download(url, listing, folder, tell)
                if _list(url, where).version != listing.version:
                    raise OSError("it was changed while it was fetched")
                with _whole(folder) as aside:
                    (aside / "content").write_text(_content(aside / "files"))
            os.utime(folder / "content")  # nobody clears it until the run names it
        path = str(folder / "files")
        path = f"{path}/{listing.last}" if remote_files.is_of_data(where) else path
        return Fetched(path, (folder / "content").read_text())

    return with_retries(attempt, url, "fetched", tell)


def with_retries(
    act: Callable[[], T],
    url: str,
    done: str,
    tell: Tell = _log.warning,
    patient_seconds: float = _PATIENT_SECONDS,
) -> T:
    """Do it, and do it again where the store, or the way to it, fails.

    Waits grow from a second to half a minute, to `patient_seconds` in all.

    Raises:
        JobFailed: it fails still; `done` is the word for what was to be done.
        PPOJobError: as `act` raises it.
    """
    wait, waited = 1.0, 0.0
    while True:
        try:
            return act()
        except PPOJobError:
            raise
        except Exception as problem:  # each store has its own
            why = _told(problem)
            if waited >= patient_seconds:
                raise JobFailed(f"{url}: not {done}: {why}") from None
            tell(f"{url}: {why}; asked again in {wait:g} s")
        time.sleep(wait)
        waited, wait = waited + wait, min(2 * wait, _LONGEST_WAIT_SECONDS)


@contextlib.contextmanager
def refusing(where: str, url: str, may: str = "read") -> Iterator[None]:
    """Refuse what no patience mends, by ConfigError: a missing package or right."""
    scheme = url.partition("://")[0]
    try:
        yield
    except ImportError:
        package = _PACKAGES.get(scheme, "aiohttp")
        raise _refusal(
            where, url, f"the package {package} is not installed here", f"pip install {package}"
        ) from None
    except PermissionError as problem:
        raise _refusal(where, url, _told(problem), f"credentials that may {may} it") from None


def _list(url: str, where: str) -> _Listing:
    """What a URL stands for.

    Raises:
        ConfigError: it can never be read as it stands.
    """
    import fsspec  # late: every process of a job loads this module, and few of them fetch

    try:
        with refusing(where, url):
            system, inside = fsspec.url_to_fs(
                url, use_listings_cache=False, skip_instance_cache=True
            )
            details, last = _details(system, inside, url, is_data=remote_files.is_of_data(where))
    except (FileNotFoundError, NotADirectoryError):
        details, last = [], ""
    if not details:
        allowed = "a URL of files that are there"
        raise _refusal(where, url, "there is nothing to read", allowed)
    files = {posixpath.basename(one["name"]): (one["name"], one["size"]) for one in details}
    marks = [
        [one["name"], one["size"], *(str(one[mark]) for mark in _MARKS if one.get(mark))]
        for one in details
    ]
    version = hashlib.sha256(json.dumps(sorted(marks)).encode()).hexdigest()
    return _Listing(system, files, last, version)


def _details(
    system: Any, inside: str, url: str, *, is_data: bool
) -> tuple[list[dict[str, Any]], str]:
    """What the store says of each file, and how the path ends on this machine."""
    last = posixpath.basename(url)
    if is_data and last and "*" not in last:
        return [system.info(inside)], last
    if is_data and last:
        return list(system.glob(inside, detail=True).values()), last
    # A store may list a folder's own name, and says a page's size only where it is asked for.
    listed = system.ls(inside, detail=True)
    names = [one["name"] for one in listed if one["type"] == "file"]
    read = [
        name for name in names if not posixpath.basename(name).startswith(".") and name != inside
    ]
    if not is_data:
        read = [name for name in read if name.endswith(_OF_MODELS)]
        read = [name for name in read if not posixpath.basename(name).startswith(WEIGHTS_AGAIN)]
    return [system.info(name) for name in read], ""


def _refusal(where: str, url: str, why: str, allowed: str) -> ConfigError:
    return ConfigError(str(Problem(where, shown(url), why, allowed, ReasonCode.UNREADABLE)))


def _told(problem: Exception) -> str:
    line = next(iter(str(problem).splitlines()), "")
    return printable(f"{type(problem).__name__}: {line}" if line else type(problem).__name__)


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Own a version while the block runs, so that it comes once; others wait, or do without."""
    durable.make_folder(path.parent, parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.part")


def _download(url: str, listing: _Listing, folder: Path, tell: Tell) -> None:
    """Fetch the files aside; those that an earlier attempt has whole are not fetched again."""
    from fsspec.callbacks import Callback

    files = _aside(folder) / "files"
    files.mkdir(parents=True, exist_ok=True)
    total = sum(size or 0 for _, size in listing.files.values())
    progress = Callback(hooks={"tell": _Progress(url, total, tell)})
    for name, (remote, size) in listing.files.items():
        if (files / name).exists():
            progress.relative_update(size or 0)
            continue
        part = files / f".{name}.part"
        listing.system.get_file(remote, str(part), callback=progress)
        if size is not None and part.stat().st_size != size:
            raise OSError(f"{name}: {part.stat().st_size} of {size} bytes came")
        part.rename(files / name)
    tell(f"{url}: fetched")


@contextlib.contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """What was put together aside, to be finished in the block; then it appears at once."""
    aside = _aside(folder)
    yield aside
    for path in (aside / "content", *(aside / "files").iterdir(), aside / "files", aside):
        durable.fsync_file(path, FETCH_POINT)
    durable.rename(aside, folder, FETCH_POINT)


def _content(files: Path) -> str:
    """SHA-256, in hex, of names and bytes."""
    digest = hashlib.sha256()
    for path in sorted(files.iterdir()):
        with path.open("rb") as file:
            own = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.name} {own}\n".encode())
    return digest.hexdigest()


class _Progress:
    """Tells every ten seconds how much has come, as a hook of fsspec's."""

    def __init__(self, url: str, total: int, tell: Tell) -> None:
        self._url, self._total, self._tell = url, total, tell
        self._last = time.monotonic()

    def __call__(self, _size_of_file: int | None, came: int, **_: object) -> None:
        if time.monotonic() - self._last > _TOLD_SECONDS:
            self._last = time.monotonic()
            of = f" of {self._total / 2**30:.2f}" if self._total else ""
            self._tell(f"{self._url}: {came / 2**30:.2f}{of} GiB")
