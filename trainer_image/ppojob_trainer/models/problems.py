"""Problems of a model's folder, as stable reason codes; reading of its JSON files."""

import json
from enum import StrEnum
from pathlib import Path

from ppojob_api.problem import Problem, shown
from ppojob_trainer.json_value import Json


class ModelReason(StrEnum):
    """Stable reason codes for programs; the texts may change."""

    MODEL_MISSING = "ModelMissing"
    UNREADABLE = "Unreadable"
    BAD_CONFIG = "BadModelConfig"
    UNSUPPORTED_ARCHITECTURE = "UnsupportedArchitecture"
    REMOTE_CODE = "RemoteCodeRefused"
    QUANTISED = "QuantisedCheckpoint"
    WEIGHTS_MISSING = "WeightsMissing"
    PICKLE = "PickleRefused"
    POINTER_FILE = "PointerFile"
    BAD_INDEX = "BadShardIndex"
    SHARD_MISSING = "ShardMissing"
    SHARD_UNLISTED = "ShardUnlisted"
    BAD_SAFETENSORS = "BadSafetensors"
    TENSOR_MISSING = "TensorMissing"
    TENSOR_UNEXPECTED = "TensorUnexpected"
    TENSOR_SHAPE = "TensorShape"
    VOCABULARY = "VocabularyTooLarge"
    OTHER_TOKENS = "OtherTokens"
    NO_END_TOKEN = "NoEndToken"


def read_object(path: Path, reason: ModelReason) -> dict[str, Json] | Problem:
    """Read a file that holds a JSON object, or return the file's problem."""

    def bad(got: str, why: str, place: str = "") -> Problem:
        return Problem(f"{path}{place}", got, why, "a JSON object", reason)

    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return unreadable(path, error)
    except UnicodeDecodeError as error:
        return bad(f"byte {error.object[error.start]:#04x}", "it is not UTF-8")
    except json.JSONDecodeError as error:
        return bad("no JSON", error.msg, f":{error.lineno}:{error.colno}")
    return value if isinstance(value, dict) else bad(shown(value), "it is not an object", ":1:1")


def unreadable(path: Path, error: OSError) -> Problem:
    """Return the problem of a file that cannot be read."""
    got = "a link to nothing" if path.is_symlink() and not path.exists() else "no bytes"
    why = error.strerror or type(error).__name__
    return Problem(str(path), got, why, "a file that can be read", ModelReason.UNREADABLE)
