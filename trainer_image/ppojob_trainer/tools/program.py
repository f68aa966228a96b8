"""Custom agent program: a user's function that calls the model by OpenAI's API.

Any free process runs a turn, so the program is restarted for each turn, in a forked process, and
its requests are answered with the model's earlier turns, in order. The first request without an
answer ends the run, and is the input of the model's next turn. If a program sends another request
than before, the row would differ from the generated one, which is an error, as in a loop
(`ppojob_trainer.tools.loop`).
"""

import contextlib
import inspect
import os
import select
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.children import guardian
from ppojob_trainer.children.frames import read_frame, write_frame
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.data.media.images import HASH, data_url, hash_of, images_of
from ppojob_trainer.json_value import Json
from ppojob_trainer.metrics.page_server import PageHandler
from ppojob_trainer.rewards.results import BadResult, read_number
from ppojob_trainer.rpc.messages.agents import SeenImage
from ppojob_trainer.tools.loop import first_difference, texts_around, without_name
from ppojob_trainer.tools.requests import (
    CHAT,
    ChatRequest,
    completion,
    decode_body,
    read_message,
    read_request,
)
from ppojob_trainer.tools.responses import RESPONSES
from ppojob_trainer.tools.wire import Conversation, Message, ModelRequest

_BASE: Final = "/v1"
_FORMS: Final = {f"{_BASE}/chat/completions": CHAT, f"{_BASE}/responses": RESPONSES}
_MODELS: Final = f"{_BASE}/models"
_MODEL: Final[Message] = {"id": "policy", "object": "model", "created": 0, "owned_by": "ppojob"}
_ADDRESS: Final = "127.0.0.1"
_TOGETHER_SECONDS: Final = 0.05
"""Time limit for a second concurrent request, if the program never waits."""


class ProgramRaised(Exception):  # noqa: N818  the name in messages
    """A program raised; its text and place, as of `user_code.raised`."""


class _Ended(msgspec.Struct):
    """The end of a run: a score, an invalid value, or an exception."""

    score: float | None = None
    bad: list[str] = []
    raised: list[str] = []


@dataclass(frozen=True, slots=True)
class Program:
    """A user simulator that is a program."""

    # Takes the messages of the prompt, and the row's arguments by name; returns None or a score, or
    # an awaitable of it.
    function: Callable[..., object]
    listener: socket.socket

    def __call__(
        self,
        conversation: Conversation,
        arguments: dict[str, Json],
        row: str,
        images: Sequence[SeenImage] | None = None,
    ) -> ModelRequest | tuple[bool, str, float | None]:
        """Return its next request after its answered ones, or its end.

        `images` are those of the prompt; None if the model cannot be shown others behind it.
        Raises ProgramRaised, or BadResult if it sends another request than before, or two at once.
        """
        while select.select([self.listener], [], [], 0)[0]:  # connections of an earlier run
            self.listener.accept()[0].close()
        files = {hash_of(one.file): one.file for one in images or ()}
        prompt = [_sent(one, files) for one in conversation.messages[: conversation.prompt]]

        def run_once(ended: int) -> None:
            outcome = _outcome(lambda: self.function(prompt, **without_name(arguments)))
            write_frame(ended, msgspec.json.encode(outcome))

        # A process, so that it can be killed while it waits for an answer, with its children, which
        # could send requests during another row.
        with guardian.guarded(run_once) as (process, ended):
            run = _Run(conversation, self.listener, process, images is not None, row)
            while True:
                ready, _, _ = select.select([self.listener.fileno(), ended], [], [])
                if self.listener.fileno() not in ready:
                    return run.end(read_frame(ended))
                run.answer()
                if run.request is not None:
                    return run.request


def open_listener() -> socket.socket:
    """Listen for programs, and set the address in the environment of this process.

    Call it before users' files are imported: they may create clients.
    """
    listener = socket.create_server((_ADDRESS, 0))
    address = f"http://{_ADDRESS}:{listener.getsockname()[1]}{_BASE}"
    os.environ |= {"OPENAI_BASE_URL": address, "OPENAI_API_BASE": address, "OPENAI_API_KEY": "none"}
    for name in ("no_proxy", "NO_PROXY"):  # else the pod's proxy would be used
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), _ADDRESS)))
    return listener


class _Run:
    """One run of a program, in its process, with its answered requests."""

    def __init__(
        self,
        conversation: Conversation,
        listener: socket.socket,
        process: int,
        takes_images: bool,
        row: str,
    ) -> None:
        self._row = row
        self._takes_images = takes_images
        self._conversation = conversation
        self._process = process
        self._listener = listener
        self._answered = 0
        self._connection: socket.socket
        self.request: ModelRequest | None = None

    def answer(self) -> None:
        """Answer one request, or store it as the next one."""
        self._connection, address = self._listener.accept()
        with contextlib.suppress(OSError):
            _Handler(self._connection, address, self)
        if self.request is None:  # else it stays open until the program ends
            self._connection.close()

    def reply(self, path: str, body: bytes) -> tuple[int, Message | bytes] | None:
        """Return status and body for a request; None if the model has not answered it yet.

        Bytes are a stream of events.
        """
        if (form := _FORMS.get(path)) is None:
            served = ", ".join((*_FORMS, _MODELS))
            return self._refused(404, f"got {shown(path)}: not served here; {served}")
        try:
            asked = form.read(decode_body(body))
            request = read_request(
                asked, self._conversation.sampling, takes_images=self._takes_images
            )
        except BadResult as bad:
            return self._refused(400, f"got {bad.got}: {bad.why}")
        number, conversation = self._answered, self._conversation
        if number == len(conversation.user_turns):
            _wait_until_idle(self._process)
            self._refuse_another()
            self.request = self._next(request)
            return None
        self._refuse_another()
        before = conversation.user_turns[number]
        end = before.start + before.messages
        messages = _normalised(conversation.contexts(end)[-1])
        if request.messages != messages:
            got, earlier = first_difference(request.messages, messages)
            raise changed(got, f"it was {earlier}")
        for name in ("tools", "max_tokens", "stop", "json_schema"):
            if (now := getattr(request, name)) != (earlier := getattr(before, name)):
                got, earlier = texts_around(now, earlier)
                raise changed(f"{name} {got}", f"it was {earlier}")
        self._answered += 1
        message, turn = conversation.messages[end], conversation.model_turns[number]
        answer = completion(number, request.model, message, turn)
        if request.stream:
            return 200, form.stream(answer, request.with_usage)
        return 200, form.write(answer)

    def end(self, frame: bytes | None) -> tuple[bool, str, float | None]:
        """Return the end of the run, from the report of its process.

        Raises ProgramRaised, or BadResult if it ended too early, or returned an invalid value.
        """
        if frame is None:  # its process died: so must this one, as for a tool
            os._exit(1)
        ended = msgspec.json.decode(frame, type=_Ended)
        if ended.raised:
            raise ProgramRaised(*ended.raised)
        if ended.bad:
            raise BadResult("BadAnswer", *ended.bad)
        if self._answered < len(self._conversation.user_turns):
            raise changed("its end", "it was another request")
        if not self._answered:
            raise BadResult("BadAnswer", "its end", "a program calls the model at least once")
        return True, "", ended.score

    def _next(self, request: ChatRequest) -> ModelRequest:
        """Return the next request, which continues the context or begins a new one."""
        messages, tools, limit, stop, schema, *_ = request
        before = _normalised(self._conversation.contexts()[-1])
        later = messages[len(before) :]
        continues = messages[: len(before)] == before and tools == self._conversation.tools
        if self._conversation.user_turns:
            continues &= bool(later) and all(one["role"] in ("tool", "user") for one in later)
        else:
            continues &= not later  # the prompt of the data is tokenised already
        asked = later if continues else messages
        files = images_of(asked, request.files)
        return ModelRequest(asked, not continues, tools, limit, stop, schema, files)

    def _refused(self, status: int, message: str) -> tuple[int, Message]:
        """Return an error; it is logged once, since most clients do not show its body."""
        if self._answered == len(self._conversation.user_turns):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # users may close it
                sys.stdout.write(f"{self._row}: refused with status {status}: {message}\n")
                sys.stdout.flush()  # the program may be killed while it waits
        return status, _error(message)

    def _refuse_another(self) -> None:
        if select.select([self._listener], [], [], 0)[0]:
            why = "their order would be random; a program sends one after the other"
            raise BadResult("BadAnswer", "two requests at once", why)


class _Handler(PageHandler):
    """Answers the one request of a connection, without a server."""

    def __init__(self, connection: socket.socket, address: object, run: _Run) -> None:
        self._run = run
        super().__init__(connection, address, None)  # type: ignore[arg-type]

    def do_POST(self) -> None:
        """Answer the request, if there is an answer."""
        length = self.headers.get("Content-Length") or "0"
        if self.headers.get("Transfer-Encoding") or not length.isdecimal():
            self._send(411, _error("got a body without Content-Length: send it whole"))
            return
        body = self.rfile.read(int(length))
        if (found := self._run.reply(self._path, body)) is not None:
            self._send(*found)

    def do_GET(self) -> None:
        """Answer which models there are; else an error, not a status on which clients retry."""
        if self._path == _MODELS:
            self._send(200, {"object": "list", "data": [_MODEL]})
        elif self._path.startswith(f"{_MODELS}/"):
            self._send(200, _MODEL)
        else:
            self.do_POST()

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0].rstrip("/")

    def _send(self, status: int, answer: Message | bytes) -> None:
        if isinstance(answer, bytes):
            self.answer(answer, "text/event-stream", status)
        else:
            self.answer(msgspec.json.encode(answer), "application/json", status)


def _wait_until_idle(process: int) -> None:
    """Wait until all threads of a program sleep, so that its concurrent requests have arrived."""
    until = time.monotonic() + _TOGETHER_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError):  # a thread that has just ended
            tasks = Path(f"/proc/{process}/task").iterdir()
            states = [(task / "stat").read_text(encoding="utf-8") for task in tasks]
            if all(one.rpartition(")")[2].split()[0] == "S" for one in states):
                return
        time.sleep(0.001)


def _outcome(call: Callable[[], object]) -> _Ended:
    try:
        value = call()
        if inspect.isawaitable(value):
            import asyncio  # late: it imports slowly, and few programs are coroutines

            value = asyncio.run(awaited(value))
        return _Ended(None if value is None else read_number(value, "a score is a number"))
    except BadResult as bad:
        return _Ended(bad=[bad.got, bad.why])
    except BaseException as error:  # also SystemExit
        return _Ended(raised=list(raised(error, __file__)))


async def awaited(value: Awaitable[object]) -> object:
    """Await any awaitable, for runners that take only coroutines."""
    return await value


def _sent(message: Message, files: Mapping[str, bytes]) -> Message:
    """Return a message of the prompt as a program sends it."""

    def sent(part: Message) -> Message:
        if HASH not in part:
            return part
        return {"type": "image_url", "image_url": {"url": data_url(files[part[HASH]])}}

    if not isinstance(content := message["content"], list):
        return message
    return {**message, "content": list(map(sent, content))}


def _normalised(messages: list[Message]) -> list[Message]:
    """Normalise messages as those of requests; unchanged if no request could have them."""
    try:
        return [read_message(one) for one in messages]
    except BadResult:  # a prompt with images that no request can have
        return messages


def changed(got: str, before: str) -> BadResult:
    """Return the error of a request that differs from the one of an earlier run."""
    return BadResult("BadAnswer", got, f"before, {before}; the same requests each time")


def _error(message: str) -> Message:
    kind = "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
