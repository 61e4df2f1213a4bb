"""What Prometheus would read."""

from __future__ import annotations

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


class Scrape(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """Samples by name and labels."""

    def __init__(self, text: str) -> None:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self[sample.name, frozenset(sample.labels.items())] = sample.value

    def of(self, metric: str, /, **labels: str) -> float:
        """The sample, or the sum of all that have these labels; 0.0 if there is none."""
        wanted = frozenset(labels.items())
        return sum(value for (found, has), value in self.items() if found == f"leasehold_{metric}" and wanted <= has)

    def labels(self, metric: str, label: str) -> set[str]:
        found = [dict(has) for each, has in self if each == f"leasehold_{metric}"]
        return {labels[label] for labels in found}


def scrape(port: int, path: str = "/metrics") -> Scrape:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return Scrape(answer.read().decode())


def until(port: int, metric: str, value: float, /, **labels: str) -> Scrape:
    """Scrape until a sample has this value."""
    ends = time.monotonic() + 20
    while True:
        found = scrape(port)
        if found.of(metric, **labels) == value:
            return found
        assert time.monotonic() < ends, f"leasehold_{metric}{labels} is {found.of(metric, **labels)}, not {value}"
        time.sleep(0.05)
