"""Fetches the files behind URLs once with fsspec, into a cache next to the run folder (ADR 56).

Each version is a folder whose name depends on the URL and on the listing of the store (names,
sizes, ETags): `<key>/files` contains the files, `<key>/content` the SHA-256 of all of them. It is
created atomically by a rename and never changes.
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
"""Extensions of the files of a model; weights in pickles are never fetched."""
_VERSION_FIELDS: Final = ("ETag", "etag", "md5Hash", "checksum", "generation", "blob_id",
                          "Content-MD5", "Last-Modified", "LastModified", "mtime")  # fmt: skip
"""Fields of a store's listing that identify the version of a file, besides its size."""
_CACHE_SECONDS: Final = 86_400.0
_RETRY_SECONDS: Final = 300.0
_LONGEST_WAIT_SECONDS: Final = 30.0
_PROGRESS_SECONDS: Final = 10.0

Log = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fetched:
    """Local path of a URL's files, with the same file name or pattern, and their SHA-256."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files behind a URL."""

    system: Any
    files: Mapping[str, tuple[str, int | None]]  # name -> path in the store, and size if known
    last: str  # last part of the local path: a file name, a pattern, or empty for a folder
    version: str  # hex digest of names, sizes and version fields


def fetch(config: RunConfig, run_folder: Path, log: Log = _log.info) -> RunConfig:
    """Fetch the files behind a run's URLs, if not cached; return the run with local paths.

    A run that has begun keeps the files that it began with.

    Raises:
        ConfigError: a URL is not readable, or its package is not installed.
        CannotResume: the cached files of a run that has begun are gone, and the URL has others.
        JobFailed: a store failed after all retries.
    """
    urls = remote_files.urls(config.spec)
    if not urls:
        return config
    known = _fetched(run_folder)
    has_begun = (run_folder / CHECKPOINTS_FOLDER / JOURNAL_FILE).exists()
    if has_begun and all(url in known and Path(known[url].path).parent.is_dir() for url in urls):
        return config.located({url: known[url].path for url in urls})
    cache = run_folder.absolute().parent / FETCHED_FOLDER
    problems, found = list[str](), dict[str, Fetched]()
    for url, where in urls.items():
        try:
            found[url] = _fetch(url, where, cache, log)
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
        log(f"{cache}: old versions stay: {_described(problem)}")
    return config.located({url: one.path for url, one in found.items()})


def with_local_paths(config: RunConfig, run_folder: Path) -> RunConfig:
    """Return the run with the paths of an earlier `fetch`; ConfigError if there was none."""
    urls = remote_files.urls(config.spec)
    known = _fetched(run_folder) if urls else {}
    if missing := urls.keys() - known.keys():
        raise ConfigError(f"{run_folder / FETCHED_FILE}: got no {min(missing)}: it was not fetched")
    return config.located({url: known[url].path for url in urls})


def local_paths(run_folder: Path) -> dict[str, str]:
    """Return the local paths of a run's URLs."""
    return {url: one.path for url, one in _fetched(run_folder).items()}


def unreadable_urls(spec: PPOJobSpec) -> Iterator[str]:
    """Return an error line for each URL that is not readable, without fetching."""
    for url, where in remote_files.urls(spec).items():
        try:
            with_retries(partial(_list, url, where), url, "read", seconds=0.0)
        except ConfigError as problem:
            yield from problem.problems
        except JobFailed as problem:
            why = str(problem).removeprefix(f"{url}: ")
            allowed = "a store that answers, a path here, or --offline for the manifest alone"
            yield str(Problem(where, shown(url), why, allowed, ReasonCode.UNREADABLE))


def _clear(cache: Path) -> None:
    """Remove the versions that no run next to the cache uses, a day after their last use."""
    used = set[str]()
    for run in cache.parent.iterdir():
        with contextlib.suppress(OSError):  # such as lost+found of a volume
            used |= {part for one in _fetched(run).values() for part in Path(one.path).parts}
    for path in cache.iterdir():
        if not path.is_dir() or path.name in used:
            continue
        content = path / "content"
        age = time.time() - (content if content.exists() else path).stat().st_mtime
        with _locked(cache / f"{path.name.partition('.')[0]}.lock", wait=False) as is_locked:
            if is_locked and age > _CACHE_SECONDS:
                # Rename first: a partly removed version must not be used.
                gone = path.with_suffix(".gone")
                if path != gone:
                    durable.rename(path, gone, CLEAR_POINT)
                durable.remove_tree(gone, CLEAR_POINT)


def _fetched(run_folder: Path) -> dict[str, Fetched]:
    try:
        found = json.loads((run_folder / FETCHED_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {url: Fetched(**one) for url, one in found.items()}


def _refuse_changed(
    urls: Mapping[str, str], known: Mapping[str, Fetched], found: Mapping[str, Fetched]
) -> None:
    changed = [url for url in urls if url in known and known[url].sha256 != found[url].sha256]
    if changed:
        raise CannotResume(
            f"{urls[url]}: got {shown(url)}: its content differs from that at the start of the "
            "run, and the fetched files are gone; the old content, or a new run in another folder"
            for url in changed
        )


def _fetch(url: str, where: str, cache: Path, log: Log) -> Fetched:
    """Fetch the files behind a URL, if this version is not cached."""

    def attempt() -> Fetched:
        listing = _list(url, where)
        key = f"{hashlib.sha256(url.encode()).hexdigest()[:12]}-{listing.version[:12]}"
        folder = cache / key
        with _locked(cache / f"{key}.lock"):
            if not folder.is_dir():
                part = _download(url, listing, folder, log)
                if _list(url, where).version != listing.version:
                    raise OSError("it was changed while it was fetched")
                (part / "content").write_text(_content(part / "files"))
                for path in (part / "content", *(part / "files").iterdir(), part / "files", part):
                    durable.fsync_file(path, FETCH_POINT)
                durable.rename(part, folder, FETCH_POINT)
            os.utime(folder / "content")  # last use, for `_clear`
        suffix = f"/{listing.last}" if remote_files.is_of_data(where) else ""
        return Fetched(f"{folder / 'files'}{suffix}", (folder / "content").read_text())

    return with_retries(attempt, url, "fetched", log)


def with_retries(
    act: Callable[[], T],
    url: str,
    done: str,
    log: Log = _log.warning,
    seconds: float = _RETRY_SECONDS,
) -> T:
    """Retry `act` while the store fails, with pauses from 1 s to 30 s, for `seconds` in total.

    Raises:
        JobFailed: it still fails; `done` is the participle in the message.
        PPOJobError: raised by `act`; not retried.
    """
    wait, waited = 1.0, 0.0
    while True:
        try:
            return act()
        except PPOJobError:
            raise
        except Exception as problem:  # each store has its own classes
            why = _described(problem)
            if waited >= seconds:
                raise JobFailed(f"{url}: not {done}: {why}") from None
            log(f"{url}: {why}; retry in {wait:g} s")
        time.sleep(wait)
        waited, wait = waited + wait, min(2 * wait, _LONGEST_WAIT_SECONDS)


@contextlib.contextmanager
def permanent_errors(where: str, url: str, may: str = "read") -> Iterator[None]:
    """Raise ConfigError for errors that no retry fixes: a missing package or permission."""
    try:
        yield
    except ImportError as problem:  # fsspec names the package
        raise _refusal(where, url, _described(problem), "that package installed") from None
    except PermissionError as problem:
        raise _refusal(where, url, _described(problem), f"credentials that may {may} it") from None


def _list(url: str, where: str) -> _Listing:
    """Return the files behind a URL; ConfigError if there are none."""
    import fsspec  # few processes fetch, but all import this module

    try:
        with permanent_errors(where, url):
            system, inside = fsspec.url_to_fs(
                url, use_listings_cache=False, skip_instance_cache=True
            )
            details, last = _details(system, inside, url, is_data=remote_files.is_of_data(where))
    except (FileNotFoundError, NotADirectoryError):
        details, last = [], ""
    if not details:
        raise _refusal(where, url, "there is nothing to read", "a URL of existing files")
    files = {posixpath.basename(one["name"]): (one["name"], one["size"]) for one in details}
    versions = [
        [one["name"], one["size"], *(str(one[key]) for key in _VERSION_FIELDS if one.get(key))]
        for one in details
    ]
    version = hashlib.sha256(json.dumps(sorted(versions)).encode()).hexdigest()
    return _Listing(system, files, last, version)


def _details(
    system: Any, inside: str, url: str, *, is_data: bool
) -> tuple[list[dict[str, Any]], str]:
    """Return the store's details of each file, and the last part of the local path."""
    last = posixpath.basename(url)
    if is_data and last and "*" not in last:
        return [system.info(inside)], last
    if is_data and last:
        return list(system.glob(inside, detail=True).values()), last

    def is_read(name: str) -> bool:
        base = posixpath.basename(name)
        if base.startswith(".") or name == inside:  # a store may list the folder itself
            return False
        return is_data or (base.endswith(_OF_MODELS) and not base.startswith(WEIGHTS_AGAIN))

    listed = system.ls(inside, detail=True)
    names = [one["name"] for one in listed if one["type"] == "file" and is_read(one["name"])]
    return [system.info(name) for name in names], ""  # some listings lack the sizes


def _refusal(where: str, url: str, why: str, allowed: str) -> ConfigError:
    return ConfigError(str(Problem(where, shown(url), why, allowed, ReasonCode.UNREADABLE)))


def _described(problem: Exception) -> str:
    line = next(iter(str(problem).splitlines()), "")
    return printable(f"{type(problem).__name__}: {line}" if line else type(problem).__name__)


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a file lock; without `wait`, yield False if another process holds it."""
    durable.make_folder(path.parent, parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _download(url: str, listing: _Listing, folder: Path, log: Log) -> Path:
    """Fetch the files into a temporary folder, except complete ones of an earlier attempt."""
    from fsspec.callbacks import Callback

    target = folder.with_name(f"{folder.name}.part")
    files = target / "files"
    files.mkdir(parents=True, exist_ok=True)
    total = sum(size or 0 for _, size in listing.files.values())
    progress = Callback(hooks={"log": _Progress(url, total, log)})
    for name, (remote, size) in listing.files.items():
        if (files / name).exists():
            progress.relative_update(size or 0)
            continue
        part = files / f".{name}.part"
        listing.system.get_file(remote, str(part), callback=progress)
        if size is not None and part.stat().st_size != size:
            raise OSError(f"{name}: {part.stat().st_size} of {size} bytes came")
        part.rename(files / name)
    log(f"{url}: fetched")
    return target


def _content(files: Path) -> str:
    """Return the SHA-256, in hex, of names and contents."""
    digest = hashlib.sha256()
    for path in sorted(files.iterdir()):
        digest.update(f"{path.name} {durable.sha256_of(path)[1]}\n".encode())
    return digest.hexdigest()


class _Progress:
    """Hook of fsspec that logs the progress every ten seconds."""

    def __init__(self, url: str, total: int, log: Log) -> None:
        self._url, self._total, self._log = url, total, log
        self._last = time.monotonic()

    def __call__(self, _file_size: int | None, received: int, **_: object) -> None:
        if time.monotonic() - self._last > _PROGRESS_SECONDS:
            self._last = time.monotonic()
            of = f" of {self._total / 2**30:.2f}" if self._total else ""
            self._log(f"{self._url}: {received / 2**30:.2f}{of} GiB")
