"""Reward models that cannot score, by `ppojob run`: exact lines, nothing started."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_jobs
from refused_jobs import RefusedJob, edit

Spoil = Callable[[RefusedJob, Path], object]


pytestmark = pytest.mark.timeout(300)  # for the first, which makes the models


@pytest.fixture(scope="module")
def judge(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of the policy's family."""
    folder = tmp_path_factory.mktemp("judge")
    return tiny_jobs.make_classifier(tiny_folder / "model", folder)


def config(**changes: object) -> Spoil:
    return lambda _, judge: edit(judge / "config.json", changes)


def template(source: str) -> Spoil:
    return lambda _, judge: (judge / "chat_template.jinja").write_text(source)


CASES: dict[str, tuple[Spoil, str]] = {
    "71 no such folder": (
        lambda _, judge: shutil.rmtree(judge),
        'spec.rewardModel.path: got "judge": there is no such folder; a folder on this machine in '
        "Hugging Face form (config.json, *.safetensors, tokenizer.json); ppojob model makes one of "
        "a hub id",
    ),
    "72 a language model": (
        config(architectures=["LlamaForCausalLM"]),
        'judge/config.json:architectures: got ["LlamaForCausalLM"]: it gives no score of a text; '
        "a model ...ForSequenceClassification with one label",
    ),
    "78 no tokenizer": (
        lambda _, judge: (judge / "tokenizer.json").unlink(),
        "judge/tokenizer.json: got no such file: the tokenizer is read from it; a model folder "
        "with tokenizer.json (transformers' save_pretrained writes it)",
    ),
    "80 template is no Jinja": (
        template("{% for m in messages %}\n{{ m.content }"),
        "judge/chat_template.jinja:2: got \"unexpected '}'\" from the chat template: it refuses "
        "these messages or is wrong; messages in the order the template wants, or another template",
    ),
    "80 template refuses": (
        template("{{ raise_exception('no users') }}"),
        "judge/chat_template.jinja:1: got 'no users' from the chat template: it refuses these "
        "messages or is wrong; messages in the order the template wants, or another template",
    ),
    "longer than the model": (
        lambda wrong, _: wrong.set("spec.rewardModel.maxTokens", 257),
        "spec.rewardModel.maxTokens: got 257: the reward model was made for 256; at most 256, or "
        "remove it",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_line_says_what_is_wrong(name: str, wrong: RefusedJob, judge: Path) -> None:
    folder = wrong.files / "judge"
    shutil.copytree(judge, folder)
    wrong.set("spec.rewardModel", {"path": str(folder)})
    spoil, line = CASES[name]
    spoil(wrong, folder)
    assert wrong.refused() == [line]
