"""Environments of rows: objects whose methods are tools, in real processes that are lost."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ruamel.yaml import YAML
from tool_calls import turn_of

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rpc.messages.agents import ToolAnswer, ToolCall, reached_environment
from ppojob_trainer.tools.describe import read_tools
from ppojob_trainer.tools.pool import ToolPool

pytestmark = pytest.mark.processes

SHOP = '''
import asyncio, os, time

class Shop:
    def __init__(self, prices, log=None):
        if not prices:
            raise ValueError("no prices")
        self.prices, self.basket, self.log = prices, [], log
        self._write("opened")

    def _write(self, line):
        if self.log:
            with open(self.log, "a") as file:
                file.write(line + "\\n")

    async def add(self, item: str):
        """Put an item into the basket.

        Args:
            item: Its name.
        """
        self.basket.append(item)
        await asyncio.sleep(0)
        return " ".join(self.basket), float(self.prices[item])

    def pay(self):
        """Pay for the basket."""
        return str(sum(self.prices[item] for item in self.basket))

    def where(self):
        """Tell the process."""
        return str(os.getpid())

    def wait(self):
        """Wait for too long."""
        self.basket.append("waited")
        time.sleep(60)

    def end(self):
        """End the process."""
        os._exit(3)

    def close(self):
        self._write("closed with " + " ".join(self.basket))

class Scored(Shop):
    async def score(self):
        if "nothing" in self.basket:
            os._exit(4)
        return -sum(self.prices[item] for item in self.basket)
'''
REPOSITORY = Path(__file__).parents[3]
METHODS = ("add", "pay", "where", "wait", "end")
PRICES = {"plum": 2, "pear": 3}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "shop.py"
    path.write_text(SHOP)
    return str(path)


def agent(file: str, *methods: str, kind: str = "Shop") -> AgentSpec:
    schema = {"type": "object", "properties": {"item": {"type": "string"}}}
    return AgentSpec.model_validate(
        {
            "tools": [
                {
                    "name": method,
                    "description": "d",
                    "parameters": schema if method == "add" else {"type": "object"},
                    "source": {"path": file, "function": f"{kind}.{method}"},
                    "timeLimitSeconds": 2,
                }
                for method in methods
            ]
        }
    )


class Row:
    """A row that remembers the calls to its environment, as an episode does."""

    def __init__(self, pool: ToolPool, row: int, log: Path, **created: Any) -> None:
        self.pool, self.row, self.log = pool, row, log
        given = {"prices": PRICES, "log": str(log)} | created
        self.created = msgspec.json.encode({"Shop": given, "Scored": given, "Other": {}})
        self.before: list[ToolCall] = []

    def call(self, *calls: tuple[str, str]) -> list[ToolAnswer]:
        """The answers to the calls of one turn."""
        made = [ToolCall(name, arguments, self.created) for name, arguments in calls]
        answers = self.pool.start(turn_of(self.row, made, before=self.before)).result().answers
        reached = map(reached_environment, answers)
        self.before += [one for one, is_known in zip(made, reached, strict=True) if is_known]
        return answers

    def texts(self, *calls: tuple[str, str]) -> list[str]:
        return [answer.text for answer in self.call(*calls)]

    def end(self) -> list[ToolAnswer]:
        ended = turn_of(self.row, [], before=self.before, created=self.created)
        return self.pool.start(ended).result().answers

    def told(self) -> list[str]:
        """What its environments have written."""
        return self.log.read_text().splitlines()


def add(item: str) -> tuple[str, str]:
    return "add", f'{{"item": "{item}"}}'


PAY = ("pay", "{}")


@pytest.fixture
def pool(file: str) -> Iterator[ToolPool]:
    with ToolPool(agent(file, *METHODS), processes=2) as pool:
        yield pool


def test_tools_share_the_environment_of_their_row(pool: ToolPool, tmp_path: Path) -> None:
    one, other = (Row(pool, row, tmp_path / str(row)) for row in range(2))
    assert [answer.reward for answer in one.call(add("plum"), add("pear"))] == [2.0, 3.0]
    assert other.texts(add("pear"), PAY) == ["pear", "3"]
    assert one.texts(PAY, add("plum")) == ["5", "plum pear plum"]
    assert one.told() == ["opened"]
    assert one.end() == []
    assert one.told() == ["opened", "closed with plum pear plum"]
    assert other.texts(PAY) == ["3"]
    assert Row(pool, 3, tmp_path / "never opened").end() == []


@pytest.mark.parametrize(("lost_by", "failure"), [("end", "died"), ("wait", "timeout")])
def test_a_lost_environment_repeats_its_calls(
    pool: ToolPool, tmp_path: Path, lost_by: str, failure: str
) -> None:
    """The call by which it was lost is left out: it would lose it again."""
    row = Row(pool, 0, tmp_path / "log")
    row.call(add("plum"), ("add", '{"item": "nothing of the shop"}'), ("add", "no JSON"))
    assert [answer.failure for answer in row.call((lost_by, "{}"))] == [failure]
    assert row.texts(add("pear")) == ["plum nothing of the shop pear"]
    assert row.told().count("opened") >= 2


def test_a_row_that_is_generated_again_gets_a_new_environment(
    pool: ToolPool, tmp_path: Path
) -> None:
    row = Row(pool, 0, tmp_path / "log")
    row.call(add("plum"), add("pear"))
    del row.before[:]
    assert row.texts(add("pear")) == ["pear"]
    assert row.told() == ["opened", "closed with plum pear", "opened"]


def test_an_environment_that_cannot_be_made_is_an_answer(pool: ToolPool, tmp_path: Path) -> None:
    row = Row(pool, 0, tmp_path / "log", prices={})
    assert row.texts(PAY, PAY) == ["Error: pay failed: ValueError: no prices"] * 2


def test_a_row_that_has_ended_gets_the_score_of_its_environment(file: str, tmp_path: Path) -> None:
    """Also if it is lost, was never called, or fails."""
    with ToolPool(agent(file, "add", "wait", kind="Scored"), processes=2) as pool:
        names = ("here", "lost", "fresh", "bad")
        rows = {name: Row(pool, row, tmp_path / name) for row, name in enumerate(names)}
        rows["here"].call(add("plum"), add("pear"))
        rows["lost"].call(add("pear"), ("wait", "{}"))
        rows["bad"].call(add("nothing"), add("plum"))
        found = {name: row.end() for name, row in rows.items()}
    scores = {name: [(one.reward, one.failure) for one in ended] for name, ended in found.items()}
    assert scores["here"] == [(-5, "")]
    assert scores["lost"] == [(-3, "")]
    assert scores["fresh"] == [(0, "")]
    assert scores["bad"] == [(0, "died")]
    assert rows["here"].told()[-1] == "closed with plum pear"


def test_what_is_called_at_the_end_is_no_tool(file: str) -> None:
    names = [tool.name for tool in read_tools(file, "Scored")]
    assert "add" in names
    assert not {"score", "close"} & set(names)
    with pytest.raises(ConfigError, match=r"Scored\.score: it is called when the row has ended"):
        ToolPool(agent(file, "score", kind="Scored"))


def test_more_rows_than_processes(pool: ToolPool, tmp_path: Path) -> None:
    rows = [Row(pool, number, tmp_path / str(number)) for number in range(8)]
    for count in (1, 2, 3):
        assert [row.texts(add("plum")) for row in rows] == [[" ".join(["plum"] * count)]] * 8
    assert [row.told() for row in rows] == [["opened"]] * 8
    processes = Counter(row.texts(("where", "{}"))[0] for row in rows)
    assert sorted(processes.values()) == [4, 4]


def test_its_methods_are_described(file: str) -> None:
    added, paid = read_tools(file, "Shop")[:2]
    assert (added.name, added.function, paid.function) == ("add", "Shop.add", "Shop.pay")
    assert msgspec.json.decode(added.parameters)["properties"].keys() == {"item"}


def test_the_page_of_agents_has_what_is_printed_of_its_class(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "agents.md").read_text().partition("### Environments")[2]
    code, printed = (
        part.partition("```")[0] for part in re.split("```(?:python|yaml)\n", page)[1:3]
    )
    (tmp_path / "shop.py").write_text(code)
    command = [sys.executable, "-m", "ppojob_cli", "tools", "shop.py:Shop"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    yaml = YAML(typ="safe")
    shown = yaml.load(printed.replace("/volume/", ""))
    assert yaml.load(done.stdout)["agent"] == shown
