import pytest
from click.testing import CliRunner

from ppojob_cli import run as run_module
from ppojob_trainer.errors import ConfigError, JobFailed, PPOJobError


@pytest.mark.parametrize(
    ("problem", "status"),
    [(ConfigError(["a: got 1", "b: got 2"]), 2), (JobFailed("a: got 1\nb: got 2"), 3)],
)
def test_what_ends_a_run_before_it_starts_is_told_in_lines(
    problem: PPOJobError, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_job(*_: object, **__: object) -> int:
        raise problem

    monkeypatch.setattr(run_module, "run_job", run_job)
    done = CliRunner().invoke(run_module.run, ["job.yaml"])
    assert (done.exit_code, done.output) == (status, "a: got 1\nb: got 2\n")
