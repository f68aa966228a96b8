import hashlib
import itertools
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tokenizers.pre_tokenizers import ByteLevel

from ppojob_cli.data import data
from ppojob_trainer.agents.formats import calls
from ppojob_trainer.agents.formats.hermes import hermes
from ppojob_trainer.agents.formats.search_r1 import information
from ppojob_trainer.agents.formats.search_r1 import search_r1 as search_format
from ppojob_trainer.data import generate
from ppojob_trainer.data.checks import check_files
from ppojob_trainer.data.facts import facts
from ppojob_trainer.data.generate import addition, countdown, multiply
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.retrieval.passages import passage_of, passages_to_string
from ppojob_trainer.rewards.countdown import evaluate
from ppojob_trainer.rewards.multiply import multiply as scored_product
from ppojob_trainer.rewards.row_checks import RowChecks
from ppojob_trainer.rewards.search_r1 import search_r1
from ppojob_trainer.sandbox.executor import Runner
from ppojob_trainer.tools.built_in import calculator, tool

# Made up here, in the form of the data set.
PROBLEMS = [
    {"question": "Ann has 2 pens and buys 3.", "answer": "2 + 3 = <<2+3=5>>5\n#### 5"},
    {"question": "A box holds 1,000 nails. 4 boxes?", "answer": "4 * 1000\n#### 4,000"},
    {"question": "It was 3 degrees, then 5 less.", "answer": "3 - 5\n#### -2"},
    {"question": "Half of 5 litres?", "answer": "5 / 2\n#### 2.5"},
    {"question": "A pen costs $2. Three?", "answer": "3 * 2\n#### 6"},
]


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(data, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def words_of(text: str) -> list[str]:
    """What no token reaches over in GPT-2's vocabulary and its kin."""
    return [word for word, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text)]


def no_sandbox() -> Runner:
    raise AssertionError("a calculator runs no code")


def contents(folder: Path) -> dict[str, str]:
    files = sorted(folder.iterdir())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def write_problems(folder: Path) -> Path:
    folder.mkdir()
    for split, problems in (("train", PROBLEMS[:3]), ("test", PROBLEMS[3:])):
        lines = "".join(json.dumps(problem) + "\n" for problem in problems)
        (folder / f"{split}.jsonl").write_text(lines)
    return folder


COMMANDS = {
    "addition": ("addition",),
    "countdown": ("countdown", "--rows", 60, "--validation-rows", 20),
    "countdown for base models": ("countdown", "--rows", 9, "--prompt-form", "base"),
    "multiply": ("multiply", "--rows", 60, "--validation-rows", 20),
    "calculator": ("multiply", "--rows", 60, "--prompt-form", "calculator", "--digits", 3),
    "gsm8k": ("gsm8k", "--input", "problems"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.processes
def test_what_is_made_passes_every_check_and_is_made_alike_again(name, tmp_path, files) -> None:
    problems = write_problems(tmp_path / "problems")
    command = [problems if word == "problems" else word for word in COMMANDS[name]]
    output = tmp_path / "deep" / "output"
    status, told = run(*command, "--output", output)
    assert status == 0, told
    first = contents(output)
    assert set(first) == {"train.parquet", "test.parquet"}
    rows = {
        split: pq.read_metadata(output / f"{split}.parquet").num_rows for split in ("train", "test")
    }
    assert told.splitlines() == [
        f"{output}/{split}.parquet: {count} rows" for split, count in rows.items()
    ]
    assert run(*command, "--output", output)[0] == 0
    assert contents(output) == first

    held_out = [{"path": str(output / "test.parquet")}]
    spec = files.spec(output / "train.parquet", validation=held_out, maxPromptTokens=1000)
    report = check_files(spec, files.chat, rewards=RowChecks(), draw=("promptsPerStep", 1))
    assert (report.errors, report.warnings) == ([], [])


def test_addition_is_the_demos_task() -> None:
    task = addition()
    assert (len(task.train), len(task.held_out)) == (663, 64)
    row = task.train[0].columns("train", 0)
    assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert row["data_source"] == "ppojob/addition"
    prompt = task.train[0].prompt
    assert prompt[:2] == [
        {"role": "user", "content": "3 + 5 + 4"},
        {"role": "assistant", "content": "3 + 5 = 8\n8 + 4 = 12\n#### 12"},
    ]
    question = prompt[2]["content"]
    assert eval(question) == int(str(task.train[0].ground_truth))


@pytest.mark.parametrize("seed", range(5))
def test_held_out_sums_are_no_trained_sum_in_another_order(seed: int) -> None:
    def kinds(rows: list[object]) -> set[tuple[str, ...]]:
        return {tuple(sorted(row.prompt[-1]["content"].split(" + "))) for row in rows}  # type: ignore[attr-defined]

    task = addition(seed=seed)
    trained, held_out = kinds([*task.train]), kinds([*task.held_out])
    assert not trained & held_out
    assert ("3", "4", "5") not in held_out


def test_other_seeds_and_fewer_rows() -> None:
    assert addition(seed=1) != addition(seed=0) == addition(seed=0)
    assert addition(rows=10).train == addition().train[:10]
    with pytest.raises(ConfigError, match="--validation-rows: got 724: "):
        addition(held_out=724)


def test_sums_of_larger_numbers() -> None:
    task = addition(rows=300, held_out=50, seed=3, digits=2)
    assert (len(task.train), len(task.held_out)) == (300, 50)
    kinds = set()
    for row in [*task.train, *task.held_out]:
        numbers = [int(word) for word in str(row.prompt[-1]["content"]).split(" + ")]
        assert len(numbers) == 3
        assert all(10 <= number <= 99 for number in numbers)
        assert row.ground_truth == str(sum(numbers))
        kinds.add(tuple(sorted(numbers)))
    assert len(kinds) == 350, "no sum is there twice, nor in another order"
    assert addition(rows=300, held_out=50, seed=3, digits=2) == task
    with pytest.raises(ConfigError, match=r"--rows: .* at most 125530, "):
        addition(rows=125_531, held_out=50, digits=2)


def test_every_countdown_item_has_a_solution_and_is_there_once() -> None:
    task = countdown(rows=300, held_out=50, seed=3)
    items = [*task.train, *task.held_out]
    keys = set()
    for item in items:
        target, numbers = item.ground_truth["target"], item.ground_truth["numbers"]
        assert 1 <= target <= 100
        keys.add((target, *sorted(map(str, numbers))))
        assert is_reachable([str(number) for number in numbers], target)
    assert len(keys) == len(items) == 350


def test_countdown_goes_on_while_it_finds_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_TRIES", 400)
    assert len(countdown(rows=900, held_out=100).train) == 900
    with pytest.raises(ConfigError, match=r"--rows: .* only \d+ different items were found"):
        countdown(rows=900, held_out=100, operands=(2, 2), max_number=5)


def is_reachable(terms: list[str], target: int) -> bool:
    """Try every way to combine terms, two at a time."""
    if len(terms) == 1:
        return is_value(terms[0], target)
    for left in range(len(terms)):
        for right in range(len(terms)):
            if left == right:
                continue
            rest = [term for at, term in enumerate(terms) if at not in (left, right)]
            for op in "+-*/":
                if is_reachable([*rest, f"({terms[left]} {op} {terms[right]})"], target):
                    return True
    return False


def is_value(expression: str, target: int) -> bool:
    try:
        return evaluate(expression)[0] == target
    except ValueError:
        return False


def test_no_product_is_asked_for_twice_or_turned_round() -> None:
    task = multiply(rows=40, held_out=5, digits=1)
    factors = set()
    for row in [*task.train, *task.held_out]:
        product = row.prompt[-1]["content"].partition("equation: ")[2].partition(".")[0]
        assert eval(product) == int(str(row.ground_truth))
        factors.add(tuple(sorted(product.split(" * "))))
    assert len(factors) == 45
    with pytest.raises(ConfigError, match=r"--rows: .* 45 products .* at most 40"):
        multiply(rows=41, held_out=5, digits=1)
    with pytest.raises(ConfigError, match=r"--validation-rows: .* at most 44,"):
        multiply(rows=10, held_out=50, digits=1)


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


def test_gsm8k_has_verls_words(tmp_path: Path) -> None:
    assert run("gsm8k", "--input", write_problems(tmp_path / "in"), "--output", tmp_path)[0] == 0
    train = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert train[1] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": "A box holds 1,000 nails. 4 boxes? Let's think step by step and output "
                'the final answer after "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4000"},
        "extra_info": {
            "split": "train",
            "index": 1,
            "answer": "4 * 1000\n#### 4,000",
            "question": "A box holds 1,000 nails. 4 boxes?",
        },
    }
    truths = [row["reward_model"]["ground_truth"] for row in train]
    assert truths == ["5", "4000", "-2"]


def write_math(folder: Path, *solutions: str) -> Path:
    folder.mkdir()
    for split in ("train", "test"):
        lines = [
            json.dumps({"problem": f"Problem {n}", "level": "Level 5", "solution": solution})
            for n, solution in enumerate(solutions)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_math_has_verls_words(tmp_path: Path) -> None:
    solutions = (r"So $\boxed{\frac{1}{2}}$.", r"First \boxed{1}, then \boxed{2}", r"\boxed 3$.")
    folder = write_math(tmp_path / "in", *solutions)
    assert run("math", "--input", folder, "--output", tmp_path)[0] == 0
    train = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert train[0] == {
        "data_source": "DigitalLearningGmbH/MATH-lighteval",
        "prompt": [
            {
                "role": "user",
                "content": "Problem 0 Let's think step by step and output the final answer within "
                r"\boxed{}.",
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": r"\frac{1}{2}"},
        "extra_info": {"split": "train", "index": 0},
    }
    truths = [row["reward_model"]["ground_truth"] for row in train]
    assert truths == [r"\frac{1}{2}", "2", "3"]


@pytest.mark.parametrize("solution", ["2", r"\boxed{2", r"\boxed{}", r"\boxed{ }"])
def test_a_solution_without_an_answer_is_named(solution: str, tmp_path: Path) -> None:
    folder = write_math(tmp_path / "in", r"\boxed{1}", solution)
    status, told = run("math", "--input", folder, "--output", tmp_path / "out")
    assert status == 2
    assert ":2:solution: got " in told
    assert "no answer in it; a solution with \\boxed{...}" in told
    assert not (tmp_path / "out" / "train.parquet").exists()


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('{"question": "a", "answer": "5"}', ":2:answer: "),
        ('{"question": "", "answer": "#### 5"}', ":2:question: "),
        ('{"question": "a"}', ":2:answer: "),
        ("{", ":2: "),
    ],
)
def test_bad_problems_are_named_and_nothing_is_written(line, place, tmp_path) -> None:
    folder = write_problems(tmp_path / "in")
    good = json.dumps(PROBLEMS[0])
    (folder / "test.jsonl").write_text(f"{good}\n{line}\n")
    status, told = run("gsm8k", "--input", folder, "--output", tmp_path / "out")
    assert status == 2
    assert told.startswith(f"{folder}/test.jsonl{place}")
    assert contents(tmp_path / "out") == {}


def test_wrong_arguments(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for where, arguments in {
        f"{tmp_path}: ": ("gsm8k", "--input", tmp_path, "--output", tmp_path),
        "--operands: ": ("countdown", "--operands", 4, 3, "--output", tmp_path),
        "--rows: ": ("addition", "--rows", 0, "--output", tmp_path),
        f"{tmp_path}/file/below: ": ("addition", "--output", tmp_path / "file" / "below"),
    }.items():
        status, told = run(*arguments)
        assert status == 2
        assert where.rstrip(": ") in told


def test_a_corpus_of_facts_answers_its_questions(tmp_path: Path) -> None:
    command = ("facts", "--facts", 400, "--rows", 300, "--validation-rows", 50, "--output")
    status, told = run(*command, tmp_path / "a")
    assert status == 0, told
    assert told.splitlines()[0] == f"{tmp_path}/a/corpus.jsonl: 400 documents"
    run(*command, tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    run(*command, tmp_path / "c", "--seed", 1)
    assert contents(tmp_path / "c") != contents(tmp_path / "a")

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
        passage = passage_of("0", f'"{name}"\n{found}', 1.0)
        given = information(passages_to_string([passage]))
        parts = said.partition(given)
        assert parts[1] == given
        assert list(itertools.chain(*map(words_of, parts))) == words_of(said)
        assert search_r1(said, {"target": [answer]})["score"] == 1.0


def test_more_questions_than_facts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--rows: got 90 and 20 held out: there are 100 facts;"):
        facts(facts=100, rows=90, held_out=20)
    with pytest.raises(ConfigError, match=r"--rows: got 0 and 100 held out: "):
        facts(facts=100, held_out=100)
    with pytest.raises(ConfigError, match=r"--facts: got 999999: there are \d+ names; "):
        facts(facts=999_999, held_out=1)
