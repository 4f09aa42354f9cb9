"""The networks of the wide table, a file for each domain: each at its published size, with random weights."""

from bench.wide.networks import (
    detection,
    diffusion,
    graphs,
    language,
    libraries,
    mixtures,
    recommendation,
    recurrence,
    segmentation,
    series,
    speech,
    timm,
    transformers,
    vision,
)
from bench.wide.registry import NETWORKS

DOMAINS = tuple(dict.fromkeys(n.domain for n in NETWORKS.values()))
ASKED = (timm.DOMAIN, libraries.DOMAIN, transformers.DOMAIN)  # run only where they are asked for

__all__ = [
    "ASKED", "DOMAINS", "NETWORKS", "detection", "diffusion", "graphs", "language", "libraries", "mixtures", "recommendation", "recurrence", "segmentation", "series", "speech", "timm", "transformers", "vision",
]  # fmt: skip
