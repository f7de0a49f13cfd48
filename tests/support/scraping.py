"""What `/metrics` says."""

from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support import wire


@dataclass(frozen=True)
class Figures:
    """The metrics of a proxy at one moment."""

    families: list[Metric]

    @classmethod
    def of(cls, url: str, *headers: tuple[str, str]) -> "Figures":
        text = wire.request(url, "GET", "/metrics", None, headers).body.decode()
        return cls(list(text_string_to_metric_families(text)))

    @property
    def names(self) -> set[str]:
        return {sample.name for family in self.families for sample in family.samples}

    @property
    def processes(self) -> set[int]:
        """The process ids of the workers, if there are several."""
        found = (sample.labels.get("pid") for family in self.families for sample in family.samples)
        return {int(pid) for pid in found if pid}

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples of a metric of ours that have these labels."""
        found = (sample for family in self.families for sample in family.samples)
        ours = (sample for sample in found if sample.name == f"condenser_{name}")
        return sum(sample.value for sample in ours if labels.items() <= sample.labels.items())
