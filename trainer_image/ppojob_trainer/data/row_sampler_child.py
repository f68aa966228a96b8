"""Child process that runs the user's sampler, isolated from the job's secrets."""

import json
from typing import Any, Final

import msgspec
import numpy as np

from ppojob_trainer.children import guardian
from ppojob_trainer.children.user_code import load_function, raised
from ppojob_trainer.data import samplers
from ppojob_trainer.data.row_sampler import (
    MAX_STATE_BYTES,
    AppendCells,
    ChooseRows,
    Chosen,
    OpenSampler,
    SamplerRequest,
    SetNumbers,
)
from ppojob_trainer.errors import BadInput
from ppojob_trainer.json_value import Json

_MODULE = "ppojob_sampler"

# Bound before the user's file is imported, which may replace them.
_decode: Final = msgspec.msgpack.Decoder(SamplerRequest).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_dumps: Final = json.dumps


class _Sampler:
    """A function and its columns."""

    def __init__(self) -> None:
        self._function: samplers.Sampler | None = None
        self._arguments = b""  # JSON, like the cells: each call gets its own copy
        self._values: dict[str, list[bytes]] = {}
        self._numbers: dict[str, bytes] = {}

    def answer(self, body: bytes) -> bytes:
        try:
            return _encode(self._answer(_decode(body)))
        except BadInput as bad:
            return _encode(Chosen([], problem=str(bad)))
        except BaseException as error:  # the file is the user's: it may even call sys.exit
            text, where = raised(error, __file__)
            problem = f"got {text}: {where}; a function that returns rows"
            return _encode(Chosen([], problem=problem))

    def _answer(self, request: SamplerRequest) -> Chosen:
        match request:
            case OpenSampler():
                self._arguments = request.arguments
                given = msgspec.json.decode(request.arguments)
                self._function = samplers.checked(request.function, _load(request), given)
            case AppendCells():
                for name, cells in request.cells.items():
                    self._values.setdefault(name, []).append(cells)
            case SetNumbers():
                self._numbers[request.name] = request.numbers
            case ChooseRows():
                return self._chosen(request)
        return Chosen([])

    def _chosen(self, request: ChooseRows) -> Chosen:
        function = self._function
        assert function is not None, "the function was loaded"
        # Copies, so that a call cannot keep state in its arguments.
        arguments: dict[str, Json] = msgspec.json.decode(self._arguments)
        numbers = {name: np.frombuffer(body).copy() for name, body in self._numbers.items()}
        rows: dict[str, Any] = {**numbers}
        for name, some in self._values.items():
            rows[name] = [cell for cells in some for cell in msgspec.json.decode(cells)]
        num_rows, has_state = len(numbers["draws"]), samplers.keeps_state(function)
        own = {samplers.STATE: json.loads(request.state)} if has_state else {}
        answer = function(request.step, request.seed, request.count, rows, **arguments, **own)
        chosen, state = samplers.read_answer(answer, request.count, num_rows, has_state=has_state)
        return Chosen(chosen, _written(state))


def _load(request: OpenSampler) -> samplers.Sampler:
    """Load the function, built in or from a file."""
    if not request.path:
        return samplers.SAMPLERS[request.function]
    return load_function(request.path, request.function, _MODULE, "function: one of the file")


def _written(state: Json) -> str:
    try:
        text = _dumps(state, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(samplers.STATE, f"not JSON: {error}", "a JSON value") from None
    if len(text) > MAX_STATE_BYTES:
        why = "it is in each checkpoint and each journal entry"
        raise BadInput(f"{samplers.STATE} of {len(text)} bytes", why, f"at most {MAX_STATE_BYTES}")
    return text


if __name__ == "__main__":
    guardian.main(lambda: _Sampler().answer)
