from typing import Any

import pytest

from ppojob_api import shape
from ppojob_api.rules import RULES, cel
from ppojob_api.rules.rule import rules

SELF = {"a": 7, "b": {"c": 2.5, "in": "none"}, "text": "x-y", "items": [1, 2, 2], "map": {"k": 1}}
VALUES: dict[str, Any] = {
    "1 + 2 * 3 - 4": 3,
    "(1 + 2) * 3": 9,
    "self.a / 2 * 2 + self.a % 2": 7,
    "self.a - 2 - 1": 4,
    "-1 < self.b.c": True,
    "self.b.c == 2.5 && self.a != 7 || true": True,
    "false || true && false": False,
    "!has(self.b.d) && has(self.b.c)": True,
    "has(self.b.d) && self.b.d > 1": False,
    "self.a > 5 ? 'big' : self.b.d": "big",
    "(self.a > 9 ? 1 : self.a > 5 ? 2 : 3) + 1": 3,
    "self.b.__in__ in ['none', 'loss']": True,
    "self.text.startsWith('x') && self.text.contains('-')": True,
    "self.text.matches(r'^x-[a-z]$')": True,
    "self.text.size() == 3 && self.items.size() == 3": True,
    "self.items.all(one, one <= 2)": True,
    "self.items.all(one, self.items.exists_one(other, other == one))": False,
    "self.map.all(key, key == 'k')": True,
}


@pytest.mark.parametrize("text", VALUES)
def test_what_an_expression_is(text: str) -> None:
    assert cel.read(text).value({"self": SELF}) == VALUES[text]


def test_a_last_newline_is_not_the_end_of_a_text() -> None:
    assert not cel.read("self.matches('^x$')").value({"self": "x\n"})


def test_the_items_that_do_not_fit() -> None:
    expression = cel.read("self.items.all(one, one != 2)")
    assert expression.bad_items is not None
    assert expression.bad_items({"self": SELF}) == [(1, 2), (2, 2)]
    assert cel.read("self.items.all(one, one != 2) && self.a == 7").bad_items is None


def test_an_absent_field_is_an_error_as_in_an_api_server() -> None:
    for text in ("self.d == 1", "has(self.d.e)"):
        with pytest.raises(KeyError):
            cel.read(text).value({"self": SELF})


@pytest.mark.parametrize(
    "text", ["", "1 +", "(1", "1 2", "self.a ~ 1", "true ? 1", "self.all(x, 1"]
)
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be parsed"):
        cel.read(text)


def test_what_a_rule_leaves_out() -> None:
    unset, needed, compared = rules(
        """
        spec.rollout | topK | NoEffect
            why; what

        spec | agent | Required
            why; what

        spec | critic.warmupSteps | OutOfRange
            why; what
        must: self.critic.warmupSteps < self.steps.total
        """
    )
    assert unset.expression == "self.topK == -1"
    assert needed.expression == "has(self.agent)"
    assert compared.when == "has(self.critic) && has(self.steps.total)"


def test_rules_speak_of_fields_that_there_are() -> None:
    for rule in RULES:
        section = rule.section.replace("[]", ".0").strip(".")
        above = tuple(int(key) if key == "0" else key for key in section.split(".") if key)
        named = {rule.field} - {""}
        for text in (rule.holds, rule.when):
            named |= cel.read(text.replace("oldSelf", "self")).paths - {""} if text else set()
        for path in named:
            assert shape.at((*above, *path.split("."))) is not None, f"{rule.section} {path}"


def test_a_rule_says_what_is_wrong_and_what_is_allowed() -> None:
    for rule in RULES:
        why, _, allowed = rule.message.partition("; ")
        assert why
        assert allowed
        assert "${" not in rule.message
