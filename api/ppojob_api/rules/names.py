"""Names and paths of a job."""

from ppojob_api.problem import ReasonCode
from ppojob_api.rules.rule import Rule, given, present, words
from ppojob_api.well_known import BUILT_IN_SCORERS, JOB_NAME_LIMIT, JOB_NAME_PATTERN

_IN_PODS = (
    "pods find no relative path; an absolute one, on a volume that spec.pods[].volumes mounts, or"
    " no checkpoint.volume"
)
_URL = "URLs: not in this version; a path on this machine or on a volume"
_SINGLE_PATHS = (
    *(f"model.{name}" for name in ("path", "tokenizerPath", "chatTemplate")),
    "critic.path",
    *(f"rewardModel.{name}" for name in ("path", "tokenizerPath", "chatTemplate")),
)


def _is_found(path: str) -> str:
    return f"{path}.startsWith('/')"


def _is_read(path: str) -> str:
    return f"!{path}.contains('://')"


def _path_rules(field: str, is_given: str, found: str, read: str) -> tuple[Rule, Rule]:
    """A path that every pod must find, and that must not be a URL."""
    in_pods = " && ".join(filter(None, (given("checkpoint.volume"), is_given)))
    not_yet = ReasonCode.NOT_IN_THIS_VERSION
    of_all_jobs = field in {"model.path", "data.train", "data.validation"}
    return (
        Rule("spec", field, read, _URL, not_yet, when=is_given, at_admission=False),
        Rule("spec", field, found, _IN_PODS, when=in_pods, at_admission=of_all_jobs),
    )


def _single_path_rules(path: str) -> tuple[Rule, Rule]:
    at = f"self.{path}"
    return _path_rules(path, present(path), _is_found(at), _is_read(at))


def _data_rules(kind: str) -> tuple[Rule, Rule]:
    files = f"self.data.{kind}.all(file, "
    at = "file.path"
    return _path_rules(f"data.{kind}", "", f"{files}{_is_found(at)})", f"{files}{_is_read(at)})")


_WITHOUT_PATH = "!has(one.source) || !has(one.source.path)"
_AT = "one.source.path"

NAME_RULES = (
    Rule(
        "",
        "metadata.name",
        f"self.metadata.name.size() <= {JOB_NAME_LIMIT}"
        f" && self.metadata.name.matches('{JOB_NAME_PATTERN}')",
        "metadata.name begins the names of pods and services; a letter, then letters, digits and"
        f" hyphens, all lower case, no hyphen at the end, at most {JOB_NAME_LIMIT} characters",
        ReasonCode.BAD_FORM,
    ),
    *(rule for path in _SINGLE_PATHS for rule in _single_path_rules(path)),
    *(rule for kind in ("train", "validation") for rule in _data_rules(kind)),
    *_path_rules(
        "rewards",
        "",
        f"self.rewards.all(one, {_WITHOUT_PATH} || {_is_found(_AT)})",
        f"self.rewards.all(one, {_WITHOUT_PATH} || {_is_read(_AT)})",
    ),
    Rule(
        "spec.rewards[]",
        "source",
        f"{given('source.path')} != {given('source.configMap')}",
        "the code has one source; exactly one of path and configMap",
        when=given("source"),
    ),
    Rule(
        "spec.rewards[]",
        "source.configMap",
        "!has(self.source.configMap)",
        "code from a ConfigMap: not in this version; source: {path: FILE}",
        ReasonCode.NOT_IN_THIS_VERSION,
        when=given("source"),
    ),
    Rule(
        "spec.rewards[]",
        "function",
        f"self.function in {words(BUILT_IN_SCORERS)}",
        f"no scorer of this name is built in; one of {', '.join(BUILT_IN_SCORERS)}, or a source",
        ReasonCode.NOT_ONE_OF,
        when=f"!{given('source')}",
        at_admission=False,
    ),
    Rule(
        "spec.loggers",
        "",
        "self.all(one, self.exists_one(other, other == one))",
        "it is in the list already; each logger once",
        ReasonCode.DUPLICATE,
    ),
)
