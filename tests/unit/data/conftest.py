import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ppojob_api.v1alpha1.training import DataSpec
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import check_files

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

MakeFolder = Callable[..., Path]
Check = Callable[..., list[str]]
Row = dict[str, object]
MakeSpec = Callable[..., DataSpec]


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


@pytest.fixture
def make_folder(tmp_path: Path, tokenizer_json: str) -> MakeFolder:
    def make(template: str | None = CHATML, name: str = "model", **config: object) -> Path:
        folder = tmp_path / name
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

    return make


@pytest.fixture
def chat(make_folder: MakeFolder) -> Iterator[ChatTokenizer]:
    with ChatTokenizer(make_folder()) as tokenizer:
        yield tokenizer


@pytest.fixture
def make_spec() -> MakeSpec:
    def make(*paths: Path, **settings: object) -> DataSpec:
        files = [{"path": str(path)} for path in paths]
        return DataSpec.model_validate({"train": files, **settings})

    return make


def row(content: str = "3 + 5", answer: object = "8", **more: object) -> dict[str, object]:
    """A good row, in which a test changes one thing."""
    return {
        "prompt": [{"role": "user", "content": content}],
        "data_source": "ppojob/addition",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": "train"},
        **more,
    }


@pytest.fixture
def good_row() -> Callable[..., dict[str, object]]:
    return row


class Checks:
    """Stands for the reward side: knows sums only."""

    def data_source_problem(self, data_source: str) -> str | None:
        return None if data_source == "ppojob/addition" else "one of ppojob/addition"

    def ground_truth_problem(self, data_source: str, ground_truth: object) -> str | None:
        return None if isinstance(ground_truth, str) else 'the sum as text, such as "12"'


TABLE = Checks()


@pytest.fixture
def errors(chat: ChatTokenizer, make_spec: MakeSpec) -> Check:
    def check(*paths: Path, batch: int = 1, **more: object) -> list[str]:
        spec = make_spec(*paths, **more)
        report = check_files(spec, chat, rewards=Checks(), prompts_per_step=batch)
        assert not any("Traceback" in line or "\n" in line for line in report.errors)
        return [line.replace(f"{paths[0].parent}/", "") for line in report.errors]

    return check


@pytest.fixture
def warnings(chat: ChatTokenizer, make_spec: MakeSpec) -> Check:
    def check(
        *paths: Path, validation: tuple[Path, ...] = (), rewards: Checks | None = TABLE
    ) -> list[str]:
        held_out = [{"path": str(path)} for path in validation]
        spec = make_spec(*paths, validation=held_out)
        report = check_files(spec, chat, rewards=rewards, prompts_per_step=1)
        assert report.errors == []
        return [line.replace(f"{paths[0].parent}/", "") for line in report.warnings]

    return check


@pytest.fixture
def write_lines() -> Callable[..., Path]:
    def write(path: Path, *rows: object) -> Path:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def write_table() -> Callable[..., Path]:
    def write(path: Path, rows: list[Row], **options: object) -> Path:
        pq.write_table(pa.Table.from_pylist(rows), path, **options)
        return path

    return write
