import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from golden_lines import assert_lines, read_lines

from ppojob_api import manifest, validation
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.main import main
from ppojob_trainer.data.media.image_forms import why_no_images

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
SOURCES = sorted(path.name for path in SCRIPTS.iterdir() if path.suffix in {".sh", ".yaml"})
BAD = read_lines(HERE / "bad_sources.txt")


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPTS)
    monkeypatch.setenv("HOME", "/home/user")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["from-verl", *arguments])


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "tools.yaml"])
def test_a_script_is_told_word_for_word(name: str) -> None:
    found = run(name, "--verbose")
    told = f"{found.stdout}=== told, and status {found.exit_code}\n{found.stderr}"
    assert told == (HERE / "expected" / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    "name",
    [
        *("grpo.sh", "ppo.sh", "dapo.sh", "rloo.sh", "gspo.sh", "images.sh", "prime.sh"),
        *("async.sh", "one_step.sh", "partial.sh", "judge.sh", "sft.sh", "search_r1.sh"),
        *("generation.sh", "gvpo.sh", "flowrl.sh", "audios.sh", "ttrl.sh"),
    ],
)
def test_what_is_carried_over_whole_is_a_valid_job(name: str) -> None:
    result = run(name, "trainer.experiment_name=x")
    assert result.exit_code == 0, result.stderr
    read = manifest.read_bytes(result.stdout.encode(), name)
    assert not read.problems
    job = validation.validate(read.value)
    assert isinstance(job, PPOJob)
    assert name != "images.sh" or (job.spec.rollout.engine, why_no_images(job.spec)("")) == (
        "vllm",
        "",
    )


def test_positional_parameters_are_given_by_number() -> None:
    result = run("automodel.sh", "--env", "1=8", "--env", "2=checkpoints")
    assert result.exit_code == 0, result.stderr
    job = manifest.read_bytes(result.stdout.encode(), "automodel.sh").value
    assert isinstance(validation.validate(job), PPOJob)
    assert "gpusPerReplica: 8  # trainer.n_gpus_per_node" in result.stdout


def test_the_environment_chooses_a_pass_of_a_loop() -> None:
    assert "(--env seed=1 for one pass of the loop)" in run("unread.sh").stderr
    assert "seed: 2  # data.seed" in run("unread.sh", "--env", "seed=2").stdout


def test_agent_loops_of_a_file_join_its_interactions(tmp_path: Path) -> None:
    (tmp_path / "loops.py").touch()
    loops, users = tmp_path / "loops.yaml", tmp_path / "users.yaml"
    loops.write_text("[{name: mine, _target_: loops.Mine, depth: 2}]\n")
    users.write_text("interaction: [{class_name: loops.GuideInteraction}]\n")
    at = "actor_rollout_ref.rollout"
    more = [f"{at}.agent.agent_loop_config_path={loops}", f"{at}.agent.default_agent_loop=mine"]
    more.append(f"{at}.multi_turn.interaction_config_path={users}")
    found = run("grpo.sh", *more, "trainer.experiment_name=x")
    assert found.exit_code == 0, found.stderr
    job = validation.validate(manifest.read_bytes(found.stdout.encode(), "grpo.sh").value)
    assert isinstance(job, PPOJob)
    assert job.spec.agent is not None
    guide, mine = job.spec.agent.interactions
    assert (guide.name, mine.name, mine.interface) == ("guide", "mine", "agent_loop")
    assert (mine.config, job.spec.agent.default) == ({"depth": 2}, "mine")


def test_generation_reads_its_own_keys_alone() -> None:
    more = ("data.val_files=other.parquet", "actor_rollout_ref.rollout.val_kwargs.top_p=0.1")
    told = run("generation.sh", "--plain", *more).stdout
    assert told == run("generation.sh", "--plain").stdout


def test_settings_of_the_command_line_count_last() -> None:
    result = run(
        "grpo.sh",
        "--plain",
        "--env",
        "PROMPTS=128",
        "++data.max_prompt_length=99",
        "~algorithm.use_kl_in_reward",
        "actor_rollout_ref.actor.use_kl_loss=False",
    )
    assert result.exit_code == 0, result.stderr
    job = manifest.read_bytes(result.stdout.encode(), "job").value
    assert isinstance(job, dict)
    assert "#" not in result.stdout
    assert job["spec"]["algorithm"]["promptsPerStep"] == 128
    assert job["spec"]["data"]["maxPromptTokens"] == 99
    assert "kl" not in job["spec"]["algorithm"]


def test_the_trainer_before_v1_trains_on_all_that_it_fetches_and_filters_nothing() -> None:
    told = run("dapo.sh", "--plain", "trainer.use_v1=False")
    job = manifest.read_bytes(told.stdout.encode(), "job").value
    assert isinstance(job, dict)
    assert job["spec"]["algorithm"]["promptsPerStep"] == 96
    assert "dynamicSampling" not in job["spec"]["algorithm"]
    assert "filter_groups.enable=true: this trainer reads it nowhere" in told.stderr


def test_spo_is_told_where_its_recipe_counts_otherwise() -> None:
    assert "trainer.total_epochs: got 500: a step there reads 14000" in run("spo.sh").stderr
    alike = ("trainer.spo.offline_N=0", "data.gen_batch_size=1024")
    kl = ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.1")
    told = run("spo.sh", *alike, *kl)
    assert told.exit_code == 0, "no number depends on what is left out"
    assert "total_epochs" not in told.stderr
    assert "use_kl_in_reward: got true: advantages there are without that KL" in told.stderr
    assert 'offline_values="values.json": with offline_N=0 all prompts' in told.stderr
    steps = run("spo.sh", "trainer.total_training_steps=100")
    assert "total_epochs: got 500: a step there" not in steps.stderr


def test_forks_of_early_2025_charge_the_kl_in_the_reward_unless_in_the_loss() -> None:
    line = (
        "data.train_files=a.parquet actor_rollout_ref.model.path=m algorithm.kl_ctrl.kl_coef=0.002"
    )
    told = run(*line.split())
    assert "in: reward" not in told.stdout
    assert "algorithm.kl_ctrl.kl_coef: got 0.002: without effect" in told.stderr
    tiny = run(*line.split(), "--of", "tinyzero")
    assert tiny.exit_code == 0
    assert "chatTemplate: \"{{ messages[0]['content'] }}\"  # data.train_files" in tiny.stdout
    assert "in: reward  # algorithm.use_kl_in_reward=true by default" in tiny.stdout
    assert "entropyCoefficient: 0.001" in tiny.stdout
    in_loss = run(*line.split(), "--of", "tinyzero", "actor_rollout_ref.actor.use_kl_loss=true")
    assert "in: loss" in in_loss.stdout
    assert "use_kl_loss: got true: it has the sign that rewards a distance there" in in_loss.stderr
    steps = run(*line.split(), "--of", "tinyzero", "trainer.total_training_steps=100")
    assert "total: 99  # trainer.total_training_steps" in steps.stdout
    assert "dualClip: 0 " in tiny.stdout
    actor = "actor_rollout_ref.actor"
    others = (f"{actor}.clip_ratio=0.3", f"{actor}.optim.warmup_style=cosine")
    bounded = run(*line.split(), "--of", "tinyzero", *others)
    assert "clipLow: 0.3 " in bounded.stdout
    assert "clipHigh: 0.3 " in bounded.stdout
    assert "schedule" not in bounded.stdout
    search = (*line.split(), "max_turns=2")
    assert run(*search, "--of", "tinyzero").exit_code == 2
    untold = run(*search, "algorithm.adv_estimator=gae")
    assert "max_turns: got 2: what a search found is trained on there" in untold.stderr
    assert 'algorithm.adv_estimator: got "gae": what a search found counts' in untold.stderr
    assert run(*search, "actor_rollout_ref.actor.state_masking=false").exit_code == 3
    plain = run(*line.split(), "max_turns=2", "do_search=false")
    assert "agent:" not in plain.stdout
    assert "topP: 0.95" in plain.stdout


def test_a_command_line_needs_no_file(tmp_path: Path) -> None:
    output = tmp_path / "job.yaml"
    line = (
        "algorithm.adv_estimator=grpo data.train_files=a.parquet data.val_files=[b.parquet]"
        " actor_rollout_ref.model.path=m actor_rollout_ref.rollout.n=2"
    )
    result = run(*shlex.split(line), "--output", str(output))
    assert (result.exit_code, result.stdout) == (0, "")
    job = manifest.read_file(str(output)).value
    assert isinstance(job, dict)
    # verl's own defaults where those of a PPOJob are others, or where there are none.
    assert job["spec"]["algorithm"] == {
        "type": "grpo",
        "promptsPerStep": 1024,
        "samplesPerPrompt": 2,
        "miniBatchPrompts": 256,
    }
    assert job["spec"]["training"] == {"activationCheckpointing": True}
    assert job["spec"]["roles"] == {"actorRollout": {"gpusPerReplica": 8}}
    assert job["spec"]["steps"] == {"epochs": 30}


@pytest.mark.parametrize("option", ["--config-name=mine", "--config-name mine", "-cn 'mine.yaml'"])
def test_a_configuration_of_ones_own_counts_before_the_script(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "run.sh"
    call = 'python3 -m verl.trainer.main_ppo --config-path="$(pwd)/conf"'
    script.write_text(f"{call} {option} actor_rollout_ref.rollout.n=4\n")
    result = run("run.sh")
    assert result.exit_code == 3
    assert 'run.sh:1: --config-name: got "conf/mine.yaml": cannot be read' in result.stderr
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nalgorithm: {adv_estimator: grpo}\n"
        "data: {train_files: a.parquet, val_files: b.parquet, max_prompt_length: 77}\n"
        "actor_rollout_ref: {rollout: {n: 9}, model: {path: m}}\n"
    )
    result = run("run.sh")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "maxPromptTokens: 77 " in result.stdout
    assert "samplesPerPrompt: 4 " in result.stdout
    script.write_text(f"{call} --config-name ppo_megatron_trainer.yaml data.train_files=a\n")
    assert "--config-name" not in run(str(script)).stderr


@pytest.mark.parametrize("arguments", BAD)
def test_what_is_no_source_is_one_line(arguments: str, tmp_path: Path) -> None:
    for name, text in (
        ("bad.yaml", "a: [b\n"),
        ("list.yaml", "- a\n"),
        ("job.yaml", "apiVersion: ppojob.dev/v1alpha1\nkind: PPOJob\n"),
        ("other.sh", "python3 -m verl.trainer.main_eval a=1\n"),
        ("maybe.sh", "if $(command -v x); then\n  python -m verl.trainer.main_ppo a=1\nfi\n"),
        ("nothing.sh", "python3 -m verl.trainer.main_ppo\n"),
        ("bytes.sh", b"\xff\xfe"),
    ):
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(content)
    result = run(*(word.replace("TMP", str(tmp_path)) for word in shlex.split(arguments)))
    assert (result.exit_code, result.stdout) == (2, "")
    lines = [line.replace(str(tmp_path), "TMP") for line in result.stderr.splitlines()]
    assert_lines(lines, BAD[arguments])
