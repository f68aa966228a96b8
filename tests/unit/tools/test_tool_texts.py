import pytest

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.rewards.results import BadResult
from ppojob_trainer.tools.answers import FAILURES, cut, failure_text, for_the_model, read_answer
from ppojob_trainer.tools.arguments import WrongArguments, read_arguments
from ppojob_trainer.tools.built_in.answer_tools import calc_geo3k_reward, calc_gsm8k_reward
from ppojob_trainer.tools.built_in.calculator import TOOL, calculator
from ppojob_trainer.tools.built_in.tool import Call
from ppojob_trainer.tools.schemas import tool_schemas

SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "top_k": {"type": "integer"},
        "unit": {"type": "string", "nullable": True},
        "either": {"type": ["number", "null"]},
        "list": {"type": "array", "items": {"type": "object", "required": ["a"]}},
        "odd": {"type": "anything", "properties": 7, "required": "all"},
    },
    "required": ["query"],
}


def call(created: dict[str, object] | None = None, **arguments: object) -> Call:
    return Call(arguments, created or {}, {}, lambda: pytest.fail("no sandbox"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"query": "a"}', ""),
        ('{"query": "a", "top_k": 3.0, "unit": null, "either": null, "more": [1]}', ""),
        ('{"query": "a", "list": [{"a": 1}], "odd": {"b": 2}}', ""),
        ("{}", "query: missing"),
        ('["a"]', "not of type object"),
        ("null", "not of type object"),
        ('{"query": 1}', "query: not of type string"),
        ('{"query": "a", "top_k": 3.5}', "top_k: not of type integer"),
        ('{"query": "a", "top_k": true}', "top_k: not of type integer"),
        ('{"query": "a", "either": "b"}', "either: not of type number or null"),
        ('{"query": "a", "list": [{"a": 1}, {}]}', "list[1].a: missing"),
        ('{"query": "a"', "no JSON"),
        ('{"query": NaN}', "no JSON"),
        ('{"query": "\\ud800"}', "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("\ud800", "no JSON"),
    ],
)
def test_arguments(text: str, wrong: str) -> None:
    if not wrong:
        assert read_arguments(text, SCHEMA)
        return
    with pytest.raises(WrongArguments) as found:
        read_arguments(text, SCHEMA)
    assert str(found.value).startswith(wrong)


@pytest.mark.parametrize(
    ("side", "most", "text"),
    [
        ("left", 4, "(truncated)...6789"),
        ("right", 4, "0123...(truncated)"),
        ("middle", 4, "01...(truncated)...89"),
        ("middle", 5, "01...(truncated)...89"),
        ("middle", 1, "...(truncated)..."),
        ("left", 10, "0123456789"),
    ],
)
def test_long_answers_are_cut_as_in_verl(side, most: int, text: str) -> None:
    assert cut("0123456789", most, side) == text


def test_a_text_is_one_that_utf8_can_hold() -> None:
    assert for_the_model("a\ud800b", 256, "middle") == "a\\ud800b"
    assert len(for_the_model("\ud800" * 300, 256, "right")) <= 256 + 34


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("a", ("a", 0.0)),
        (("a",), ("a", 0.0)),
        (("a", None), ("a", 0.0)),
        (("a", True, {"b": 1}), ("a", 1.0)),
        ({"a": "\u00e9", "b": [1]}, ('{"a": "\u00e9", "b": [1]}', 0.0)),
        (({"a": 1}, 0.5), ('{"a": 1}', 0.5)),
        (7, ("7", 0.0)),
        (None, ("None", 0.0)),
        ([1, 2], ("[1, 2]", 0.0)),
    ],
)
def test_what_a_tool_may_return(value: object, answer: tuple[str, float]) -> None:
    text, reward = answer
    assert read_answer(value) == (text, [], reward)


@pytest.mark.parametrize("value", [(), ("a", 0.0, {}, 1), ("a", "b"), ("a", float("inf"))])
def test_what_it_may_not(value: object) -> None:
    with pytest.raises(BadResult):
        read_answer(value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(3 + 4) * 12", "84"),
        ("1234 * 5678", "7006652"),
        ("2 ^ 10 - 2**-1", "1023.5"),
        ("0.1 + 0.2", "0.3"),
        ("7 // 2 + 7 % 4", "6"),
        ("-(-3) \u00d7 2 \u00f7 4 \u2212 1", "0.5"),
        ("10 / 4", "2.5"),
        ("1/3", "0.333333333333"),
        ("2 ** 0.5", "1.41421356237"),
        ("1 / (3 - 3)", "Error: division by zero"),
        ("0 ** -1", "Error: division by zero"),
        ("9**9**9**9", "Error: a number that is too large"),
        ("1e400", "Error: a number that is too large"),
        ("10.5 ** 1000.5", "Error: a number that is too large"),
        ("(10 ** 1000) * (10 ** 1000)", "Error: a number that is too large"),
        ("(-1) ** 0.5", "Error: a root of a negative number"),
        ("3 +", "Error: no arithmetic expression"),
        ("(" * 400 + ")" * 400, "Error: no arithmetic expression"),
        ("1" + "+1" * 499, "Error: too deeply nested"),
        ("9" * 1_001, "Error: more than 1000 characters"),
        *(
            (odd, "Error: numbers, + - * / // % ** and brackets are known, and nothing else")
            for odd in ("__import__('os')", "True", "'a' * 9", "1 < 2", "[1][0]", "1j", "1 @ 2")
        ),
    ],
)
def test_calculator(expression: str, value: str) -> None:
    assert calculator(call(expression=expression)) == value


@pytest.mark.parametrize(
    ("answer", "told", "reward"),
    [
        ("72", "Current parsed answer='72' reward=1.0", 0.0),
        ("#### 72", "Current parsed answer='#### 72' reward=1.0", 0.0),
        ("71", "Current parsed answer='71' reward=0.0", -0.05),
        ("none", "Current parsed answer='none' reward=0.0", -0.05),
    ],
)
def test_an_answer_to_gsm8k(answer: str, told: str, reward: float) -> None:
    """verl's text and rewards; only a right answer improves on none."""
    assert calc_gsm8k_reward(call({"ground_truth": "72"}, answer=answer)) == (told, reward)


@pytest.mark.parametrize(
    ("answer", "told", "reward"),
    [
        (r"\frac{1}{2}", r"Current parsed answer='\\frac{1}{2}' reward=1.0", 0.0),
        ("0.5", "Current parsed answer='0.5' reward=1.0", 0.0),
        ("2", "Current parsed answer='2' reward=0.0", -0.05),
        (r"\boxed{2", r"Current parsed answer='\\boxed{2' reward=0.0", -0.05),
    ],
)
def test_an_answer_to_geometry3k(answer: str, told: str, reward: float) -> None:
    truth = {"ground_truth": r"\frac{1}{2}"}
    assert calc_geo3k_reward(call(truth, answer=answer)) == (told, reward)


def test_failures_are_told_in_one_line() -> None:
    for failure in FAILURES:
        text = failure_text(failure, "a\nb" * 100, "c\x1b[2J" * 1_000)
        assert text.isprintable()
        assert len(text) < 1_200


def test_a_model_is_told_of_tools_in_the_form_of_openai() -> None:
    spec = {"name": "calculator", "description": "Counts."}
    (told,) = tool_schemas(AgentSpec.model_validate({"tools": [spec]}))
    assert told == {
        "type": "function",
        "function": {"name": "calculator", "description": "Counts.", "parameters": TOOL.parameters},
    }
    assert TOOL.parameters["required"] == ["expression"]
    assert tool_schemas(None) == []
