"""The data of a job against the job, as the controller opens it."""

import contextlib
import json
from pathlib import Path

import pytest
from tiny_jobs import make_manifest
from tiny_models import save_tokenizer

from ppojob_api import run_config, validation
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_trainer.controller.prompts import open_prompts
from ppojob_trainer.errors import ConfigError

ROWS = 10
CASES = {
    "all of the run warms the critic up": (
        {"critic": {"warmupSteps": 20}},
        "spec.critic.warmupSteps: got 20: none of the 10 steps of the run would train the policy; "
        "at most 9",
    ),
    "the learning rate does not reach its peak": (
        {"optimizer": {"warmupSteps": 11}},
        "spec.optimizer.warmupSteps: got 11: the 10 steps of the run make 10 optimizer steps; "
        "at most 10",
    ),
    "no commit on the way": (
        {"checkpoint": {"every": 11}},
        "spec.checkpoint.every: got 11: it would never happen in the 10 steps of the run; "
        "at most 10, or remove it",
    ),
}


def judged(folder: Path, **changes: object) -> PPOJob | list[str]:
    """A job of one prompt a step on as many rows as `ROWS`, or what is wrong with it."""
    algorithm = {"type": "ppo", "promptsPerStep": 1, "samplesPerPrompt": 1}
    manifest = make_manifest(folder, **{"algorithm": algorithm, "checkpoint": {}, **changes})
    manifest["spec"]["data"]["validation"] = []
    found = validation.validate(manifest)
    return found if isinstance(found, PPOJob) else [str(problem) for problem in found]


def opened(folder: Path, **changes: object) -> int:
    """Open the data as the controller does; answers how many prompts there are."""
    save_tokenizer(folder / "model")
    row = {"prompt": [{"role": "user", "content": "1+1"}], "data_source": "tiny"}
    (folder / "train.jsonl").write_text(f"{json.dumps(row)}\n" * ROWS)
    job = judged(folder, **changes)
    assert isinstance(job, PPOJob), job
    with contextlib.ExitStack() as stack:
        return len(open_prompts(run_config.resolve(job), 0.0, stack).train)


@pytest.mark.parametrize("name", CASES)
def test_epochs_are_judged_as_the_steps_that_they_make(name: str, tmp_path: Path) -> None:
    changes, line = CASES[name]
    assert judged(tmp_path, steps={"total": ROWS}, **changes) == [line]
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, steps={"epochs": 1}, **changes)
    assert caught.value.problems == (line,)


def test_what_fits_into_more_epochs_is_no_problem(tmp_path: Path) -> None:
    assert opened(tmp_path, steps={"epochs": 3}, critic={"warmupSteps": 20}) == ROWS
