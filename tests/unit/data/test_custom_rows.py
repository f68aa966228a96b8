import textwrap
from pathlib import Path

import pytest
from prompt_files import PromptFiles, good_row

from ppojob_trainer.data.checks import unusable_files
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.file_checks import open_row_file
from ppojob_trainer.data.problems import DataProblem

pytestmark = pytest.mark.processes

ROWS = [good_row(f"{number} + 5", str(number + 5), extra_info={"n": number}) for number in range(9)]
ROW = """
def row(number):
    return {
        "prompt": [{"role": "user", "content": f"{number} + 5"}],
        "data_source": "ppojob/addition",
        "reward_model": {"style": "rule", "ground_truth": str(number + 5)},
        "extra_info": {"n": number},
    }
"""


def program(files: PromptFiles, text: str) -> Path:
    return files.raw("made.py", (ROW + textwrap.dedent(text)).encode())


def opened(files: PromptFiles, text: str, **settings: object) -> PromptDataset:
    return files.open(train=[{"path": str(program(files, text)), **settings}])


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("def rows(): return [row(number) for number in range(9)]", {}),
        (
            """
            def some(first, count):
                for number in range(first, first + count): yield row(number)
            """,
            {"function": "some", "arguments": {"first": 0, "count": 9}},
        ),
        (
            """
            class Sums:
                def __len__(self): return 9
                def __getitem__(self, number): return row(number)
            """,
            {"function": "Sums"},
        ),
        (
            """
            import numpy as np
            def rows():
                for number in np.arange(12):
                    yield row(number) | {"extra_info": {"n": number}, "other": np.ones(3)}
            """,
            {"maxRows": 9},
        ),
        ("from beside import rows", {}),
    ],
    ids=["function", "arguments", "data set of PyTorch", "NumPy", "a file beside it"],
)
def test_made_rows_are_those_of_a_file(files: PromptFiles, text: str, settings: dict) -> None:
    files.raw("beside.py", f"{ROW}\ndef rows(): return map(row, range(9))\n".encode())
    with (
        files.open(files.lines("a.jsonl", *ROWS)) as plain,
        opened(files, text, **settings) as made,
    ):
        assert made.rows(range(9)) == plain.rows(range(9))
        assert len(made) == 9
    with opened(files, "def rows(): return map(row, range(8))") as other:
        assert other.digest != made.digest
    with opened(files, text, **settings) as again:
        assert again.digest == made.digest


def test_a_file_is_imported_where_rows_cannot_be_judged(files: PromptFiles) -> None:
    spec = files.spec(program(files, "def rows(): raise OSError('no hub here')"))
    (told,) = unusable_files(spec)
    assert "OSError: no hub here" in told


def test_the_environment_of_the_job_is_not_seen(files: PromptFiles, monkeypatch) -> None:
    monkeypatch.setenv("A_SECRET", "told")
    text = """
    import os
    def rows(): yield row(1) | {"extra_info": {"seen": os.environ.get("A_SECRET", "none")}}
    """
    with opened(files, text) as made:
        assert made[0].extra_info == {"seen": "none"}


def test_a_file_that_no_job_names_is_not_run(files: PromptFiles) -> None:
    ran = files.folder / "ran"
    path = program(files, f"open({str(ran)!r}, 'w')")
    problem = open_row_file(str(path))
    assert isinstance(problem, DataProblem)
    assert not ran.exists()
