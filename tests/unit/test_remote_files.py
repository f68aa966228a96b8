import contextlib
import functools
import glob
import http.server
import importlib.util
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner
from failing import failing_at
from store_runs import resolved_job

from ppojob_api import manifest, remote_files
from ppojob_api.run_config import RunConfig
from ppojob_api.well_known import RoleName
from ppojob_cli.validate import validate
from ppojob_trainer import failpoints
from ppojob_trainer.errors import CannotResume, ConfigError, InjectedFault, JobFailed
from ppojob_trainer.pod_environment import PodEnvironment
from ppojob_trainer.remote_files import fetch, unreadable_urls, with_local_paths, with_retries
from ppojob_trainer.supervisor.main import start_fetch

POINTS = [point for point in failpoints.all_points() if point.startswith("fetched.")]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and keeps what it was asked for.

    Attributes:
        breaks: of these it sends a half, once.
    """

    asked: ClassVar[list[str]] = []
    breaks: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def copyfile(self, source, outputfile) -> None:
        if self.path in self.breaks:
            self.breaks.discard(self.path)
            outputfile.write(source.read()[:50_000])
            self.close_connection = True
            return
        super().copyfile(source, outputfile)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder that a real server serves, with its URL."""
    root = tmp_path / "store"
    (root / "model").mkdir(parents=True)
    (root / "model" / "config.json").write_text("{}")
    (root / "model" / "model.safetensors").write_bytes(bytes(100_000))
    (root / "model" / "optimizer.bin").write_bytes(b"a pickle")
    (root / "train.jsonl").write_text('{"prompt": "1"}\n')
    Handler.asked.clear()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(root))
    )
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield root, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def job_of(url: str, **spec: object) -> RunConfig:
    data = {"train": [{"path": f"{url}/train.jsonl"}]}
    return resolved_job(**{"model": {"path": f"{url}/model"}, "data": data, **spec})


def content(config: RunConfig) -> dict[str, bytes]:
    model = Path(config.spec.model.path)
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    (train,) = config.spec.data.train
    return files | {Path(train.path).name: Path(train.path).read_bytes()}


def fields(line: str) -> str:
    return line.partition(": got")[0]


def begin(folder: Path) -> None:
    """Let the run have begun."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "journal.jsonl").write_text("{}\n")


def test_models_of_several_teachers_are_fetched(store, tmp_path):
    _, url = store
    teachers = [{"path": f"{url}/model", "dataSources": ["a"]}]
    algorithm = {"type": "distillation", "promptsPerStep": 1}
    reference = {"path": "/teacher", "teachers": teachers}
    config = job_of(url, algorithm=algorithm, reference=reference, rewards=[])
    found = fetch(config, tmp_path / "runs" / "fetches").spec.reference_paths
    assert found[0] == "/teacher"
    assert Path(found[1], "model.safetensors").stat().st_size == 100_000


def test_a_job_reads_what_was_fetched_and_is_the_job_that_was_written(store, tmp_path):
    root, url = store
    config, folder = job_of(url), tmp_path / "runs" / "fetches"
    found = fetch(config, folder)
    assert content(found) == {
        name: (root / path).read_bytes()
        for name, path in {
            "config.json": "model/config.json",
            "model.safetensors": "model/model.safetensors",
            "train.jsonl": "train.jsonl",
        }.items()
    }
    assert found.spec.model.tokenizer_path == found.spec.model.path
    assert remote_files.urls(found.spec) == {}
    for what in ("to_json", "digest", "trajectory_json"):
        assert getattr(found, what)() == getattr(config, what)()
    assert manifest.dump(found.job()) == manifest.dump(config.job())
    assert with_local_paths(config, folder).spec == found.spec
    # Types of numbers are resolved on each machine, behind or before the paths.
    behind = found.on_processor(native_bfloat16=True)
    assert behind.to_json() == config.on_processor(native_bfloat16=True).to_json()


def test_nothing_is_fetched_twice(store, tmp_path):
    _, url = store
    config = job_of(url)
    first = fetch(config, tmp_path / "runs" / "a")
    Handler.asked.clear()
    again = fetch(config, tmp_path / "runs" / "b")
    assert again.spec == first.spec
    assert "/model/model.safetensors" not in Handler.asked


def test_a_version_goes_when_no_run_names_it_any_more(store, tmp_path):
    root, url = store
    config, old = job_of(url), tmp_path / "runs" / "old"
    before = Path(fetch(config, old).spec.data.train[0].path)
    (root / "train.jsonl").write_text('{"prompt": "another"}\n')
    after = Path(fetch(config, tmp_path / "runs" / "new").spec.data.train[0].path)
    os.utime(before.parents[1] / "content", (0, 0))
    os.utime(after.parents[1] / "content", (0, 0))
    half = before.parents[2] / "0123-4567.part"
    half.mkdir()
    os.utime(half, (0, 0))
    fetch(config, tmp_path / "runs" / "newer")
    assert (before.exists(), after.exists(), half.exists()) == (True, True, False)
    shutil.rmtree(old)
    fetch(config, tmp_path / "runs" / "newest")
    assert (before.exists(), after.exists()) == (False, True)
    assert not [path for path in before.parents[2].iterdir() if path.suffix == ".gone"]


def test_what_may_not_be_read_or_cleared_beside_a_run_costs_it_nothing(store, tmp_path):
    _, url = store
    config, told = job_of(url), list[str]()
    (tmp_path / "runs" / "lost+found" / "fetched.json").mkdir(parents=True)
    stale = tmp_path / "runs" / ".fetched" / "0123-4567"
    (stale / "content").mkdir(parents=True)
    os.utime(stale / "content", (0, 0))
    lock = stale.with_name(f"{stale.name}.lock")
    lock.mkdir()
    fetch(config, tmp_path / "runs" / "a", told.append)
    assert stale.exists()
    assert "old versions stay: IsADirectoryError" in told[-1]
    lock.rmdir()
    fetch(config, tmp_path / "runs" / "b", told.append)
    assert not stale.exists()


def test_a_changed_file_is_fetched_by_a_new_run_alone(store, tmp_path):
    root, url = store
    config, old = job_of(url), tmp_path / "runs" / "old"
    before = content(fetch(config, old))
    begin(old)
    (root / "train.jsonl").write_text('{"prompt": "another"}\n')
    assert content(fetch(config, old)) == before
    new = content(fetch(config, tmp_path / "runs" / "new"))
    assert new["train.jsonl"] == (root / "train.jsonl").read_bytes()


def test_a_run_whose_files_are_gone_and_others_now_is_refused(store, tmp_path):
    root, url = store
    config, folder = job_of(url), tmp_path / "runs" / "old"
    before = content(fetch(config, folder))
    begin(folder)
    shutil.rmtree(tmp_path / "runs" / ".fetched")
    os.utime(root / "train.jsonl", (0, 0))  # the same bytes, as of another time
    assert content(fetch(config, folder)) == before
    shutil.rmtree(tmp_path / "runs" / ".fetched")
    (root / "train.jsonl").write_text('{"prompt": "another"}\n')
    with pytest.raises(CannotResume) as refused:
        fetch(config, folder)
    assert [fields(line) for line in refused.value.problems] == ["spec.data.train[0].path"]


def test_patterns_and_folders_of_data(store, tmp_path):
    root, url = store
    (root / "data").mkdir()
    for name in ("a-1.jsonl", "a-2.jsonl", "b.jsonl", ".hidden.jsonl"):
        (root / "data" / name).write_text(name)
    paths = [f"{url}/data/a-*.jsonl", f"{url}/data/"]
    data = {"maxPromptTokens": 8, "maxResponseTokens": 8}
    config = job_of(url, data={"train": [{"path": path} for path in paths], **data})
    pattern, folder = (file.path for file in fetch(config, tmp_path / "run").spec.data.train)
    assert [Path(path).name for path in sorted(glob.glob(pattern))] == ["a-1.jsonl", "a-2.jsonl"]
    assert folder.endswith("/")
    assert sorted(os.listdir(folder)) == ["a-1.jsonl", "a-2.jsonl", "b.jsonl"]


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_all_that_cannot_be_read_is_told_at_once(store, tmp_path):
    _, url = store
    algorithm = {"type": "grpo", "promptsPerStep": 1, "samplesPerPrompt": 2, "kl": {"in": "loss"}}
    reference = {"path": "s3://bucket/model"}
    config = job_of(f"{url}/nowhere", algorithm=algorithm, reference=reference)
    with pytest.raises(ConfigError) as refused:
        fetch(config, tmp_path / "run")
    assert list(refused.value.problems) == list(unreadable_urls(config.spec))
    told = {fields(line): line for line in refused.value.problems}
    assert list(told) == ["spec.model.path", "spec.reference.path", "spec.data.train[0].path"]
    assert "s3fs" in told["spec.reference.path"]
    assert not (tmp_path / "run").exists()


def test_what_came_whole_is_not_fetched_again_after_a_break(store, tmp_path):
    _, url = store
    Handler.breaks = {"/model/model.safetensors"}
    assert content(fetch(job_of(url), tmp_path / "run"))["model.safetensors"] == bytes(100_000)
    assert Handler.asked.count("/model/model.safetensors") == 2
    assert Handler.asked.count("/model/config.json") == 1
    assert Handler.breaks == set()


def test_a_store_that_is_down_for_a_while_ends_nothing(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    told, answers = [], iter([OSError("down"), 7])

    def ask() -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert with_retries(ask, "s3://bucket/a", "read", told.append) == 7
    assert told == ["s3://bucket/a: OSError: down; retry in 1 s"]
    answers = iter([OSError("down")] * 3)
    with pytest.raises(JobFailed, match="s3://bucket/a: not read: OSError: down"):
        with_retries(ask, "s3://bucket/a", "read", told.append, seconds=1.0)
    assert next(answers).args == ("down",)  # it was asked twice


@pytest.mark.processes
def test_two_processes_fetch_once(store, tmp_path):
    _, url = store
    config, spawn = job_of(url).to_json(), multiprocessing.get_context("spawn")
    runs = [tmp_path / "runs" / name for name in ("a", "b")]
    processes = [spawn.Process(target=locate_in, args=(config, run)) for run in runs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    first, second = (content(with_local_paths(RunConfig.from_json(config), run)) for run in runs)
    assert first == second
    assert Handler.asked.count("/model/model.safetensors") == 1


def locate_in(config: bytes, folder: Path) -> None:
    fetch(RunConfig.from_json(config), folder)


def test_validate_looks_and_fetches_nothing(store, tmp_path, monkeypatch):
    root, url = store
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(manifest.dump(job_of(url).job()))
    judged = CliRunner().invoke(validate, ["job.yaml"])
    assert (judged.exit_code, judged.stdout) == (0, "job.yaml: ok: PPOJob default/sum\n")
    warned = [fields(line) for line in judged.stderr.splitlines()]
    assert [f"warning: spec.{name}.path" for name in ("model", "data.train[0]")] == warned[-2:]
    (root / "train.jsonl").unlink()
    judged = CliRunner().invoke(validate, ["job.yaml"])
    assert judged.exit_code == 2
    (line,) = judged.stderr.splitlines()
    assert line.startswith("spec.data.train[0].path: got")
    assert CliRunner().invoke(validate, ["--offline", "job.yaml"]).exit_code == 0
    assert sorted(os.listdir()) == ["job.yaml", "store"]


def test_a_store_that_does_not_answer_is_one_line_with_what_to_do():
    spec = resolved_job(model={"path": "http://127.0.0.1:1/model"}).spec
    (line,) = unreadable_urls(spec)
    assert line.startswith('spec.model.path: got "http://127.0.0.1:1/model": not read: Client')
    assert line.endswith("; a store that answers, a path here, or --offline for the manifest alone")


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_nothing_half_done(point, store, tmp_path):
    _, url = store
    config, folder = job_of(url), tmp_path / "runs" / "killed"
    with failing_at(point), contextlib.suppress(InjectedFault):
        fetch(config, folder)  # a rename's is met where a fetch is tried again
    found = content(fetch(config, folder))
    assert found == content(fetch(config, tmp_path / "undisturbed" / "run"))
    assert not list((tmp_path / "runs" / ".fetched").glob("*.part"))


@pytest.mark.processes
def test_the_controllers_pod_of_a_cluster_fetches_for_all(store, tmp_path):
    _, url = store
    config = job_of(url)

    def environment(role: RoleName, parent: int | None) -> PodEnvironment:
        return PodEnvironment(
            config=config,
            role=role,
            pod_index=0,
            address="",
            keys=tmp_path,
            run_folder=tmp_path / "volume" / "fetches",
            scratch=tmp_path,
            address_book={},
            api_access=None,
            parent_pid=parent,
        )

    for role, parent in (("actorRollout", None), ("controller", 1)):
        assert start_fetch(environment(role, parent)).result(0) is config
    with pytest.raises(ConfigError, match="was not fetched"):
        environment("actorRollout", None).with_local_paths()
    start_fetch(environment("controller", None)).result(60)
    rank = environment("actorRollout", None).with_local_paths()
    assert content(rank.config)["config.json"] == b"{}"
