"""The networks of the wide table, a file for each domain: each at its published size, with random weights."""

from bench.wide.networks import (
    detection,
    diffusion,
    graphs,
    language,
    mixtures,
    recommendation,
    recurrence,
    segmentation,
    series,
    speech,
    timm,
    vision,
)
from bench.wide.registry import NETWORKS

DOMAINS = tuple(dict.fromkeys(n.domain for n in NETWORKS.values()))

__all__ = [
    "DOMAINS", "NETWORKS", "detection", "diffusion", "graphs", "language", "mixtures", "recommendation", "recurrence", "segmentation", "series", "speech", "timm", "vision",
]  # fmt: skip
