import re

import pytest
from click.testing import CliRunner, Result

from ppojob_api import shape
from ppojob_cli.main import main
from ppojob_cli.verl import keys

PATHS = [path for path in shape.all_paths() if path.startswith("spec.")]


def fields(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fields", *arguments])


@pytest.mark.parametrize("section", ["algorithm", "spec.rewards[0]", "spec.roles", "metadata"])
def test_a_section_is_printed_whole(section: str) -> None:
    printed = re.findall(r"^[a-z]\S*", fields(section).output, re.MULTILINE)
    name = (
        section.removesuffix("[0]")
        if "." in section or section == "metadata"
        else f"spec.{section}"
    )
    below = [path for path in shape.all_paths() if shape.within(path, name)]
    assert [path.replace("[]", "") for path in printed if path != "ppojob"] == below


def test_without_a_path_the_sections_are_told() -> None:
    printed = re.findall(r"^spec\.\S*", fields().output, re.MULTILINE)
    assert printed == [path for path in PATHS if path.count(".") == 1]


def test_what_is_told_of_a_field() -> None:
    assert fields("spec.algorithm.epochs").output.splitlines() == [
        "spec.algorithm.epochs",
        "    an integer from 1 to 1000; default 1",
        "    Passes over a step's rollouts.",
        "    verl: ppo_epochs, 1",
    ]


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("custom_reward_function", ["path", "spec.rewards[].source.path"]),
        ("actor_rollout_ref.actor.optim", ["lr", "spec.optimizer.learningRate"]),
        ("optim", ["zero_indexed_step", "not needed, spec.optimizer.type says which"]),
        ("ckpt", ["max_num", "spec.checkpoint.keepLast"]),
    ],
)
def test_a_section_of_another_framework(section: str, told: list[str]) -> None:
    result = fields(section)
    lines = result.output.splitlines()
    names = [name for name in lines if not name.startswith(" ")]
    assert {key for key in keys.rows() if f".{section}." in f".{key}"} <= {*names}
    assert all(f"{section}." in name for name in names)
    at = next(i for i, name in enumerate(lines) if name.endswith(f"{section}.{told[0]}"))
    assert (lines[at + 1], result.exit_code) == (f"    {told[1]}", 0)


def test_a_section_that_is_here_and_there() -> None:
    names = re.findall(r"^[a-z]\S*", fields("lora").output, re.MULTILINE)
    assert names[:2] == ["spec.model.lora", "spec.critic.lora"]
    assert "actor_rollout_ref.model.lora.rank" in names


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("adv_estimator", "write spec.algorithm.type"),
        ("spec.algorithm.kll", "write spec.algorithm.kl"),
        ("r", "write spec.model.lora.rank"),
        ("actor_rollout_ref.rollout.n", "write spec.algorithm.samplesPerPrompt"),
        ("spec.agent.max_turns", "write spec.agent.maxAssistantTurns"),
        ("spec.rewards[0].source.function", "write spec.rewards.function"),
        ("routerBias", "write spec.algorithm.routerBiasRate"),
        (
            "spec.data.train[0].file",
            "fields here are arguments, format, function, maxRows, path, weight",
        ),
        ("[0]", "fields here are apiVersion, kind, metadata, spec, status"),
    ],
)
def test_an_unknown_path(path: str, answer: str) -> None:
    result = fields(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f'PATH: got "{path}": ')
    assert result.stderr.endswith(f"; {answer}\n")
