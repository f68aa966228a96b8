"""Checks of conversations: the chat template's turns, and the format of tool calls."""

from collections.abc import Iterator

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.agents.formats.table import FORMATS
from ppojob_trainer.agents.named import agents_of
from ppojob_trainer.data.chat import ChatTokenizer
from ppojob_trainer.data.media.image_forms import all_take_images
from ppojob_trainer.data.turn_check import check_template, shows_images, shows_tools
from ppojob_trainer.data.turns import TurnTemplate
from ppojob_trainer.tools.built_in import TOOLS
from ppojob_trainer.tools.schemas import tool_schemas


def check_agent(spec: PPOJobSpec, chat: ChatTokenizer) -> tuple[list[str], list[str]]:
    """Check the conversations of a job; return errors and warnings, a line each."""
    if spec.agent is None:
        return [], []
    named = agents_of(spec.agent)
    places = {"spec.agent": spec.agent}
    for number, own in enumerate(spec.agent.agents):
        places[f"spec.agent.agents[{number}]"] = named[own.name]
    template = TurnTemplate(chat, spec.data.apply_chat_template_kwargs)
    sees = all_take_images(spec)
    errors, warnings = dict[str, None](), dict[str, None]()  # agents may share problems
    for place, agent in places.items():
        wrong, worth_knowing = _check(f"{place}.format", agent, template, sees)
        errors |= dict.fromkeys(map(str, wrong))
        warnings |= dict.fromkeys(map(str, worth_knowing))
    return list(errors), list(warnings)


def _check(
    place: str, agent: AgentSpec, template: TurnTemplate, sees: bool
) -> tuple[list[Problem | str], list[Problem]]:
    """Check the conversations of one agent; `place` is the field with its format."""
    form, chat = FORMATS[agent.format], template.chat
    errors: list[Problem | str] = [*_unknown_tokens(place, agent.format, chat)]
    has_users = len(agent.interactions) > len(agent.agent_loops)  # which write their own tokens
    if agent.agent_loops and not has_users and not agent.tools:
        return errors, []
    if form.answer is not None and not has_users:  # its own text separates the turns
        return errors, []
    if not chat.has_template:
        why = "the chat template formats answers of tools, and the model has none"
        allowed, code = "spec.model.chatTemplate, or format search_r1", ReasonCode.REQUIRED
        return [*errors, Problem(place, shown(agent.format), why, allowed, code)], []
    schemas = tool_schemas(agent)
    refusal = check_template(template, schemas, parallel=agent.max_parallel_calls, users=has_users)
    if refusal:
        errors.append(refusal)
    errors += _unseen(agent, template, sees)
    if not schemas or shows_tools(template, schemas):
        return errors, []
    got, code = "a chat template that does not show tools", ReasonCode.NO_EFFECT
    why = "the model gets no description of spec.agent.tools"
    allowed = "fine if the prompts describe them"
    return errors, [Problem(chat.template[1], got, why, allowed, code)]


def _unseen(agent: AgentSpec, template: TurnTemplate, sees: bool) -> Iterator[Problem]:
    """Yield a problem if a model would not see the images of built-in tools."""
    shows = {tool.name for tool in agent.tools if tool.source is None and TOOLS[tool.name].shows}
    if shows and not (sees and shows_images(template, tool_schemas(agent))):
        why = "the chat template omits images of tools"
        if not sees:
            why = "the model takes no images, or a critic or reference not the same way"
        template_for = "a template (spec.model.chatTemplate) for messages of tools with parts"
        allowed = f"models with the same images, and {template_for}"
        yield Problem(
            "spec.agent.tools", ", ".join(sorted(shows)), why, allowed, ReasonCode.CONFLICT
        )


def text_prompt_warning(spec: PPOJobSpec, place: str) -> Iterator[Problem]:
    """Warn that text prompts describe no tools; `place` is that of one, or empty."""
    agent = spec.agent
    if place and agent is not None and agent.tools and FORMATS[agent.format].answer is None:
        where, got = f"{place}:{spec.data.prompt_key}", "a prompt that is text"
        why = "no chat template describes spec.agent.tools to the model"
        allowed = "chat messages, spec.data.textPrompts: user_message, or fine if it describes them"
        yield Problem(where, got, why, allowed, ReasonCode.NO_EFFECT)


def _unknown_tokens(place: str, name: str, chat: ChatTokenizer) -> Iterator[Problem]:
    known = {token.content for token in chat.added_tokens.values()}
    for token in FORMATS[name].stop_tokens:
        if token not in known:
            why = f"its turns end with {token}, which the tokenizer does not have"
            allowed = "the format that the model was trained with"
            yield Problem(place, shown(name), why, allowed, ReasonCode.CONFLICT)
