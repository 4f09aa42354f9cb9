"""The tables of measured times are those of the logs."""

from pathlib import Path

import msgspec
import pytest

from bench.history import PAGES, ROOT, newest, rewritten, title
from monotile.compare.results import Entry, Log, Timing


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_current(page: Path) -> None:
    text = page.read_text()
    assert rewritten(text) == text, "run python -m bench.history"


def timing(graph: float | None, call: float = 50.0) -> Timing:
    return Timing(call=call, graph=graph, compile=None, again=None, samples=100, kernels=1)


def test_a_later_log_replaces_a_row() -> None:
    entry = Entry(
        model="gpt2",
        arguments={"use_cache": False, "batch": 8},
        dtype="float16",
        ours=timing(30.0),
        rivals={"plain compile": timing(None, 60.0), "eager": timing(90.0)},
        errors={},
    )
    better = msgspec.structs.replace(entry, ours=timing(20.0), arranged=timing(15.0))
    logs = [Log(date="", device="", versions={}, commit="", notes="", entries=[e]) for e in (entry, better)]  # fmt: skip
    assert title(entry) == "GPT-2, batch 8, fp16"
    table = newest(logs)
    assert table.count("GPT-2") == 1
    assert "| 20 | 15.0 | 60 (plain torch.compile) | 3.00 × (4.00 ×) | 90 |" in table
