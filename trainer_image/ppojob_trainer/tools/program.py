"""Custom agent program: a user's function that calls the model by OpenAI's chat completions.

Any free process runs a turn. So the program runs anew for each turn, in a process forked for it,
and its requests are answered with the model's earlier turns, in order. The first one without an
answer ends the run: it is what the model reads next. If a program sends another request than
before, the row would differ from the generated one, and that is an error, as in a loop
(`ppojob_trainer.tools.loop`).
"""

import contextlib
import inspect
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer.children import guardian
from ppojob_trainer.children.frames import read_frame, write_frame
from ppojob_trainer.children.user_code import raised
from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.results import BadResult, read_number
from ppojob_trainer.tools.loop import told_by_row
from ppojob_trainer.tools.requests import Wanted, completion, read_message, read_request
from ppojob_trainer.tools.wire import Asked, Conversation, Message

_PATH: Final = "/v1/chat/completions"
_ADDRESS: Final = "127.0.0.1"
_TOGETHER_SECONDS: Final = 0.05
"""Time for a second concurrent request to arrive, from a program that never waits."""


class ProgramRaised(Exception):  # noqa: N818  it says what happened
    """A program raised; its words and their place, as `user_code.raised` gives them."""


class _Ended(msgspec.Struct):
    """How a run ended by itself: by a score, or what was wrong with it."""

    score: float | None = None
    bad: list[str] = []
    raised: list[str] = []


@dataclass(frozen=True, slots=True)
class Program:
    """A user that is a program.

    Attributes:
        function: gets the messages of the prompt, and by name what the row tells it; returns None
            or a score, or an awaitable of it.
        listener: of the address that its environment names.
    """

    function: Callable[..., object]
    listener: socket.socket

    def __call__(
        self, conversation: Conversation, arguments: dict[str, Json], _row: str
    ) -> Asked | tuple[bool, str, float | None]:
        """Return its next request after its answered turns, or its end.

        Raises:
            BadResult: it sends another request than before, or two at once.
            ProgramRaised: it raised.
        """
        self._forget_connections()
        prompt = conversation.messages[: conversation.prompt]

        def run_once(ended: int) -> None:
            told = _outcome(lambda: self.function(prompt, **told_by_row(arguments)))
            write_frame(ended, msgspec.json.encode(told))

        # The only way to end a program that waits for a request. Its children end too: they could
        # send requests during another row.
        with guardian.guarded(run_once) as (process, ended):
            run = _Run(conversation, self.listener, process)
            while True:
                if self.listener.fileno() in _ready(self.listener.fileno(), ended):
                    run.answer()
                    if run.asked is not None:
                        return run.asked
                    continue
                return run.end(read_frame(ended))

    def _forget_connections(self) -> None:
        """Close connections of an earlier run."""
        while select.select([self.listener], [], [], 0)[0]:
            self.listener.accept()[0].close()


def open_listener() -> socket.socket:
    """Listen for programs, and set the address in the environment of this process.

    Clients that are created at the import of a file read it, so it comes first.
    """
    listener = socket.create_server((_ADDRESS, 0))
    address = f"http://{_ADDRESS}:{listener.getsockname()[1]}{_PATH.rpartition('/chat')[0]}"
    os.environ |= {"OPENAI_BASE_URL": address, "OPENAI_API_BASE": address, "OPENAI_API_KEY": "none"}
    for name in ("no_proxy", "NO_PROXY"):  # the pod's proxy would be used
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), _ADDRESS)))
    return listener


class _Run:
    """One run of a program, in its process, with its answered requests."""

    def __init__(self, conversation: Conversation, listener: socket.socket, process: int) -> None:
        self._heard = conversation
        self._process = process
        self._listener = listener
        self._answered = 0
        self._connection: socket.socket
        self.asked: Asked | None = None

    def answer(self) -> None:
        """Answer one request, or store it as the next one."""
        self._connection, address = self._listener.accept()
        with contextlib.suppress(OSError):
            _Handler(self._connection, address, self)
        if self.asked is None:  # it stays open as long as the program lives
            self._connection.close()

    def reply(self, path: str, body: bytes) -> tuple[int, Message] | None:
        """Return status and body for a request; None if the model has not answered it yet."""
        if path.rstrip("/") != _PATH:
            return 404, _error(f"got {shown(path)}: not served here; {_PATH}")
        try:
            wanted = read_request(body, self._heard.sampling)
        except BadResult as bad:
            return 400, _error(f"got {bad.got}: {bad.why}")
        number, heard = self._answered, self._heard
        if number == len(heard.spoken):
            _wait_until_idle(self._process)
            self._refuse_another()
            self.asked = self._next(wanted)
            return None
        self._refuse_another()
        before = heard.spoken[number]
        end = before.behind + before.messages
        told = _kept(heard.contexts(end)[-1])
        if wanted[:3] != (told, before.tools, before.max_tokens):
            raise _changed(shown(wanted.messages), f"it asked {shown(told)}")
        self._answered += 1
        return 200, completion(number, wanted.model, heard.messages[end], heard.drawn[number])

    def end(self, frame: bytes | None) -> tuple[bool, str, float | None]:
        """Return the end of the run, from its process's report.

        Raises:
            BadResult: it must not end here, or not like this.
            ProgramRaised: it raised.
        """
        if frame is None:  # it was killed, or killed itself: so does a tool end its process
            os._exit(1)
        ended = msgspec.json.decode(frame, type=_Ended)
        if ended.raised:
            raise ProgramRaised(*ended.raised)
        if ended.bad:
            raise BadResult("BadAnswer", *ended.bad)
        if self._answered < len(self._heard.spoken):
            raise _changed("its end", "it asked on")
        if not self._answered:
            raise BadResult("BadAnswer", "its end", "a program asks the model at least once")
        return True, "", ended.score

    def _next(self, wanted: Wanted) -> Asked:
        """Return the next request: more in its context, or a new one."""
        messages, tools, limit, _ = wanted
        heard = self._heard
        before = _kept(heard.contexts()[-1])
        later = messages[len(before) :]
        goes_on = messages[: len(before)] == before and tools == heard.tools
        if heard.spoken:
            goes_on &= bool(later) and all(one["role"] in ("tool", "user") for one in later)
        else:
            goes_on &= not later  # the prompt of the data has its tokens already
        return Asked(later if goes_on else messages, not goes_on, tools, limit)

    def _refuse_another(self) -> None:
        if select.select([self._listener], [], [], 0)[0]:
            why = "which comes first would be by chance; a program asks one after the other"
            raise BadResult("BadAnswer", "two requests at once", why)


class _Handler(BaseHTTPRequestHandler):
    """Answers the one request of a connection; there is no server behind it."""

    def __init__(self, connection: socket.socket, address: object, run: _Run) -> None:
        self._run = run
        super().__init__(connection, address, None)  # type: ignore[arg-type]

    def do_POST(self) -> None:
        """Answer, where there is an answer."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if (found := self._run.reply(self.path, body)) is None:
            return
        status, answer = found
        told = msgspec.json.encode(answer)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    do_GET = do_POST  # an error for the program, instead of a status that clients retry on

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""


def _wait_until_idle(process: int) -> None:
    """Wait until all threads of a program wait: its concurrent requests have arrived by then."""
    until = time.monotonic() + _TOGETHER_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError):  # a thread that has just ended
            tasks = Path(f"/proc/{process}/task").iterdir()
            told = [(task / "stat").read_text(encoding="utf-8") for task in tasks]
            if all(one.rpartition(")")[2].split()[0] == "S" for one in told):
                return
        time.sleep(0.001)


def _ready(*files: int) -> list[int]:
    """Which of some open files can be read, once one can."""
    return select.select(files, [], [])[0]


def _outcome(call: Callable[[], object]) -> _Ended:
    try:
        value = call()
        if inspect.isawaitable(value):
            import asyncio  # late: it takes long to load, and few programs are coroutines

            value = asyncio.run(_awaited(value))
        return _Ended(None if value is None else read_number(value, "a score is a number"))
    except BadResult as bad:
        return _Ended(bad=[bad.got, bad.why])
    except BaseException as error:  # SystemExit and its kin are answers too
        return _Ended(raised=list(raised(error, __file__)))


async def _awaited(value: object) -> object:
    assert inspect.isawaitable(value)
    return await value


def _kept(messages: list[Message]) -> list[Message]:
    """Messages as those of requests are kept; as they are where no request could have them."""
    try:
        return [read_message(one) for one in messages]
    except BadResult:  # of a prompt with pictures
        return messages


def _changed(got: str, before: str) -> BadResult:
    return BadResult("BadAnswer", got, f"where {before} before; the same requests each time")


def _error(message: str) -> Message:
    kind = "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
