"""What CEL cannot say of tools: what is within their schemas and settings."""

from collections.abc import Iterator

from ppojob_api.checks import Check
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob


def queries(job: PPOJob) -> Iterator[Problem]:
    """A search of Search-R1's is a call of `search` with a `query` and nothing else."""
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
            "with format search_r1 a search is a call with query alone",
            "a property query, and no other that is required",
            ReasonCode.CONFLICT,
        )


TOOL_CHECKS = (Check(queries, ("spec.agent.format", "spec.agent.tools")),)
