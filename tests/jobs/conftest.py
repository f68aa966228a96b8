"""Whole jobs on real processes: a tiny model and its data, `ppojob run` as a person starts it."""

import contextlib
import functools
import hashlib
import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import job_points
import pytest
import run_folders
import run_server
import tiny_jobs
from job_runs import Run
from made_once import kept_once, made_once
from refused_jobs import RefusedJob

from ppojob_api import contract
from ppojob_cli.local_pods import LocalPods


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole jobs are slow: each may take 15 minutes, unless its test says another time."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "test_wrong" not in item.path.name:
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "tiny", tiny_jobs.make_tiny_folder)


@pytest.fixture(scope="session")
def classifier(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        tiny_jobs.make_classifier(tiny_folder / "model", folder / "classifier")

    return made_once(tmp_path_factory, "classifier", make) / "classifier"


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forks the ranks of jobs and `ppojob` itself, unless a job has another environment."""
    keeper = Path(tiny_jobs.__file__).with_name("server_keeper.py")
    with (
        kept_once(tmp_path_factory, "forks", keeper, tiny_jobs.environment()) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(contract.ENV_FORK_SERVER, str(folder / "server"))
        patch.setenv(run_server.FOLDER, str(folder / "runs"))
        yield


@pytest.fixture(scope="session")
def alone(tiny_folder: Path, tmp_path_factory, fork_server: None) -> Callable[..., Path]:
    """Runs a tiny job that nobody disturbs, each once; answers its run folder, which is read."""

    def run(folder: Path = tiny_folder, **changes: object) -> Path:
        def make(place: Path) -> None:
            tiny_jobs.run_alone(tiny_jobs.write_manifest(place, folder, **changes))

        asked = json.dumps(tiny_jobs.make_manifest(folder, **changes), sort_keys=True)
        name = f"alone-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
        return made_once(tmp_path_factory, name, make) / "run"

    return run


@pytest.fixture(scope="session")
def undisturbed(alone: Callable[..., Path]) -> dict[str, object]:
    return run_folders.result(alone())


@pytest.fixture
def tiny_job(tiny_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes manifests of tiny jobs; what is given replaces whole sections of the spec."""

    def make(**changes: object) -> Path:
        return tiny_jobs.write_manifest(tmp_path, tiny_folder, **changes)

    return make


@pytest.fixture
def wrong(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusedJob]:
    """A good job with files of its own, in which a test spoils something; it cannot start.

    Its folder has a short name: messages cut long values, and lines are compared word for word.
    """
    monkeypatch.setattr(LocalPods, "start", lambda _: pytest.fail("a process was started"))
    with tempfile.TemporaryDirectory(prefix="ppo") as folder:
        yield RefusedJob(Path(folder), tiny_folder)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def once(tmp_path: Path) -> Path:
    """Where failpoints that have fired leave a marker."""
    return tmp_path / "once"


@pytest.fixture
def start(tmp_path: Path, fork_server: None) -> Iterator[Callable[..., Run]]:
    """Starts `ppojob run`; whatever still runs at the end of the test is killed."""
    runs: list[Run] = []

    def run(
        manifest: Path,
        output: Path,
        options: tuple[str, ...] = (),
        command: str = "run",
        **environment: str,
    ) -> Run:
        called = [command, manifest, "--plain", *options, "--output", output]
        said = tmp_path / f"said-{len(runs)}"
        with said.open("wb") as file, contextlib.chdir(tmp_path):
            process = run_server.run(called, tiny_jobs.environment(**environment), file)
        runs.append(Run(process, output, said))
        return runs[-1]

    yield run
    for started in runs:
        if started.process.poll() is None:
            started.process.send_signal(signal.SIGKILL)
            started.process.wait()
        run_folders.kill_all(started.output)


@pytest.fixture
def run_through(start: Callable[..., Run], once: Path) -> Callable[..., Run]:
    """Runs a job through kills, each of which must happen, to its good end, by the same command."""

    def run(manifest: Path, output: Path, *points: str, seconds: float = 300.0) -> Run:
        killed = start(manifest, output, **job_points.armed(once, *points))
        if any(point.endswith("=kill_group") for point in points):
            assert killed.wait(seconds) == 3, killed.logs()
            run_folders.wait_until_gone(output)
            killed = start(manifest, output)
        killed.succeed(seconds)
        assert sorted(marker.name for marker in once.iterdir()) == sorted(points)
        return killed

    return run


@pytest.fixture
def run_twice(start, run_through, tmp_path: Path) -> Callable[..., Path]:
    """Runs a job undisturbed, whose folder it answers, and through kills, which change no bit."""

    def run(manifest: Path, *points: str, seconds: float = 900.0) -> Path:
        calm = start(manifest, tmp_path / "calm").succeed(seconds).output
        run_through(manifest, tmp_path / "killed", *points, seconds=seconds)
        assert run_folders.result(tmp_path / "killed") == run_folders.result(calm)
        return calm

    return run


@pytest.fixture
def run_through_lives(start: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """Runs a job to its good end through lives, each of which one point ends, with everything."""

    def run(manifest: Path, output: Path, *points: str) -> Run:
        for life, point in enumerate(points):
            once = tmp_path / f"once-{life}"
            killed = start(manifest, output, **job_points.armed(once, f"{point}=kill_group"))
            assert killed.wait() == 3, killed.logs()
            assert job_points.fired(once) == {point.partition("@")[0]}
            run_folders.wait_until_gone(output)
        return start(manifest, output).succeed()

    return run


@pytest.fixture
def replay(start: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """Runs a job on the rows of a run, which must give the same but for how old weights were."""

    def run(manifest: Path, output: Path) -> Run:
        again = tmp_path / "again"
        replayed = start(manifest, again, options=("--replay", str(output))).succeed()
        told = run_folders.result(output)
        told["metrics"] = [
            {name: value for name, value in line.items() if not name.startswith("async/")}
            for line in told["metrics"]
        ]
        assert run_folders.result(again) == told
        return replayed

    return run


@pytest.fixture(scope="session")
def tiny_folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Tiny folders by their dropout and their model, each made once."""

    @functools.cache
    def made(dropout: float, model: str = "policy") -> Path:
        folder = tmp_path_factory.mktemp(model)
        tiny_jobs.make_tiny_folder(folder, dropout, model)
        return folder

    return made


@pytest.fixture(scope="session")
def even_folder(tiny_folder_of: Callable[..., Path]) -> Path:
    """A tiny folder whose model draws no random numbers in updates."""
    return tiny_folder_of(0.0)


@pytest.fixture
def finished(start: Callable[..., Run], even_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    def run(name: str, folder: Path = even_folder, **changes: object) -> Path:
        patient = {"timeouts": {"livenessSeconds": 60}, **changes}
        manifest = tiny_jobs.write_manifest(tmp_path / name, folder, **patient)
        return start(manifest, tmp_path / name / "run").succeed(600).output

    return run


@pytest.fixture(scope="session")
def tiny_data(tiny_folder: Path) -> dict[str, object]:
    return tiny_jobs.make_manifest(tiny_folder)["spec"]["data"]
