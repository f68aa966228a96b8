"""Teacher prompts: a row's prompt with a good response of its group, for a teacher."""

import re
from collections.abc import Iterator, Sequence

import msgspec
import torch

from ppojob_api.v1alpha1.estimators import RepromptSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.data.chat import ChatTokenizer, TemplateInputs
from ppojob_trainer.data.prompt_store import Prompt
from ppojob_trainer.data.template_renderer import accepted
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.rows import Reprompt, Reprompted

_PLACE = re.compile(r"\{(\w+)\}")


def reprompt(
    spec: PPOJobSpec, chat: ChatTokenizer, request: Reprompt, rows: Experience
) -> Reprompted:
    """Set the rows' teacher prompts (SDPO: arXiv:2601.20802).

    They contain the first other response of the group that succeeded, and the feedback on the row;
    if that is too long, the next response. A row without either, or without a score, is not trained
    on; its teacher reads the policy's prompt.
    """
    settings = spec.algorithm.reprompt
    assert settings is not None, "of algorithm.reprompt"
    chat.set_time(request.began)
    prompts: list[Prompt] = [msgspec.json.decode(prompt) for prompt in request.prompts]
    responses = torch.split(rows.response_tokens, rows.lengths.tolist())
    groups, good = rows.row_groups.tolist(), dict[int, dict[int, str]]()
    for row in request.succeeded:
        good.setdefault(groups[row], {})[row] = chat.decode(responses[row].tolist())
    candidates = {}
    for row, group in enumerate(groups):
        others = [text for other, text in good.get(group, {}).items() if other != row]
        if row not in request.dropped:
            candidates[row] = _prompts(settings, prompts[group], others, request.feedback[row])
    found = _first_that_fits(spec, chat, candidates)
    is_taught = torch.tensor([row in found for row in range(len(groups))], dtype=torch.bool)
    rows.teacher_prompts = [
        torch.tensor(found[row], dtype=torch.int64) if row in found else rows.prompts[group]
        for row, group in enumerate(groups)
    ]
    rows.update_mask = rows.mask & is_taught.repeat_interleave(rows.lengths)
    taught = sorted(found)
    first = chat.decode(found[taught[0]], skip_special_tokens=False) if taught else ""
    return Reprompted([len(prompt) for prompt in rows.teacher_prompts], taught, first)


def _first_that_fits(
    spec: PPOJobSpec, chat: ChatTokenizer, candidates: dict[int, Iterator[Prompt]]
) -> dict[int, list[int]]:
    """Return the tokens of each row's first candidate prompt within the limit."""
    limit = spec.data.max_teacher_prompt_tokens
    assert limit is not None, "set in a resolved configuration"
    found: dict[int, list[int]] = {}
    while candidates:
        tried = {
            row: prompt for row, options in candidates.items() if (prompt := next(options, None))
        }
        inputs = [TemplateInputs(spec.data.apply_chat_template_kwargs, ())] * len(tried)
        encoded = accepted(chat.encode_prompts([*tried.values()], inputs))
        for row, tokens in zip(tried, encoded, strict=True):
            if len(tokens) <= limit:
                found[row] = tokens
        candidates = {row: candidates[row] for row in tried if row not in found}
    return found


def _prompts(
    settings: RepromptSpec, prompt: Prompt, solutions: Sequence[str], feedback: str
) -> Iterator[Prompt]:
    """Yield the candidate teacher prompts of a row, the best first."""
    hint = _filled(settings.feedback_template, feedback=feedback) if feedback else ""
    shown = [_filled(settings.solution_template, response=text) for text in solutions]
    for solution in [*shown, ""] if hint else shown:
        question = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
        text = _filled(settings.template, prompt=question, solution=solution, feedback=hint)
        yield text if isinstance(prompt, str) else [*prompt[:-1], {**prompt[-1], "content": text}]


def _filled(template: str, **texts: str) -> str:
    """Fill texts into a template at their names; other braces stay."""
    return _PLACE.sub(lambda place: texts.get(place[1], place[0]), template)
