from pathlib import Path
from typing import get_args

import pytest
import tiny_jobs
import tiny_models
from seeing_models import save_seeing_model

from ppojob_api.v1alpha1.agent import ToolFormat
from ppojob_api.v1alpha1.job import PPOJob, PPOJobSpec
from ppojob_cli.agent_checks import check_agent, text_prompt_warning
from ppojob_trainer.agents.formats.table import FORMATS
from ppojob_trainer.data.chat import ChatTokenizer

ONLY_USERS = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}" + tiny_models.TEMPLATE.removeprefix("{% for m in messages %}")
)


def job(folder: Path, format_: str = "hermes", tool: str = "calculator") -> PPOJobSpec:
    agent = {"tools": [{"name": tool}], "format": format_}
    return PPOJob.model_validate(tiny_jobs.make_manifest(folder.parent, agent=agent)).spec


def told(
    folder: Path,
    format_: str = "hermes",
    template: str = tiny_models.TEMPLATE,
    tool: str = "calculator",
):
    tiny_models.save_tokenizer(folder, template=template)
    spec = job(folder, format_, tool)
    with ChatTokenizer(folder, folder) as chat:
        return check_agent(spec, chat)


def test_every_format_of_the_resource_is_in_the_table():
    assert get_args(ToolFormat) == tuple(FORMATS)


@pytest.mark.processes
def test_a_template_that_shows_no_tools_is_told(tmp_path: Path):
    errors, warnings = told(tmp_path)
    assert not errors
    assert len(warnings) == 1
    assert "a chat template that does not show tools" in warnings[0]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("format_", "template", "said"),
    [
        ("glm", tiny_models.TEMPLATE, "its turns end with <|observation|>"),
        ("hermes", ONLY_USERS, "no tools here"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, format_: str, template: str, said: str):
    errors, _ = told(tmp_path, format_, template)
    assert len(errors) == 1
    assert said in errors[0]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("template", "is_seeing", "said"),
    [
        (tiny_models.SEEING_TEMPLATE, True, None),
        (tiny_models.SEEING_TEMPLATE, False, "the model takes no images"),
        (tiny_models.TEMPLATE, True, "the chat template omits images of tools"),
    ],
)
def test_a_tool_that_shows_needs_a_model_and_a_template_that_see(
    tmp_path: Path, template: str, is_seeing: bool, said: str | None
):
    folder = tmp_path / "model"
    save_seeing_model(folder)
    if not is_seeing:
        (folder / "preprocessor_config.json").unlink()
    errors, _ = told(folder, template=template, tool="image_zoom_in_tool")
    assert [said in one for one in errors] == ([] if said is None else [True])


def test_prompts_that_are_text_show_no_tools(tmp_path: Path):
    (warning,) = text_prompt_warning(job(tmp_path), "a.jsonl:1")
    assert str(warning) == (
        "a.jsonl:1:prompt: got a prompt that is text: no chat template describes "
        "spec.agent.tools to the model; chat messages, spec.data.textPrompts: user_message, or "
        "fine if it describes them"
    )
    assert not list(text_prompt_warning(job(tmp_path), ""))
    assert not list(text_prompt_warning(job(tmp_path, "search_r1"), "a.jsonl:1"))


def test_a_format_that_says_itself_how_answers_stand_needs_no_template(tmp_path: Path):
    assert told(tmp_path, "search_r1", ONLY_USERS) == ([], [])
