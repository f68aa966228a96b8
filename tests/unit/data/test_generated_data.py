import itertools
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tokenizers.pre_tokenizers import ByteLevel
from trees import tree

from ppojob_cli.main import main
from ppojob_trainer.agents.formats import calls
from ppojob_trainer.agents.formats.search_r1 import information
from ppojob_trainer.agents.formats.search_r1 import search_r1 as search_format
from ppojob_trainer.agents.formats.tagged import hermes
from ppojob_trainer.data import generate
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.facts import facts
from ppojob_trainer.data.generate import addition, countdown, multiply
from ppojob_trainer.data.prompt_files import TaskRow
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.retrieval.passages import Passage, passages_to_string
from ppojob_trainer.rewards.multiply import multiply as scored_product
from ppojob_trainer.rewards.row_checks import RowChecks
from ppojob_trainer.rewards.search_r1 import search_r1
from ppojob_trainer.sandbox.executor import Runner
from ppojob_trainer.tools.built_in import calculator, tool


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["data", *map(str, arguments)])
    return result.exit_code, result.output


def words_of(text: str) -> list[str]:
    """What no token reaches over in GPT-2's vocabulary and its kin."""
    return [word for word, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text)]


def no_sandbox() -> Runner:
    raise AssertionError("a calculator runs no code")


COMMANDS = {
    "addition": ("addition",),
    "countdown": ("countdown", "--rows", 60, "--validation-rows", 20),
    "countdown for base models": ("countdown", "--rows", 9, "--prompt-form", "base"),
    "multiply": ("multiply", "--rows", 60, "--validation-rows", 20),
    "calculator": ("multiply", "--rows", 60, "--prompt-form", "calculator", "--digits", 3),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.processes
def test_what_is_made_passes_every_check_and_is_made_alike_again(name, tmp_path, files) -> None:
    output = tmp_path / "deep" / "output"
    status, told = run(*COMMANDS[name], "--output", output)
    assert status == 0, told
    first = tree(output)
    assert told.splitlines() == [
        f"{output}/{split}.parquet: {pq.read_metadata(output / f'{split}.parquet').num_rows} rows"
        for split in ("train", "test")
    ]
    assert run(*COMMANDS[name], "--output", output)[0] == 0
    assert tree(output) == first

    held_out = [{"path": str(output / "test.parquet")}]
    spec = files.spec(output / "train.parquet", validation=held_out, maxPromptTokens=1000)
    report = check_files(spec, files.chat, rewards=RowChecks(), draw=("promptsPerStep", 1))
    assert (report.errors, report.warnings) == ([], [])


def test_addition_is_the_demos_task() -> None:
    task = addition()
    assert (len(task.train), len(task.held_out)) == (663, 64)
    assert addition(seed=1) != task == addition(seed=0)
    assert addition(rows=10).train == task.train[:10]
    assert task.train[0].data_source == "ppojob/addition"
    prompt = task.train[0].prompt
    assert prompt[:2] == [
        {"role": "user", "content": "3 + 5 + 4"},
        {"role": "assistant", "content": "3 + 5 = 8\n8 + 4 = 12\n#### 12"},
    ]
    question = prompt[2]["content"]
    assert eval(question) == int(str(task.train[0].ground_truth))


def kinds_of(rows: list[TaskRow]) -> list[tuple[str, ...]]:
    """Of each row the numbers of its sum, sorted."""
    return [tuple(sorted(str(row.prompt[-1]["content"]).split(" + "))) for row in rows]


@pytest.mark.parametrize("seed", range(5))
def test_held_out_sums_are_no_trained_sum_in_another_order(seed: int) -> None:
    task = addition(seed=seed)
    trained, held_out = set(kinds_of(task.train)), set(kinds_of(task.held_out))
    assert not trained & held_out
    assert ("3", "4", "5") not in held_out


def test_sums_of_larger_numbers() -> None:
    task = addition(rows=300, held_out=50, seed=3, digits=2)
    assert (len(task.train), len(task.held_out)) == (300, 50)
    kinds = kinds_of([*task.train, *task.held_out])
    assert len(set(kinds)) == 350, "no sum is there twice, nor in another order"
    for row, kind in zip([*task.train, *task.held_out], kinds, strict=True):
        numbers = [int(word) for word in kind]
        assert len(numbers) == 3
        assert all(10 <= number <= 99 for number in numbers)
        assert row.ground_truth == str(sum(numbers))


@pytest.mark.parametrize(
    ("make", "options", "line"),
    [
        (addition, {"held_out": 724}, "--validation-rows: got 724: "),
        (
            addition,
            {"rows": 125_531, "held_out": 50, "digits": 2},
            "--rows: .* at most 125580 together, ",
        ),
        (multiply, {"rows": 41, "held_out": 5, "digits": 1}, "--rows: .* 45 products .* most 45 "),
        (multiply, {"rows": 10, "held_out": 50, "digits": 1}, "--rows: .* at most 45 together,"),
        (
            facts,
            {"facts": 100, "rows": 90, "held_out": 20},
            "--rows: got 90 and 20 held out: there are 100 facts;",
        ),
        (facts, {"facts": 100, "held_out": 100}, "--rows: got 0 and 100 held out: "),
        (facts, {"facts": 999_999, "held_out": 1}, r"--facts: got 999999: there are \d+ names; "),
    ],
)
def test_more_rows_than_there_are_items_are_refused(make, options, line) -> None:
    with pytest.raises(ConfigError, match=line):
        make(**options)


def test_every_countdown_item_has_a_solution_and_is_there_once() -> None:
    task = countdown(rows=60, held_out=10, seed=3)
    items = [*task.train, *task.held_out]
    keys = set()
    for item in items:
        target, numbers = item.ground_truth["target"], item.ground_truth["numbers"]
        assert 1 <= target <= 100
        keys.add((target, *sorted(map(str, numbers))))
        assert target in values_of(numbers)
    assert len(keys) == len(items) == 70


def test_countdown_goes_on_while_it_finds_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_TRIES", 400)
    assert len(countdown(rows=900, held_out=100).train) == 900
    with pytest.raises(ConfigError, match=r"--rows: .* only \d+ different items were found"):
        countdown(rows=900, held_out=100, operands=(2, 2), max_number=5)


def values_of(numbers: Sequence[int | Fraction]) -> set[Fraction]:
    """All that numbers can be combined to, two at a time."""
    if len(numbers) == 1:
        return {Fraction(numbers[0])}
    found = set()
    for one, two in itertools.combinations(range(len(numbers)), 2):
        rest = [number for at, number in enumerate(numbers) if at not in (one, two)]
        a, b = Fraction(numbers[one]), Fraction(numbers[two])
        results = [a + b, a - b, b - a, a * b, *([a / b] if b else []), *([b / a] if a else [])]
        found |= set().union(*(values_of([result, *rest]) for result in results))
    return found


def test_no_product_is_asked_for_twice_or_turned_round() -> None:
    task = multiply(rows=40, held_out=5, digits=1)
    factors = set()
    for row in [*task.train, *task.held_out]:
        product = row.prompt[-1]["content"].partition("equation: ")[2].partition(".")[0]
        assert eval(product) == int(str(row.ground_truth))
        factors.add(tuple(sorted(product.split(" * "))))
    assert len(factors) == 45


def test_worked_calls_are_calls_and_their_answers_the_calculators() -> None:
    task = multiply(rows=4, held_out=2, form="calculator", digits=3)
    assert [len(row.prompt) for row in task.train] == [5, 9, 5, 9]
    assert [len(row.prompt) for row in task.held_out] == [5, 5]
    *worked, last = task.train[1].prompt
    assert worked[:4] == list(task.train[0].prompt[:4])
    assert eval(last["content"].strip("Whatis ?")) == int(str(task.train[1].ground_truth))
    for at in (0, 4):
        asked, called, told, answered = (message["content"] for message in worked[at : at + 4])
        (call,) = hermes(called)
        assert isinstance(call, calls.Call)
        assert call.name == "calculator"
        arguments = json.loads(call.arguments)
        assert asked == f"What is {arguments['expression']}?"
        assert calculator.TOOL.answer(tool.Call(arguments, {}, {}, no_sandbox)) == told
        assert scored_product(answered, told)["score"] == 1.0


def test_wrong_arguments(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for where, arguments in {
        f"{tmp_path}": ("gsm8k", "--input", tmp_path, "--output", tmp_path),
        "--operands": ("countdown", "--operands", 4, 3, "--output", tmp_path),
        f"{tmp_path}/file/below": ("addition", "--output", tmp_path / "file" / "below"),
    }.items():
        status, told = run(*arguments)
        assert status == 2
        assert told.startswith(f"{where}: got ")


def test_a_corpus_of_facts_answers_its_questions(tmp_path: Path) -> None:
    command = ("facts", "--facts", 400, "--rows", 300, "--validation-rows", 50, "--output")
    status, told = run(*command, tmp_path / "a")
    assert status == 0, told
    assert told.splitlines()[0] == f"{tmp_path}/a/corpus.jsonl: 400 documents"
    run(*command, tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    run(*command, tmp_path / "c", "--seed", 1)
    assert tree(tmp_path / "c") != tree(tmp_path / "a")

    lines = (tmp_path / "a" / "corpus.jsonl").read_text().splitlines()
    texts = [json.loads(line)["contents"] for line in lines]
    names = [text.partition("\n")[0].strip('"') for text in texts]
    assert len(set(names)) == len(names) == 400
    asked = []
    for split, count in (("train", 300), ("test", 50)):
        rows = pq.read_table(tmp_path / "a" / f"{split}.parquet").to_pylist()
        assert len(rows) == count
        for row in rows:
            question = row["extra_info"]["question"]
            assert row["data_source"] == "searchR1_facts"
            assert row["prompt"][0]["content"].endswith(f"Question: {question}\n")
            (target,) = row["reward_model"]["ground_truth"]["target"]
            (named,) = [number for number, name in enumerate(names) if name in question]
            assert f" {target}." in texts[named]
            answer = f"<answer>The {target.upper()}</answer>"
            scored = search_r1(answer, row["reward_model"]["ground_truth"])
            assert scored["score"] == 1.0
            asked.append(question)
    assert len(set(asked)) == 350


def test_worked_searches_are_what_a_search_gives_of_somebody_else() -> None:
    corpus, task = facts(facts=300, held_out=50, form="worked")
    plain = facts(facts=300, held_out=50)[1]
    for row, of_words in zip(task.train + task.held_out, plain.train + plain.held_out, strict=True):
        assert row.prompt[-1] == {"role": "user", "content": row.extra_info["question"]}
        assert (row.ground_truth, row.extra_info) == (of_words.ground_truth, of_words.extra_info)
    assert [len(row.prompt) for row in task.train[:4]] == [3, 5, 3, 5]
    assert {len(row.prompt) for row in task.held_out} == {3}
    for row in (*task.train, *task.held_out):
        *others, own = ("trade" in message["content"] for message in row.prompt[::2])
        assert others == ([not own, own] if len(row.prompt) == 5 else [not own])
    worked = task.train[1].prompt[:-1]
    for said in (worked[1]["content"], worked[3]["content"]):
        (call,) = search_format(said)
        assert isinstance(call, calls.Call)
        name = json.loads(call.arguments)["query"]
        assert not any(name in line["contents"] for line in corpus)
        answer = said.partition("<answer>")[2].partition("<")[0]
        found = said.partition(f'(Title: "{name}") ')[2].partition("</information>")[0]
        assert f" {answer}." in found
        passage = Passage("0", f'"{name}"\n{found}', 1.0)
        given = information(passages_to_string([passage]))
        parts = said.partition(given)
        assert parts[1] == given
        assert list(itertools.chain(*map(words_of, parts))) == words_of(said)
        assert search_r1(said, {"target": [answer]})["score"] == 1.0
