import time
from pathlib import Path

import pytest
from golden_lines import read_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_api import manifest
from ppojob_api.well_known import MANIFEST_BYTES_LIMIT

EXPECTED = read_lines(Path(__file__).parent / "bad_files.txt")

CASES = {
    "empty": b"",
    "comments_only": b"# a\n",
    "duplicate_key": b"a: 1\nb: 2\na: 3\n",
    "duplicate_key_inside": b"s:\n  - {x: 1, x: 2}\n",
    "tab": b"a:\n\tb: 1\n",
    "no": b"shuffle: no\n",
    "on_as_key": b"on: 1\n",
    "octal": b"a: 010\n",
    "underscore": b"a: 1_000\n",
    "sexagesimal": b"a: 1:30\n",
    "hexadecimal": b"a: 0x1F\n",
    "nul": b"a: 1\x00\n",
    "bidirectional": "a: x\nb: \u202egnp\n".encode(),
    "zero_width": "na\u200bme: x\n".encode(),
    "not_utf8": b"a: 1\nb: \xff\n",
    "utf16": "a: 1".encode("utf-16"),
    "several_documents": b"a: 1\n---\nb: 2\n---\nc: 3\n",
    "python_tag": b"a: !!python/object/apply:os.system [ls]\n",
    "own_tag": b"a: !secret x\n",
    "undefined_alias": b"a: *b\n",
    "alias_of_itself": b"a: &a [*a]\n",
    "list_as_key": b"? [a]\n: 1\n",
    "too_deep": b"[" * 100 + b"]" * 100,
    "far_too_deep": b"[" * 100_000,
    "unclosed": b"a: [1, 2\n",
    "two_colons": b"a: b: c\n",
    "too_large": b"#" * (MANIFEST_BYTES_LIMIT + 1),
    "several_mistakes": b"a: no\nb: 010\na: 1\n",
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_file(name: str) -> None:
    problems = manifest.read_bytes(CASES[name], "f").problems
    assert [f"{p.reason_code} {p}" for p in problems] == EXPECTED[name]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1.0e-6", 1e-6),
        ("-3", -3),
        ("0", 0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ('"no"', "no"),
        ("'010'", "010"),
        ("2026-01-01", "2026-01-01"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
        ('{"a":\t1}', {"a": 1}),
        ("&x [1]", [1]),
    ],
)
def test_plain_values(text: str, value: object) -> None:
    # A byte order mark is no mistake.
    read = manifest.read_bytes(f"\ufeffv: {text}\n".encode(), "f")
    assert read.problems == ()
    assert read.value == {"v": value}


def test_what_is_changed_behind_one_alias_stays_behind_the_others() -> None:
    value = manifest.read_bytes(b"a: &x {p: [1]}\nb: *x\nc: *x\n", "f").value
    assert isinstance(value, dict)
    value["b"]["p"].append(2)  # type: ignore[call-overload,index,union-attr]
    assert value == {"a": {"p": [1]}, "b": {"p": [1, 2]}, "c": {"p": [1]}}


def test_aliases_do_not_hide_how_deep_a_manifest_is() -> None:
    inner, outer = "[" * 20 + "]" * 20, "[" * 20 + "*a" + "]" * 20
    (problem,) = manifest.read_bytes(f"a: &a {inner}\nb: {outer}\n".encode(), "f").problems
    assert (problem.reason_code, problem.where) == ("UnsupportedYaml", "f:1:19")


def test_a_bomb_of_aliases_ends_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    start = time.process_time()
    (problem,) = manifest.read_bytes("\n".join(lines).encode(), "f").problems
    assert problem.got == "more than 20000 values"
    assert time.process_time() - start < 20


def test_many_forbidden_characters_end_quickly() -> None:
    problems = manifest.read_bytes(b"\x01" * 200_000, "f").problems
    assert len(problems) == manifest.FORBIDDEN_CHARACTERS_SHOWN


def test_doubtful_values_are_not_judged_as_fields_too() -> None:
    read = manifest.read_bytes(b"spec:\n  data:\n    train: [{path: no}]\n    shuffle: off\n", "f")
    assert read.doubtful == (("spec", "data", "train", 0, "path"), ("spec", "data", "shuffle"))


@pytest.mark.parametrize("path", ["/no/such/file", "/", "a\x00b"])
def test_unreadable(path: str) -> None:
    (problem,) = manifest.read_file(path).problems
    assert problem.reason_code == "Unreadable"
    assert str(problem).isprintable()


def test_what_a_file_may_be_instead_of_a_job_says_where_the_job_is(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").touch()
    (run,) = manifest.read_file(str(tmp_path)).problems
    assert (run.reason_code, f"{tmp_path}/job.yaml" in run.allowed) == ("Unreadable", True)
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo \\\n  a=b\n")
    (problem,) = manifest.read_file(str(script)).problems
    assert (problem.where, problem.reason_code) == (str(script), "BadForm")
    assert f"ppojob from-verl {script}" in problem.allowed


def test_endless_file_is_read_to_the_limit_only() -> None:
    (problem,) = manifest.read_file("/dev/zero").problems
    assert problem.reason_code == "TooLarge"


YAML_LIKE = st.text(alphabet="ab:-[]{}&*!|>'\"%@`#?, \n\t01.eE_~", max_size=60)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200) | YAML_LIKE.map(str.encode))
def test_no_bytes_raise(data: bytes) -> None:
    for problem in manifest.read_bytes(data, "f").problems:
        assert str(problem).isprintable()


WORDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["no", "on", "010", "1_0", "1:30", "1e5", ".inf", "~", "null", "true", "0x1", "-", "="]
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None)
@given(VALUES)
def test_what_is_written_is_read_back(value: object) -> None:
    text = manifest.to_yaml({"value": value})
    read = manifest.read_bytes(text.encode(), "f")
    assert read.problems == ()
    assert read.value == {"value": value}
