"""An interaction as verl's users write one; it has to load unchanged, whatever verl there is."""

from typing import Any
from uuid import uuid4

from verl.interactions.base import BaseInteraction


class PatientInteraction(BaseInteraction):
    """Counts what it is told, and gives up in the end."""

    def __init__(self, config: dict):
        super().__init__(config)
        self._rows: dict[str, dict[str, Any]] = {}

    async def start_interaction(
        self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs
    ) -> str:
        instance_id = instance_id or str(uuid4())
        self._rows[instance_id] = {"truth": ground_truth, "attempts": 0, "query": kwargs["query"]}
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs
    ) -> tuple[bool, str, float, dict[str, Any]]:
        row = self._rows[instance_id]
        row["attempts"] += 1
        row["response"] = messages[-1]["content"]
        messages.append({"role": "user", "content": "not heard"})
        if row["response"] == "raise":
            raise ValueError(f"attempt {row['attempts']}")
        score = await self.calculate_score(instance_id)
        text = f"{self.name} {row['query']}: attempt {row['attempts']} of {self.config['patience']}"
        return score == 1.0 or row["attempts"] == self.config["patience"], text, score, {"a": 1}

    async def calculate_score(self, instance_id: str, **kwargs) -> float:
        row = self._rows[instance_id]
        return 1.0 if row["response"] == row["truth"] else -0.5 / row["attempts"]

    async def finalize_interaction(self, instance_id: str, **kwargs) -> None:
        del self._rows[instance_id]
