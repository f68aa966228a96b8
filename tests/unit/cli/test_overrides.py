import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from golden_lines import read_lines
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from ppojob_api.problem import Problem
from ppojob_api.run_config import RunConfig
from ppojob_cli.generate import generate
from ppojob_cli.job_file import Override, Overrides, load_job, parse_override, validate_file
from ppojob_cli.main import main
from ppojob_cli.validate import validate
from ppojob_trainer.errors import ConfigError

MANIFEST = """\
apiVersion: ppojob.dev/v1alpha1
kind: PPOJob
metadata: {name: one}
spec:
  seed: 7
  model: {path: /models/m}
  data: {train: [{path: a.parquet}], validation: [{path: b.jsonl}]}
  algorithm: {type: grpo, promptsPerStep: 16, samplesPerPrompt: 8}
  rewards: [{function: score, source: {path: reward.py}}]
  roles: {actorRollout: {cpu: 2}, reward: {replicas: 2}}
  steps: {total: 20, validateEvery: 5}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST)
    return str(path)


GOOD = (
    ("spec.seed=1", lambda spec: spec.seed == 1),
    ("spec.seed= 1 ", lambda spec: spec.seed == 1),
    ("spec.steps.total=5", lambda spec: spec.steps.total == 5),
    ("spec.steps.validateEvery=null", lambda spec: spec.steps.validate_every is None),
    ("spec.steps.validateEvery=", lambda spec: spec.steps.validate_every is None),
    ("spec.optimizer.learningRate=2.0e-5", lambda spec: spec.optimizer.learning_rate == 2e-5),
    ("spec.model.path=/a=b", lambda spec: spec.model.path == "/a=b"),
    ('spec.model.path="010"', lambda spec: spec.model.path == "010"),
    ("spec.algorithm.kl={in: loss}", lambda spec: spec.algorithm.kl.in_ == "loss"),
    ("spec.algorithm.kl.in=loss", lambda spec: spec.algorithm.kl.in_ == "loss"),
    ("spec.data.train[0].path=c.jsonl", lambda spec: spec.data.train[0].path == "c.jsonl"),
    ("spec.data.train[1].path=c.jsonl", lambda spec: len(spec.data.train) == 2),
    ("spec.rewards[0].weight=2", lambda spec: spec.rewards[0].weight == 2.0),
    ("spec.loggers=[console]", lambda spec: spec.loggers == ("console",)),
)


@pytest.mark.parametrize(("text", "holds"), GOOD, ids=[text for text, _ in GOOD])
def test_good(file: str, text: str, holds) -> None:
    assert holds(load_job(file, [text]).spec)


BAD = read_lines(Path(__file__).parent / "bad_overrides.txt")


@pytest.mark.parametrize("text", BAD)
def test_bad(file: str, text: str) -> None:
    (problem,) = validate_file(file, [text])
    assert [f"{problem.reason_code} {problem}"] == BAD[text]
    with pytest.raises(ConfigError, match=re.escape(str(problem))):
        load_job(file, [text])


@pytest.mark.parametrize(
    "text", ["spec.seed", "=1", ".spec.seed=1", "spec..seed=1", "[0]=1", "spec.data.train[x]=1", ""]
)
def test_no_path(file: str, text: str) -> None:
    (problem,) = validate_file(file, [text])
    assert str(problem).startswith(f"--set {text}: got ")
    assert "PATH=VALUE" in str(problem)


def test_of_a_section_that_has_several_names_one_is_set(tmp_path: Path) -> None:
    text = MANIFEST.replace("type: grpo", "type: ppo") + (
        "  optimizer: &o {learningRate: 1.0e-6}\n  critic: {optimizer: *o}\n"
    )
    (tmp_path / "job.yaml").write_text(text)
    spec = load_job(tmp_path / "job.yaml", ["spec.optimizer.learningRate=0.001"]).spec
    assert (spec.optimizer.learning_rate, spec.critic.optimizer.learning_rate) == (1e-3, 1e-6)


def test_a_field_that_a_command_sets_is_told_by_its_name(file: str) -> None:
    Path(file).write_text(MANIFEST.replace("steps: {", "steps: {validateOnly: true, "))
    set_by = Override("ppojob generate", ("spec", "steps", "generateOnly"), True, got="this job")
    judged = validate_file(file, [set_by])
    assert isinstance(judged, list)
    assert any(str(one).startswith("ppojob generate: got this job: ") for one in judged), judged


def test_all_problems_at_once_and_the_files_own_beside_them(file: str) -> None:
    Path(file).write_text(MANIFEST.replace("grpo", "grp0"))
    judged = validate_file(file, ["spec.seed=-1", "spec.sed=1", "nothing"])
    assert isinstance(judged, list)
    assert [problem.where for problem in judged] == [
        "--set nothing",
        "--set spec.seed=-1",
        "spec.algorithm.type",
        "--set spec.sed=1",
    ]


def test_the_files_values_stay() -> None:
    value: JsonValue = {"spec": {"a": [1, {"b": 2}]}}
    laid = Overrides(value, ["spec.a[1].b=3", "spec.a[0]=null", "spec.c.d=[1]"])
    assert laid.value == {"spec": {"a": [None, {"b": 3}], "c": {"d": [1]}}}
    assert value == {"spec": {"a": [1, {"b": 2}]}}


@given(st.text(max_size=60) | st.text(min_size=400, max_size=500))
def test_any_text_is_read_or_told(text: str) -> None:
    parsed = parse_override(text)
    if isinstance(parsed, Problem):
        assert str(parsed).isprintable()
        assert len(str(parsed)) < 1_200
    else:
        assert text.startswith(str(parsed.path[0]))


def test_commands_take_it(file: str) -> None:
    runner = CliRunner()
    result = runner.invoke(validate, [file, "--set", "spec.seed=1", "--set", "spec.sed=2"])
    assert result.exit_code == 2
    assert result.stderr.startswith("--set spec.sed=2: ")
    result = runner.invoke(
        main, ["plan", file, "--json", "--set", "spec.seed=2", "--set", "spec.seed=1"]
    )
    assert result.exit_code == 0
    assert RunConfig.from_json(result.stdout).spec.seed == 1


def test_an_option_that_stands_for_a_field_is_named(file: str) -> None:
    told = CliRunner().invoke(generate, [file, "--data", "/nosuch"])
    assert told.exit_code == 2
    assert told.stderr.startswith("--data: spec.data.validation[0].path: got ")
