"""Rows that call the tool `bash`."""

from typing import Any

import msgspec
from tool_calls import turn_of

from ppojob_trainer.rpc.messages.agents import ToolAnswer, ToolCall, reached_environment
from ppojob_trainer.tools.pool import ToolPool


class Row:
    def __init__(self, pool: ToolPool, row: int, **created: Any) -> None:
        self.pool, self.row = pool, row
        self.created = msgspec.json.encode({"bash": created})
        self.before: list[ToolCall] = []

    def run(self, command: str) -> str:
        return self.answer(command).text

    def answer(self, command: str) -> ToolAnswer:
        call = ToolCall("bash", msgspec.json.encode({"command": command}).decode(), self.created)
        (answer,) = self.pool.start(turn_of(self.row, [call], before=self.before)).result().answers
        if reached_environment(answer):
            self.before.append(call)
        return answer

    def end(self) -> ToolAnswer:
        ended = turn_of(self.row, [], before=self.before, created=self.created)
        (answer,) = self.pool.start(ended).result().answers
        return answer
