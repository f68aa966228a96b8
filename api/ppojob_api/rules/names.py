"""Names and paths of a job."""

import keyword
import re

from ppojob_api import well_known
from ppojob_api.remote_files import DATA_FIELDS, MODEL_FIELDS, SCHEMES, TEACHERS_FIELD
from ppojob_api.rules.rule import present, rules, words
from ppojob_api.v1alpha1.section import TEMPLATE_MARK

DATA_ENDINGS = (".parquet", ".jsonl", ".ndjson", ".json", ".py")

# Each path that a pod must find, some of which may be URLs: the field, CEL around a condition on
# it, and its place there. An API server looks at those that every job has.
_OF_ALL_JOBS = {"model.path", "data.train", "data.validation"}
_SINGLE = (
    *MODEL_FIELDS,
    "rollout.replay",
    "data.sampler.source.path",
    *(f"algorithm.{name}.source.path" for name in ("custom", "policyLoss.custom")),
    *(f"agent.retriever.{name}" for name in ("index", "encoder")),
)
_OF_REWARDS = "self.rewards.all(one, !has(one.source) || !has(one.source.path) || %s)"
_OF_AGENT = "self.agent.$LIST.all(one, !has(one.source) || !has(one.source.path) || %s)"
_TEMPLATES = ("model.chatTemplate", "rewardModel.chatTemplate")
_MARK = TEMPLATE_MARK.replace("%", "%%")
_PATHS = (
    *((path, "%s", f"self.{path}") for path in _SINGLE),
    *((path, f"(self.{path}.matches(r'{_MARK}') || %s)", f"self.{path}") for path in _TEMPLATES),
    (TEACHERS_FIELD, f"self.{TEACHERS_FIELD}.all(one, %s)", "one.path"),
    ("data.train", "self.data.train.all(file, %s)", "file.path"),
    ("data.validation", "self.data.validation.all(file, %s)", "file.path"),
    ("data.demonstrations", "self.data.demonstrations.all(file, %s)", "file.path"),
    ("rewards", _OF_REWARDS, "one.source.path"),
    ("agent.tools", _OF_AGENT.replace("$LIST", "tools"), "one.source.path"),
    ("agent.interactions", _OF_AGENT.replace("$LIST", "interactions"), "one.source.path"),
)

_FETCHED = {*MODEL_FIELDS, TEACHERS_FIELD, *DATA_FIELDS}
_FETCHED_URLS = (
    f"it is none of the URLs that are read ({', '.join(SCHEMES)}), or has a password, ? or #, which"
    " the run would show; such a URL with credentials in the environment, or a path"
)
_NO_URLS = "URLs: not in this version; a path on this machine or on a volume"


def _read(field: str, path: str) -> str:
    """CEL for a path, or a URL that is read where the field may have one."""
    is_path = f"!{path}.contains('://')"
    if field not in _FETCHED:
        return is_path
    return f"({is_path} || {path}.matches(r'^({'|'.join(SCHEMES)})://[^/@?#]+(/[^?#]*)?$'))"


def _found(field: str, path: str) -> str:
    """CEL for a path that a pod finds."""
    is_absolute = f"{path}.startsWith('/')"
    return f"({is_absolute} || {path}.contains('://'))" if field in _FETCHED else is_absolute


def _source(reward: str) -> str:
    """CEL for where the code of a reward comes from; empty for what is built in."""
    return (
        f"(has({reward}.source) && has({reward}.source.path) ? {reward}.source.path :"
        f" has({reward}.source) && has({reward}.source.package) ? {reward}.source.package :"
        f" has({reward}.source) && has({reward}.source.configMap) ?"
        f" {reward}.source.configMap.name + '/' + {reward}.source.configMap.key : '')"
    )


NAME_RULES = (
    *rules(
        """
        | metadata.name | BadForm
            metadata.name begins the names of pods and services; a letter, then letters, digits and
            hyphens, all lower case, no hyphen at the end, at most $LIMIT characters
        must: self.metadata.name.size() <= $LIMIT && self.metadata.name.matches('$PATTERN')

        | metadata.namespace | BadForm | here
            it is no name of a namespace; lower-case letters, digits, and hyphens between them
        must: self.metadata.namespace.matches('$NAMESPACE')

        | metadata.labels metadata.annotations | Forbidden | here
            keys that begin with $RESERVED belong to the operator; a prefix of your own
        must: self.$FIELD.all(key, !key.startsWith('$RESERVED'))
        """,
        LIMIT=str(well_known.JOB_NAME_LIMIT),
        PATTERN=well_known.JOB_NAME_PATTERN,
        NAMESPACE=well_known.NAMESPACE_PATTERN,
        RESERVED=well_known.RESERVED_PREFIX,
    ),
    *rules(
        """
        spec | $PLACE | NotInThisVersion | here
            $NO_URL
        when: $GIVEN
        must: $READ

        spec | $PLACE | Conflict$HERE
            pods cannot resolve a relative path; an absolute one, on a volume that
            spec.pods[].volumes mounts, or no checkpoint.volume
        when: has(self.checkpoint.volume) && $GIVEN
        must: $FOUND
        """,
        each=(
            {
                "PLACE": field,
                "GIVEN": present(field),
                "NO_URL": _FETCHED_URLS if field in _FETCHED else _NO_URLS,
                "READ": around % _read(field, path),
                "FOUND": around % _found(field, path),
                "HERE": "" if field in _OF_ALL_JOBS else " | here",
            }
            for field, around, path in _PATHS
        ),
    ),
    *rules(
        r"""
        $DATA | path | BadForm | here
            format auto knows a file by its ending; a name that ends in $ENDINGS, a folder that ends
            in /, or format: parquet, jsonl or python
        when: self.format == 'auto' && !self.path.matches(r'$HUB_ID')
        must: self.path.matches(r'(?i)($ENDING_PATTERNS|/)$')

        $DATA | path | BadForm | here
            format auto knows a file by its ending, and this may be an id of the Hugging Face hub; a
            file that `ppojob data hf ID --output DIR` fetches, a folder that ends in /, or format:
            parquet, jsonl or python
        when: self.format == 'auto'
        must: !self.path.matches(r'$HUB_ID')

        $DATA | function arguments | NoEffect | here
            only a Python file has a function; remove it, or a path that ends in .py
        must: $IS_PROGRAM

        $DATA | path | NotInThisVersion | here
            programs behind URLs: not in this version; a file on this machine or on a volume
        when: self.path.contains('://')
        must: !($IS_PROGRAM)

        spec.agent | tools interactions agents mcpServers | Duplicate | here
        spec.pods[] | env | Duplicate | here
            another one has this name; each name once
        must: self.$FIELD.all(one, self.$FIELD.exists_one(other, other.name == one.name))

        spec | data.train data.validation data.demonstrations | Duplicate | here
            the file is in the list twice; each file once
        must: self.$FIELD.all(file, self.$FIELD.exists_one(other, other.path == file.path))

        spec.rewards[].source | | Conflict
            the code has one source; exactly one of path, package and configMap
        must: $ONE_OF(path package configMap)

        $ONE_FUNCTION | source | Conflict | here
        spec.agent.interactions[] | source | Conflict | here
            the code has one source; exactly one of path and configMap
        when: has(self.source)
        must: has(self.source.path) != has(self.source.configMap)

        spec.sandbox spec.agent.tools[].source spec.agent.mcpServers[] | url | BadForm | here
            it is not the URL of a service; http://HOST:PORT/PATH, or https://
        must: self.url.startsWith('http://') || self.url.startsWith('https://')

        spec.rewards[].source | package | BadForm | here
            it names no module; names of Python with dots between them
        must: self.package.matches(r'^[^\W\d]\w*([.][^\W\d]\w*)*$')

        spec.rewards[] | onError | NoEffect | here
            errorScore is already the score of a failed call; remove one of the two
        when: has(self.errorScore)

        spec | rewards | Conflict
        spec | agent.tools agent.interactions | Conflict | here
            a ConfigMap needs a cluster, and so checkpoint.volume; source: {path: FILE}, or a volume
        when: !has(self.checkpoint.volume)
        must: self.$FIELD.all(one, !has(one.source) || !has(one.source.configMap))

        spec | algorithm.custom algorithm.policyLoss.custom data.sampler | Conflict | here
            a ConfigMap needs a cluster, and so checkpoint.volume; source: {path: FILE}, or a volume
        when: !has(self.checkpoint.volume)
        must: !has(self.$FIELD.source) || !has(self.$FIELD.source.configMap)

        spec.data.sampler | function | NotOneOf | here
            no sampler of this name is built in; one of $SAMPLERS, or a source
        when: !has(self.source) && self.function.matches(r'$IDENTIFIER')
        must: self.function in $SAMPLER_WORDS

        spec.data.sampler | columns | Duplicate | here
            rows have such a column of their own; another name
        must: self.columns.all(one, !(one in $SEEN))

        spec.rewards[] $ONE_FUNCTION | function | BadForm | here
        spec.agent.interactions[].source | function | BadForm | here
            it is not a Python identifier; the name of a function or class
        when: has(self.function)
        must: self.function.matches(r'$IDENTIFIER') && !(self.function in $KEYWORDS)

        spec.agent.tools[].source | function | BadForm | here
            it is not a name in Python; that of a function or class, or CLASS.METHOD
        must: self.function.matches(r'$NAME') && !(self.function in $KEYWORDS)

        spec | rewards | Duplicate | here
            two rewards are the same function; each function once, with the sum of the weights
        must: self.rewards.all(one, self.rewards.exists_one(other,
            other.function == one.function && $OTHER_SOURCE == $ONE_SOURCE))

        spec.rewards[] | function | NotOneOf | here
            no scorer of this name is built in; one of $SCORERS, or a source
        when: !has(self.source) && self.function.matches(r'$IDENTIFIER')
        must: self.function in $SCORER_WORDS

        spec | loggers | Duplicate
        spec.profile | steps ranks contents | Duplicate | here
        spec.roles.actorRollout spec.roles.critic | offload | Duplicate | here
            it is in the list twice; each once
        must: self.$FIELD.all(one, self.$FIELD.exists_one(other, other == one))
        """,
        ONE_FUNCTION="spec.data.sampler spec.algorithm.custom spec.algorithm.policyLoss.custom",
        HUB_ID=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w-]*$",
        DATA=" ".join(f"spec.{field}[]" for field in DATA_FIELDS),
        IS_PROGRAM="self.format == 'python' || "
        "(self.format == 'auto' && self.path.matches(r'(?i)[.]py$'))",
        ENDINGS=", ".join(DATA_ENDINGS),
        ENDING_PATTERNS="|".join(map(re.escape, DATA_ENDINGS)),
        IDENTIFIER=r"^[^\W\d]\w*$",
        NAME=r"^[^\W\d]\w*(\.[^\W\d]\w*)?$",
        KEYWORDS=words(keyword.kwlist),
        OTHER_SOURCE=_source("other"),
        ONE_SOURCE=_source("one"),
        SAMPLERS=", ".join(well_known.BUILT_IN_SAMPLERS),
        SAMPLER_WORDS=words(well_known.BUILT_IN_SAMPLERS),
        SEEN=words(well_known.SEEN_OF_ROWS),
        SCORERS=", ".join(well_known.BUILT_IN_SCORERS),
        SCORER_WORDS=words(well_known.BUILT_IN_SCORERS),
    ),
)
