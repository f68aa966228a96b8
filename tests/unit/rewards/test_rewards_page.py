import pytest

from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.built_in import load_scorer
from ppojob_trainer.rewards.page import page
from ppojob_trainer.rewards.records import Verdict, verdict
from ppojob_trainer.rewards.routing import SCORERS, Scorer, route
from ppojob_trainer.rewards.row_checks import RowChecks
from ppojob_trainer.sandbox.executor import Sandbox


def test_what_is_absent_is_said() -> None:
    assert "None" not in page()
    assert ": \n" not in page()


def echo(response: str, ground_truth: Json, *, shout: bool = False, score: float = 1.0) -> Verdict:
    said = response.upper() if shout else response
    return verdict(said, is_right=said == ground_truth, score=score, format_score=0.0)


def truth_problem(ground_truth: Json) -> str | None:
    return None if isinstance(ground_truth, str) else "what is to be said"


def test_a_scorer_with_an_option_is_a_file_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Scorer(echo, truth_problem, "all of it", ("my/echo",), prefixes=("say",))
    monkeypatch.setitem(SCORERS, "echo", row)
    assert (route("my/echo"), route("say-it"), route("said")) == ("echo", "echo", None)
    of_row = {"data_source": "my/echo", "ground_truth": "A", "extra_info": {}}
    scorer = load_scorer("echo", {"shout": True}, Sandbox)
    assert scorer(solution_str="a", shout=True, **of_row) == {"score": 1.0, "acc": 1.0, "pred": "A"}
    with pytest.raises(ConfigError, match="with shout "):
        load_scorer("echo", {"shout": "loud"}, Sandbox)
    for checks in (RowChecks(), RowChecks(("echo",))):
        assert checks.data_source_problem("my/echo") is None
        assert checks.ground_truth_problem("my/echo", 5) == "what is to be said"
    assert "| `echo` | all of it | what is to be said |" in page()
    assert (
        "- Data sources: `my/echo`, `say*`\n- Arguments: `shout` (false), `score` (1.0)" in page()
    )
