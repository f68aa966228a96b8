import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_files import CHATML, PromptFiles
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ppojob_trainer.data.chat import ChatTokenizer

MakeFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|im_start|>", "<|im_end|>", "<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["user assistant system 3 + 5 = 8 #### 12"] * 3, trainer)
    return str(tokenizer.to_str())


def write_folder(
    folder: Path, tokenizer_json: str, template: str | None = CHATML, **config: object
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json)
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        **config,
    }
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def make_folder(tmp_path: Path, tokenizer_json: str) -> MakeFolder:
    def make(template: str | None = CHATML, name: str = "model", **config: object) -> Path:
        return write_folder(tmp_path / name, tokenizer_json, template, **config)

    return make


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: str) -> Iterator[ChatTokenizer]:
    """Nothing changes it: the process of its templates serves all tests of a module."""
    with ChatTokenizer(write_folder(tmp_path_factory.mktemp("model"), tokenizer_json)) as tokenizer:
        yield tokenizer


@pytest.fixture
def files(tmp_path: Path, chat: ChatTokenizer) -> PromptFiles:
    return PromptFiles(tmp_path, chat)
