import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ppojob_api.run_config import RunConfig, resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.validation import check_length, length_warnings, warnings
from ppojob_cli.job_file import load_job, validate_file
from ppojob_cli.main import main
from ppojob_cli.validate import NOT_CHECKED, validate
from ppojob_trainer.errors import ConfigError

GOOD = """\
apiVersion: ppojob.dev/v1alpha1
kind: PPOJob
metadata: {name: NAME}
spec:
  model: {path: /models/m}
  data: {train: [{path: a.parquet}], validation: [{path: b.jsonl}]}
  algorithm: {type: grpo, promptsPerStep: 16, samplesPerPrompt: 8, miniBatchPrompts: 4, epochs: 2}
  rewards: [{function: score, source: {path: reward.py}}]
  roles: {actorRollout: {cpu: 2}, reward: {replicas: 2}}
  steps: {total: 20, validateEvery: 5}
"""
BAD = GOOD.replace("grpo", "grp0").replace("total: 20", "total: 0")
WRONG = ["spec.algorithm.type", "spec.steps.total"]
NOT_OF_A_CLUSTER = "spec.checkpoint.volume"


def places(said: str) -> list[str]:
    """The places of all lines but those of `--offline` of a job that no cluster takes."""
    found = [line.partition(": got ")[0] for line in said.splitlines()]
    return [place for place in found if not place.endswith(NOT_OF_A_CLUSTER)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(GOOD.replace("NAME", name))
    (tmp_path / "bad.yaml").write_text(BAD.replace("NAME", "bad"))
    return tmp_path


def judge(arguments: list[str], text: str | None = None) -> Result:
    return CliRunner().invoke(validate, ["--offline", *arguments], input=text)


@pytest.mark.usefixtures("files")
class TestValidate:
    def test_good_files(self) -> None:
        result = judge(["one.yaml", "two.yaml"])
        assert result.exit_code == 0
        assert result.stdout == (
            "one.yaml: ok: PPOJob default/one\ntwo.yaml: ok: PPOJob default/two\n"
        )
        lines = [line.partition(": got ")[0] for line in result.stderr.splitlines()]
        names = ("one.yaml", "two.yaml")
        assert lines == [f"warning: {name}: {NOT_OF_A_CLUSTER}" for name in names]

    def test_bad_file(self) -> None:
        result = judge(["bad.yaml"])
        assert result.exit_code == 2
        assert result.stdout == ""
        assert places(result.stderr) == WRONG

    def test_files_of_a_bad_manifest_are_not_checked_and_that_is_told(self) -> None:
        result = CliRunner().invoke(validate, ["bad.yaml", "none.yaml"])
        unread = [line for line in result.stderr.splitlines() if "were not checked yet" in line]
        assert unread == [f"bad.yaml: {NOT_CHECKED}"]

    def test_every_file_is_judged_and_named(self) -> None:
        result = judge(["bad.yaml", "none.yaml", "one.yaml"])
        assert result.exit_code == 2
        assert result.stdout == "one.yaml: ok: PPOJob default/one\n"
        assert places(result.stderr) == [*(f"bad.yaml: {where}" for where in WRONG), "none.yaml"]

    def test_a_warning_is_told_and_is_no_problem(self) -> None:
        result = judge(["one.yaml", "--set", "spec.model.dtype=bfloat16"])
        assert (result.exit_code, result.stdout) == (0, "one.yaml: ok: PPOJob default/one\n")
        assert places(result.stderr) == ["warning: spec.model.dtype"]

    def test_a_shorter_run_is_no_problem(self) -> None:
        changes = ["--set", "spec.steps.total=2", "--set", "spec.checkpoint.every=10"]
        changes += ["--set", "spec.profile.steps=[2, 3]"]
        result = judge(["one.yaml", *changes])
        assert result.exit_code == 0
        late = ("spec.steps.validateEvery", "spec.checkpoint.every", "spec.profile.steps[1]")
        assert places(result.stderr) == [f"warning: {field}" for field in late]
        assert result.stderr.count("the run ends before that, at step 2") == 3

    def test_ranks_that_no_role_has_are_told(self) -> None:
        ranks = ["--set", "spec.profile={steps: [1], ranks: [0, 7, 8]}"]
        eight = ["--set", "spec.roles.actorRollout={gpusPerReplica: 4, replicas: 2}"]
        eight += ["--set", "spec.algorithm.miniBatchPrompts=8"]
        for layout, first in ((eight, 2), ([], 1)):
            result = judge(["one.yaml", *ranks, *layout])
            assert result.exit_code == 0
            wanted = [f"warning: spec.profile.ranks[{index}]" for index in range(first, 3)]
            assert places(result.stderr) == wanted

    def test_two_files_of_one_job(self) -> None:
        Path("again.yaml").write_text(GOOD.replace("NAME", "one"))
        result = judge(["one.yaml", "again.yaml"])
        assert result.exit_code == 2
        assert places(result.stderr) == ["again.yaml: metadata.name"]
        assert "one.yaml describes the job default/one already" in result.stderr

    def test_standard_input(self) -> None:
        result = judge(["-"], GOOD.replace("NAME", "piped"))
        assert (result.exit_code, result.stdout) == (0, "<stdin>: ok: PPOJob default/piped\n")

    def test_file_and_spec_at_once(self) -> None:
        text = BAD.replace("NAME", "bad").replace("epochs: 2", "shuffleMiniBatches: yes")
        column = text.splitlines()[6].index("yes") + 1
        result = judge(["-"], text)
        assert places(result.stderr) == [f"<stdin>:7:{column}", *WRONG]

    @pytest.mark.processes
    def test_files_that_are_not_there(self) -> None:
        for arguments in (["one.yaml"], ["one.yaml", "two.yaml"]):
            result = CliRunner().invoke(validate, arguments)
            assert (result.exit_code, result.stdout) == (2, "")
            missing = ("spec.model.path", "a.parquet", "b.jsonl", "spec.rewards[0].source.path")
            assert places(result.stderr) == [
                f"{file}: {place}" if arguments[1:] else place
                for file in arguments
                for place in missing
            ]

    @pytest.mark.parametrize(
        ("mount", "model", "is_looked_at"),
        [
            ("/no-such-mount/", "/no-such-mount/m", False),
            ("/no-such-mount", "/no-such-mount-either/m", True),
            ("/usr", "/usr/no-such-model", True),
        ],
    )
    @pytest.mark.processes
    def test_inputs_on_a_volume_of_a_cluster(self, mount: str, model: str, *, is_looked_at: bool):
        pods = f"spec.pods=[{{volumes: [{{claimName: c, mountPath: {mount}}}]}}]"
        options = ["--set", pods, "--set", f"spec.model.path={model}"]
        result = CliRunner().invoke(validate, ["one.yaml", *options])
        told = places(result.stderr)
        if is_looked_at:
            assert (result.exit_code, told[0]) == (2, "spec.model.path")
        else:
            assert result.stdout == "one.yaml: ok: PPOJob default/one\n"
            assert told == ["warning: spec.pods[0].volumes[0].mountPath"]

    @pytest.mark.parametrize("arguments", [[], ["--strict", "one.yaml"]])
    def test_wrong_arguments(self, arguments: list[str]) -> None:
        result = judge(arguments)
        assert result.exit_code == 2
        assert "Usage" in result.stderr


@pytest.mark.usefixtures("files")
class TestPlan:
    def test_text(self) -> None:
        options = ["--set", "spec.algorithm.groupFilter.keep=4"]
        result = CliRunner().invoke(main, ["plan", "one.yaml", *options])
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert [line for line in lines if line and line[0] != " "][1:] == [
            "Roles",
            "One step",
            "Run",
            "Types of numbers that are auto: the processors of the pods decide; on this machine",
            "Memory at the least; activations and caches come on top",
            "On a cluster",
            "Resolved spec",
        ]
        assert "  16 prompts x 8 samples = 128 responses, at most 65536 response tokens" in lines
        assert "  4 responses to each prompt are trained on, chosen by length" in lines
        assert "  4 mini-batches of 4 prompts x 2 epochs = 8 optimizer steps" in lines
        assert "    learningRate: 1e-06" in lines

    def test_responses_that_are_given(self) -> None:
        guided = ("spec.algorithm.guidance.samples=2", "spec.data.guidanceKey=target")
        options = [word for one in guided for word in ("--set", one)]
        result = CliRunner().invoke(main, ["plan", "one.yaml", *options])
        assert "  at most 2 samples of each prompt from the data, the others drawn" in result.stdout

    def test_json(self) -> None:
        result = CliRunner().invoke(main, ["plan", "--json", "one.yaml"])
        config = RunConfig.from_json(result.stdout)
        assert config.name == "one"
        assert json.loads(result.stdout)["spec"]["algorithm"]["miniBatchPrompts"] == 4

    def test_a_warning_is_beside_the_plan(self) -> None:
        options = ["--set", "spec.model.dtype=bfloat16", "--json"]
        result = CliRunner().invoke(main, ["plan", "one.yaml", *options])
        assert RunConfig.from_json(result.stdout).spec.model.dtype == "bfloat16"
        assert (result.exit_code, places(result.stderr)) == (0, ["warning: spec.model.dtype"])

    def test_bad_file(self) -> None:
        result = CliRunner().invoke(main, ["plan", "bad.yaml"])
        assert (result.exit_code, result.stdout) == (2, "")
        assert places(result.stderr) == WRONG


def test_the_smallest_learning_rate_is_what_bfloat16_is_held_against(files: Path) -> None:
    changes = ["spec.model.dtype=bfloat16", "spec.algorithm.type=ppo"]
    changes += ["spec.optimizer.learningRate=1e-5"]
    for rate, bound in (("1e-4", "1e-05 .* 0.0051"), ("1e-6", "1e-06 .* 0.00051")):
        critic = f'spec.critic={{"optimizer": {{"learningRate": {rate}}}}}'
        (problem,) = warnings(load_job(files / "one.yaml", [*changes, critic]))
        assert re.search(f"learningRate {bound};", str(problem)), problem


def test_adapters_are_rounded_by_an_engine_in_bfloat16_and_not_by_the_trainer(files: Path) -> None:
    lora = 'spec.model.lora={"rank": 8}'
    assert warnings(load_job(files / "one.yaml", [lora, "spec.model.dtype=bfloat16"])) == []
    (problem,) = warnings(load_job(files / "one.yaml", [lora, "spec.rollout.dtype=bfloat16"]))
    assert (problem.where, problem.got) == ("spec.rollout.dtype", '"bfloat16"')
    on_gpu = load_job(files / "one.yaml", [lora, "spec.roles.actorRollout.gpusPerReplica=1"])
    (problem,) = warnings(resolve(on_gpu).job())
    assert problem.got == '"bfloat16" (auto is bfloat16 on GPUs)'


@pytest.mark.parametrize(("ranks", "tensor", "idle"), [(8, 1, 4), (4, 1, 0), (8, 2, 0), (16, 2, 4)])
def test_engines_that_draw_nothing_are_told(files: Path, ranks: int, tensor: int, idle: int):
    changes = ["spec.algorithm.promptsPerStep=4", "spec.algorithm.miniBatchPrompts=4"]
    changes += [
        f"spec.roles.actorRollout.ranksPerReplica={ranks}",
        "spec.roles.actorRollout.cpu=16",
    ]
    changes += ["spec.rollout.engine=vllm", f"spec.rollout.parallelism.tensor={tensor}"]
    told = warnings(load_job(files / "one.yaml", changes))
    assert [one.where for one in told] == ["spec.algorithm.promptsPerStep"] * bool(idle)
    assert not idle or f"so {idle} stay idle" in str(told[0])


@pytest.mark.parametrize("rewards", ["[]", "[{function: gsm8k}]"])
def test_a_validation_that_nothing_scores_is_told(files: Path, rewards: str) -> None:
    changes = ["spec.algorithm.certaintyReward={}", f"spec.rewards={rewards}"]
    told = warnings(load_job(files / "one.yaml", changes))
    assert [one.where for one in told] == ["spec.data.validation"] * (rewards == "[]")


def test_earlier_scores_that_a_run_never_reads_are_told(files: Path) -> None:
    """Of 320 rows 20 steps of 16 prompts draw each once."""
    spo = "spec.algorithm.type=spo"
    told = length_warnings(load_job(files / "one.yaml", [spo]), 320)
    assert [one.where for one in told] == ["spec.algorithm.type"]
    assert length_warnings(load_job(files / "one.yaml", [spo]), 319) == []
    assert length_warnings(load_job(files / "one.yaml", []), 320) == []
    mixed = "spec.data.train=[{path: a.parquet, weight: 1}, {path: b.parquet, weight: 9}]"
    assert length_warnings(load_job(files / "one.yaml", [spo, mixed]), 320) == []
    chosen = "spec.data.sampler={function: uncertain}"
    assert length_warnings(load_job(files / "one.yaml", [spo, chosen]), 320) == []


def test_rounds_of_which_a_sampler_cannot_choose_all_are_told(files: Path) -> None:
    chosen = "spec.data.sampler={function: uncertain}"
    rounds = "spec.algorithm.dynamicSampling={maxRounds: 3, promptsPerRound: 20}"
    several = "spec.algorithm.samplesPerPrompt=2"
    job = load_job(files / "one.yaml", [chosen, rounds, several])
    assert list(map(str, check_length(job, 59))) == [
        "spec.algorithm.dynamicSampling.maxRounds: got 3: data.sampler chooses the rows of all "
        "rounds, 20 of each (dynamicSampling.promptsPerRound), of 59; at most 2"
    ]
    assert check_length(job, 60) == []
    assert check_length(load_job(files / "one.yaml", [rounds, several]), 59) == []


def test_a_job_that_only_validates_has_no_updates_to_lose(files: Path) -> None:
    changes = ["spec.model.dtype=bfloat16", "spec.steps.validateOnly=true"]
    assert warnings(load_job(files / "one.yaml", changes)) == []


def test_load_job(files: Path) -> None:
    assert isinstance(validate_file(str(files / "one.yaml")), PPOJob)
    assert load_job(files / "one.yaml").metadata.name == "one"
    with pytest.raises(ConfigError) as caught:
        load_job(files / "bad.yaml")
    assert places("\n".join(caught.value.problems)) == WRONG


@pytest.mark.processes
def test_nothing_heavy_is_loaded() -> None:
    program = (
        "import sys, ppojob_cli.validate, ppojob_cli.plan, ppojob_api.crd;"
        "heavy = {'torch', 'vllm', 'transformers', 'kopf', 'kubernetes', 'numpy', 'zmq'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
