import contextlib
import json
from pathlib import Path

import pytest
from tiny_jobs import make_manifest
from tiny_models import save_tokenizer

from ppojob_api import run_config, validation
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_trainer.controller.prompts import open_datasets
from ppojob_trainer.errors import ConfigError

pytestmark = pytest.mark.processes

ROWS = 10
TOO_LONG = {
    "spec.critic.warmupSteps": {"critic": {"warmupSteps": 20}},
    "spec.optimizer.warmupSteps": {"optimizer": {"warmupSteps": 11}},
}


def judged(folder: Path, **changes: object) -> PPOJob | list[str]:
    """A job of one prompt a step on as many rows as `ROWS`, or what is wrong with it."""
    algorithm = {"type": "ppo", "promptsPerStep": 1, "samplesPerPrompt": 1}
    manifest = make_manifest(folder, **{"algorithm": algorithm, "checkpoint": {}, **changes})
    manifest["spec"]["data"]["validation"] = []
    found = validation.validate(manifest)
    return found if isinstance(found, PPOJob) else [str(problem) for problem in found]


def opened(folder: Path, **changes: object) -> int:
    save_tokenizer(folder / "model")
    row = {"prompt": [{"role": "user", "content": "1+1"}], "data_source": "tiny"}
    (folder / "train.jsonl").write_text(f"{json.dumps(row)}\n" * ROWS)
    job = judged(folder, **changes)
    assert isinstance(job, PPOJob), job
    with contextlib.ExitStack() as stack:
        return len(open_datasets(run_config.resolve(job), 0.0, stack).train)


@pytest.mark.parametrize("where", TOO_LONG)
def test_epochs_are_judged_as_the_steps_that_they_make(where: str, tmp_path: Path) -> None:
    (problem,) = judged(tmp_path, steps={"total": ROWS}, **TOO_LONG[where])
    assert problem.startswith(f"{where}: got ")
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, steps={"epochs": 1}, **TOO_LONG[where])
    assert caught.value.problems == (problem,)


def test_what_the_end_comes_before_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    changes = {"steps": {"epochs": 3}, "critic": {"warmupSteps": 20}}  # which fits into three
    assert opened(tmp_path, checkpoint={"every": 31}, **changes) == ROWS
    (line,) = (one for one in caplog.messages if one.startswith("spec."))
    assert line.startswith("spec.checkpoint.every: got 31: ")
