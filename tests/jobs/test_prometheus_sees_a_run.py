"""A real Prometheus against a real run: each series that a dashboard or alert wants is there."""

import json
import re
from pathlib import Path

import pytest
from chart import CHART, DASHBOARDS, queries, series_names
from prometheus_server import prometheus_server

from ppojob_api import contract

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

# A CPU run has no memory of devices; KL is in the reward here, not in the loss; nor is there a
# critic.
NOT_IN_THIS_RUN = {
    "ppojob_memory_bytes",
    "ppojob_actor_kl_loss",
    "ppojob_actor_kl_coef",
    "ppojob_critic_grad_norm",
    "ppojob_critic_values_mean",
    "ppojob_critic_vf_clipfrac_ratio",
    "ppojob_critic_vf_explained_var",
    "ppojob_critic_vf_loss",
}
# Rows of the table that no step computes: whoever computes one takes it out of here.
NOT_COMPUTED = {
    "ppojob_global_seqlen_balanced_max_tokens",
    "ppojob_global_seqlen_balanced_min_tokens",
    "ppojob_training_rollout_actor_probs_pearson_corr",
    "ppojob_training_rollout_probs_diff_max",
    "ppojob_training_rollout_probs_diff_mean",
    "ppojob_training_rollout_probs_diff_std",
    "ppojob_training_zero_signal_groups_ratio",
}


def asked() -> set[str]:
    """Names of the trainer's series that the chart asks for."""
    alerts = re.sub(r"^ *#.*$", "", (CHART / "templates" / "alerts.yaml").read_text(), flags=re.M)
    texts = [query.text for path in DASHBOARDS for query in queries(path)] + [alerts]
    names = {name for text in texts for name in series_names(text)}
    return {name for name in names if not name.startswith("ppojob_operator_")}


def targets(output: Path) -> list[str]:
    addresses = json.loads((output / ".pods" / "addresses.json").read_text())
    ports = (contract.PORT_HEALTH, contract.PORT_METRICS)
    return [f"{address}:{port}" for address in set(addresses.values()) for port in ports]


def test_every_series_that_the_chart_asks_for_is_in_a_real_run(start, tiny_job, tmp_path: Path):
    algorithm = {
        "type": "grpo",
        "promptsPerStep": 4,
        "samplesPerPrompt": 2,
        "kl": {"in": "reward", "coefficient": 0.01},
    }
    output = tmp_path / "run"
    with prometheus_server(tmp_path) as prometheus:
        run = start(tiny_job(algorithm=algorithm, steps={"total": 30, "validateEvery": 10}), output)
        run.wait_for_step(1)
        prometheus.scrape(targets(output), namespace="here")
        assert run.wait() == 0, run.logs()
        seen = {one for one in asked() if prometheus.ask(f"count(count_over_time({one}[1h]))")}
        assert asked() - seen == NOT_IN_THIS_RUN | NOT_COMPUTED
        steps = prometheus.ask('max_over_time(ppojob_training_global_step{ppojob="tiny"}[1h])')
        assert len(steps) == 1
        assert int(steps[0]["value"][1]) > 5
