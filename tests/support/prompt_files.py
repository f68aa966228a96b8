"""Prompts: as tokens, what is written into files of them, and what is said of these."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ppojob_api.v1alpha1.data import DataSpec
from ppojob_api.v1alpha1.estimators import GivenType
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.checks import DataReport, check_files
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.template_renderer import Messages, accepted
from ppojob_trainer.json_value import Json

Row = dict[str, object]
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def good_row(content: str = "3 + 5", answer: object = "8", **changes: object) -> Row:
    """A good row, in which a test changes one thing."""
    return {
        "prompt": [{"role": "user", "content": content}],
        "data_source": "ppojob/addition",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": "train"},
        **changes,
    }


def encode_chat(chat: ChatTokenizer, messages: Messages, **variables: Json) -> list[int]:
    """The ids of a conversation; raises what the template refuses."""
    return accepted(chat.encode_chats([messages], variables))[0]


class SumsOnly:
    """Stands for the reward side."""

    def data_source_problem(self, data_source: str) -> str | None:
        return None if data_source == "ppojob/addition" else "one of ppojob/addition"

    def ground_truth_problem(self, data_source: str, ground_truth: object) -> str | None:
        return None if isinstance(ground_truth, str) else 'the sum as text, such as "12"'


class PromptFiles:
    """A folder of files with prompts, and the tokenizer of those who read them."""

    def __init__(self, folder: Path, chat: ChatTokenizer) -> None:
        self.folder = folder
        self.chat = chat

    def lines(self, name: str, *rows: object) -> Path:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        return self.raw(name, text.encode())

    def raw(self, name: str, content: bytes) -> Path:
        (self.folder / name).write_bytes(content)
        return self.folder / name

    def table(self, name: str, *rows: Row, **options: object) -> Path:
        return self.columns(name, pa.Table.from_pylist(list(rows)), **options)

    def columns(self, name: str, table: pa.Table, **options: object) -> Path:
        pq.write_table(table, self.folder / name, **options)
        return self.folder / name

    def spec(self, *paths: Path | str, **settings: object) -> DataSpec:
        files = [{"path": str(path)} for path in paths]
        return DataSpec.model_validate({"train": files, **settings})

    def report(
        self, *paths: Path | str, batch: int = 1, given: GivenType | None = None, **settings: object
    ) -> DataReport:
        """What the checks say of files."""
        spec, draw = self.spec(*paths, **settings), ("promptsPerStep", batch)
        report = check_files(
            spec,
            self.chat,
            rewards=SumsOnly(),
            draw=draw,
            given=given,
            demonstrations=batch if spec.demonstrations else None,
        )
        assert not any("Traceback" in line or "\n" in line for line in report.errors)
        return report

    def errors(
        self, *paths: Path | str, batch: int = 1, given: GivenType | None = None, **settings: object
    ) -> list[str]:
        """The errors among that, without the folder."""
        report = self.report(*paths, batch=batch, given=given, **settings)
        return [line.replace(f"{self.folder}/", "") for line in report.errors]

    def warnings(self, *paths: Path, held_out: Path | None = None, **settings: object) -> list[str]:
        """The warnings among that, where there is no error."""
        validation = [{"path": str(held_out)}] if held_out else []
        report = self.report(*paths, validation=validation, **settings)
        assert report.errors == []
        return [line.replace(f"{self.folder}/", "") for line in report.warnings]

    def open(
        self,
        *paths: Path | str,
        given: GivenType | None = None,
        **settings: object,
    ) -> PromptDataset:
        return PromptDataset.open(self.spec(*paths, **settings), self.chat, given=given)
