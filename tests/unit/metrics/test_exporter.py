import math
import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest
from chart import all_series, selectors
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from ppojob_trainer.metrics import names
from ppojob_trainer.metrics.exporter import Prometheus


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def exporter() -> Iterator[Prometheus]:
    with closing(Prometheus("sums", "127.0.0.1", 0, clock=Clock())) as made:
        yield made


def scrape(exporter: Prometheus) -> dict[str, Family]:
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    return {family.name: family for family in text_string_to_metric_families(page)}


def value(exporter: Prometheus, name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in scrape(exporter).values()
        for sample in family.samples
        if sample.name == name and sample.labels == {"ppojob": "sums", **labels}
    ]
    assert len(found) == 1, f"{name} {labels}: {len(found)} samples"
    return found[0]


def key_of(metric: names.Metric) -> str:
    key = metric.name.replace("<moment>", "mean").replace("<n>", "8")
    key = key.replace("<mode>", "token_k1")
    return re.sub(r"<([a-z ]+)>", lambda match: match[1].replace(" ", "-"), key)


def test_every_row_of_the_table_is_shown_under_its_own_name(exporter):
    exporter.write(1, {key_of(metric): 1.0 for metric in names.METRICS})
    page = scrape(exporter)
    shown = {sample.name for family in page.values() for sample in family.samples}
    for metric in names.METRICS:
        assert selectors(metric.series) <= shown, metric.name
        family = page[metric.series.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.series.kind, metric.meaning)


def test_all_series_are_distinct_and_well_named():
    everything = all_series()
    assert len({series.name for series in everything}) == len(everything)
    for series in everything:
        assert re.fullmatch(r"ppojob_[a-z0-9]+(_[a-z0-9]+)*", series.name), series.name
        assert not series.name.startswith("ppojob_operator_"), "the operator's prefix"
        assert (series.kind == "counter") is series.name.endswith("_total"), series.name
        assert "ppojob" not in series.labels


@pytest.mark.parametrize(
    ("key", "given_", "series", "labels", "shown"),
    [
        ("actor/kl_loss", -0.5, "ppojob_actor_kl_loss", {}, -0.5),
        ("response/aborted_ratio", 0.25, "ppojob_response_aborted_ratio", {}, 0.25),
        ("timing_per_token_ms/gen", 2.5, "ppojob_stage_token_seconds", {"stage": "gen"}, 0.0025),
        (
            "val-core/open/math/acc/mean@1",
            0.75,
            "ppojob_val_core_acc_mean_ratio",
            {"data_source": "open/math", "n": "1"},
            0.75,
        ),
        (
            "val-aux/gsm8k/reward/best@4/std",
            0.1,
            "ppojob_val_aux_best",
            {"data_source": "gsm8k", "variable": "reward", "n": "4", "moment": "std"},
            0.1,
        ),
    ],
)
def test_base_units_and_labels(exporter, key, given_, series, labels, shown):
    exporter.write(1, {key: given_})
    assert value(exporter, series, **labels) == pytest.approx(shown)


def test_gauges_keep_the_last_value_and_counters_add_up(exporter):
    exporter.write(1, {"actor/lr": 0.1, "rpc/sent_bytes": 10.0, "val-core/s/acc/mean@1": 0.5})
    exporter.write(2, {"actor/lr": 0.2, "rpc/sent_bytes": 5.0})
    assert value(exporter, "ppojob_actor_lr") == 0.2
    assert value(exporter, "ppojob_rpc_sent_bytes_total") == 15.0
    assert value(exporter, "ppojob_steps_total") == 2.0
    assert value(exporter, "ppojob_val_core_acc_mean_ratio", data_source="s", n="1") == 0.5


def test_stages_are_histograms(exporter):
    for seconds in (0.2, 3.0):
        exporter.write(1, {"timing_s/gen": seconds, "timing_s/step": seconds + 1})
    name = "ppojob_stage_duration_seconds"
    assert value(exporter, f"{name}_sum", stage="gen") == pytest.approx(3.2)
    assert value(exporter, f"{name}_bucket", stage="gen", le="0.25") == 1
    assert value(exporter, f"{name}_bucket", stage="gen", le="5.0") == 2
    assert value(exporter, "ppojob_step_duration_seconds_count") == 2


def test_no_number_harms_neither_counters_nor_histograms(exporter):
    exporter.write(1, dict.fromkeys(("actor/loss", "rpc/sent_bytes", "timing_s/gen"), math.nan))
    exporter.write(2, {"rpc/sent_bytes": 3.0, "timing_s/gen": 1.0})
    assert math.isnan(value(exporter, "ppojob_actor_loss"))
    assert value(exporter, "ppojob_rpc_sent_bytes_total") == 3.0
    assert value(exporter, "ppojob_stage_duration_seconds_sum", stage="gen") == 1.0


def test_progress_and_checkpoints_are_dated():
    clock = Clock()
    with closing(Prometheus("sums", "127.0.0.1", 0, clock=clock)) as exporter:
        for now, act, dates in (
            (1010.0, lambda: exporter.write(1, {}), (1010.0, 1000.0)),
            (1020.0, lambda: exporter.saved(1), (1010.0, 1020.0)),
        ):
            clock.now = now
            act()
            names = (f"ppojob_last_{of}_timestamp_seconds" for of in ("progress", "checkpoint"))
            assert tuple(value(exporter, name) for name in names) == dates
        assert value(exporter, "ppojob_checkpoint_step") == 1.0
