"""What can be wrong with a model's folder, as words for programs."""

from enum import StrEnum


class ModelReason(StrEnum):
    """Stable words for programs; texts may improve, these stay."""

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
    NO_END_TOKEN = "NoEndToken"
