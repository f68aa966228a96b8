"""Rules of tools that CEL cannot express: schemas, settings and addresses."""

import ipaddress
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from pydantic import JsonValue

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob, PPOJobSpec

_EGRESS: Final = "spec.agent.egress"
_USUAL_PORTS: Final = {"http": 80, "https": 443}
_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_MORE_PROPERTIES: Final = (
    *("$ref", "additionalProperties", "allOf", "anyOf", "oneOf", "patternProperties"),
)
"""Keys of a JSON schema that can allow what `properties` does not name."""


def queries(job: PPOJob) -> Iterator[Problem]:
    """With format search_r1 a search is a call of `search` with only a `query`."""
    agent = job.spec.agent
    if agent is None or agent.format != "search_r1":
        return
    for index, tool in enumerate(agent.tools):
        if tool.name != "search" or not tool.parameters:
            continue
        properties, required = (tool.parameters.get(key) for key in ("properties", "required"))
        takes_query = isinstance(properties, dict) and "query" in properties
        needs_more = isinstance(required, list) and set(map(str, required)) - {"query"}
        if takes_query and not needs_more:
            continue
        yield Problem(
            f"spec.agent.tools[{index}].parameters",
            shown(tool.parameters),
            "format search_r1 passes only query to a search",
            "a property query, and no other that is required",
            ReasonCode.CONFLICT,
        )


def schemas(job: PPOJob) -> Iterator[Problem]:
    """The JSON schemas of tools have known types, and required names are properties."""
    for index, tool in enumerate(job.spec.agent.tools if job.spec.agent else ()):
        yield from _schema_problems(f"spec.agent.tools[{index}].parameters", tool.parameters)


def _schema_problems(where: str, schema: JsonValue) -> Iterator[Problem]:
    if not isinstance(schema, dict):
        return
    given = schema.get("type", [])
    for one in given if isinstance(given, list) else [given]:
        if one not in _TYPES:
            why, allowed = "JSON schema has no such type", f"one of {', '.join(_TYPES)}"
            yield Problem(f"{where}.type", shown(one), why, allowed, ReasonCode.NOT_ONE_OF)
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        for name, inner in properties.items():
            yield from _schema_problems(f"{where}.properties.{name}", inner)
        is_closed = all(schema.get(key, False) is False for key in _MORE_PROPERTIES)
        for one in required if isinstance(required, list) and is_closed else ():
            if one not in list(properties):
                why, allowed = "no property has this name", "the name of one of its properties"
                yield Problem(f"{where}.required", shown(one), why, allowed, ReasonCode.NOT_ONE_OF)
    yield from _schema_problems(f"{where}.items", schema.get("items"))


def addresses(job: PPOJob) -> Iterator[Problem]:
    """Address ranges must be valid in a NetworkPolicy."""
    for index, rule in enumerate(job.spec.agent.egress if job.spec.agent else ()):
        try:
            ipaddress.ip_network(rule.cidr or "::/0")
        except ValueError:
            why = "no range of addresses in its shortest form"
            allowed = "such as 10.1.0.0/16 or 2001:db8::/32, with no bit set behind the prefix"
            where = f"{_EGRESS}[{index}].cidr"
            yield Problem(where, shown(rule.cidr), why, allowed, ReasonCode.BAD_FORM)


def services(job: PPOJob) -> Iterator[Problem]:
    """Tools pods must be allowed to connect to the ports of the services that tools call."""
    egress = job.spec.agent.egress if job.spec.agent else ()
    for where, url in _services_of(job.spec):
        port = port_of(url)
        if port is None or any(not rule.ports or port in rule.ports for rule in egress):
            continue
        why = f"tools pods connect to nothing that {_EGRESS} does not name, nor to port {port}"
        allowed = f"{_EGRESS}: [{{ports: [{port}]}}]"
        yield Problem(where, shown(url), why, allowed, ReasonCode.CONFLICT)


def _services_of(spec: PPOJobSpec) -> Iterator[tuple[str, str]]:
    """The services in the spec that tools call: path and URL."""
    tools = spec.agent.tools if spec.agent else ()
    for index, tool in enumerate(tools):
        where, url = f"spec.agent.tools[{index}]", tool.config.get("url")
        if tool.source is not None and tool.source.url is not None:
            yield f"{where}.source.url", tool.source.url
        elif tool.source is None and isinstance(url, str):
            yield f"{where}.config.url", url
    for index, server in enumerate(spec.agent.mcp_servers if spec.agent else ()):
        if server.url is not None:
            yield f"spec.agent.mcpServers[{index}].url", server.url
    if spec.sandbox.url is not None and any(
        tool.name == "python" and tool.source is None for tool in tools
    ):
        yield "spec.sandbox.url", spec.sandbox.url


def port_of(url: str) -> int | None:
    """The port of a service outside the pod; None for a local or malformed URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port
    except ValueError:
        return None  # refused elsewhere
    if host == "localhost" or host == "::1" or host.startswith("127."):
        return None
    return port or _USUAL_PORTS.get(parts.scheme)
