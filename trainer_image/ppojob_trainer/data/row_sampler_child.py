"""Child process that runs the user's sampler, isolated from the job's secrets."""

import json
import sys
from typing import Any, Final

import msgspec
import numpy as np

from ppojob_trainer.children import guardian
from ppojob_trainer.children.user_code import load_function, raised
from ppojob_trainer.data import samplers
from ppojob_trainer.data.row_sampler import (
    MAX_STATE_BYTES,
    ChooseRows,
    Chosen,
    OpenSampler,
    SamplerRequest,
    TellNumbers,
    TellValues,
)
from ppojob_trainer.errors import Wrong
from ppojob_trainer.json_value import Json

_MODULE = "ppojob_sampler"

# Taken before the file is imported, which may put something else in their place.
_decode: Final = msgspec.msgpack.Decoder(SamplerRequest).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_dumps: Final = json.dumps


class _Served:
    """A function and its inputs about the rows."""

    def __init__(self) -> None:
        self._function: samplers.Sampler | None = None
        self._arguments = b""  # JSON, as what stays of the rows, of which each call has a copy
        self._values: dict[str, list[bytes]] = {}
        self._numbers: dict[str, bytearray] = {}

    def answer(self, request: SamplerRequest) -> Chosen:
        match request:
            case OpenSampler():
                self._arguments = request.arguments
                given = msgspec.json.decode(request.arguments)
                self._function = samplers.checked(request.function, _found(request), given)
            case TellValues():
                for name, cells in request.cells.items():
                    self._values.setdefault(name, []).append(cells)
            case TellNumbers():
                if request.first == 0:
                    self._numbers[request.name] = bytearray()
                self._numbers[request.name] += request.numbers
            case ChooseRows():
                return self._chosen(request)
        return Chosen([])

    def _chosen(self, request: ChooseRows) -> Chosen:
        function = self._function
        assert function is not None, "it is opened first"
        # Of its own: what a call writes there must be no memory of another.
        arguments: dict[str, Json] = msgspec.json.decode(self._arguments)
        numbers = {name: np.frombuffer(told).copy() for name, told in self._numbers.items()}
        rows: dict[str, Any] = {**numbers}
        for name, some in self._values.items():
            rows[name] = [cell for cells in some for cell in msgspec.json.decode(cells)]
        num_rows, has_state = len(numbers["draws"]), samplers.keeps_state(function)
        own = {samplers.STATE: json.loads(request.state)} if has_state else {}
        answer = function(request.step, request.seed, request.count, rows, **arguments, **own)
        chosen, state = samplers.read_answer(answer, request.count, num_rows, has_state=has_state)
        return Chosen(chosen, _written(state))


def _found(request: OpenSampler) -> samplers.Sampler:
    """The function of a name, which is built in where there is no file."""
    if not request.path:
        return samplers.SAMPLERS[request.function]
    return load_function(request.path, request.function, _MODULE, "function: one of the file")


def _written(state: Json) -> str:
    try:
        text = _dumps(state, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Wrong(samplers.STATE, f"JSON cannot hold it: {error}", "what JSON holds") from None
    if len(text) > MAX_STATE_BYTES:
        why = "each checkpoint and line of the journal has it"
        raise Wrong(f"{samplers.STATE} of {len(text)} bytes", why, f"at most {MAX_STATE_BYTES}")
    return text


def serve(requests: int, answers: int) -> None:
    """Answer requests until the parent closes its end."""
    served = _Served()

    def answer(body: bytes) -> bytes:
        try:
            return _encode(served.answer(_decode(body)))
        except Wrong as bad:
            return _encode(Chosen([], "null", *bad.args))
        except BaseException as error:  # the file is the user's: it may even call sys.exit
            text, where = raised(error, __file__)
            return _encode(Chosen([], "null", text, where, "a function that answers its rows"))

    guardian.answer_requests(requests, answers, answer)


if __name__ == "__main__":
    sys.exit(guardian.run(serve, sys.argv[1:]))
