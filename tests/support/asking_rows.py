"""Rows of programs and agent loops, whose turns are given in place of those of an engine."""

import json
from typing import Any

from tool_calls import turn_of

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_trainer.agents.episode import Episode
from ppojob_trainer.agents.turn_form import ChatForm
from ppojob_trainer.data.media.images import unpacked, with_parts
from ppojob_trainer.rollout.protocol import Finished, FinishReason, Request, SamplingParams
from ppojob_trainer.rpc.messages.agents import ToolAnswer
from ppojob_trainer.rpc.messages.rollout import Interaction
from ppojob_trainer.tools.pool import ToolPool

PROMPT = [{"role": "user", "content": "What is 1 + 2?"}]


class Row:
    """A row whose turns are given in place of those of an engine."""

    def __init__(
        self,
        form: ChatForm,
        spec: AgentSpec,
        name: str,
        tokens: int = 4000,
        prompt: list[dict[str, str]] = PROMPT,
        files: bytes = b"",
        **told: Any,
    ):
        self.form, self.asked, self.answers = form, list[Request](), list[ToolAnswer]()
        (ids,) = form.chat.encode_chats([with_parts(prompt, unpacked(files))])
        arguments = json.dumps({"name": name, **told}).encode()
        user = Interaction(name, arguments, json.dumps(prompt).encode())
        sampling = SamplingParams(1.0, 1.0, -1, 1)
        self.prompt = tuple(form.images.expanded(ids, files) if form.images else ids)
        row = ("r", self.prompt, sampling, lambda _: 0, spec, tokens, form, user)
        self.episode = Episode(*row, place="r", images=files)

    def play(
        self, pool: ToolPool, *turns: str | tuple[int, ...], end: FinishReason | None = None
    ) -> Episode:
        """Have the turns drawn, texts with an end, tokens without; all are wanted."""
        episode, wanted, left = self.episode, self.episode.opening(), list(turns)
        while wanted.calls:
            seen = episode.seen_by(wanted.calls)
            said = pool.start(turn_of(3, wanted.calls, images=seen)).result().answers
            self.answers += episode.add_answers(wanted.calls, said)
            if episode.state.is_over:
                break
            self.asked.append(episode.request())
            turn = left.pop(0)
            ended = end or ("stop" if isinstance(turn, str) else "length")
            drawn = turn if isinstance(turn, tuple) else self.form.chat.encode(turn + "<|im_end|>")
            logprobs = (-1.0,) * len(drawn)
            wanted = episode.add_response(
                Finished(self.asked[-1].request_id, tuple(drawn), logprobs, ended, 0)
            )
        assert not left
        return episode

    def shown(self, number: int = -1) -> str:
        return self.form.chat.decode(self.asked[number].prompt, skip_special_tokens=False)
