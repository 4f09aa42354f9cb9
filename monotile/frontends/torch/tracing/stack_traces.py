"""Faster stack traces for the nodes of a graph, while a model is traced.

PyTorch writes a hundred frames for every operator, a fifth of an export's time, and most of them are those of the operator before.
"""

import functools
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch.fx.proxy import TracerBase
from torch.utils import _traceback


@contextmanager
def frames_written_once() -> Generator[None]:
    """Within, a frame that several stack traces share is read and formatted once."""
    frame = functools.cache(traceback.FrameSummary)
    texts: dict[int, str] = {}  # by the frame, which `frame` keeps

    class Frames(traceback.StackSummary):
        def format_frame_summary(self, frame_summary: traceback.FrameSummary) -> str:
            text = texts.get(id(frame_summary))
            if text is None:
                text = texts[id(frame_summary)] = super().format_frame_summary(frame_summary)
            return text

    def extracted(found: list[dict[str, Any]], skip: int) -> traceback.StackSummary:
        return Frames(frame(f["filename"], f["line"], f["name"]) for f in reversed(found[skip:]))

    those_of_model = TracerBase._filter_traceback_frames  # pyright: ignore[reportPrivateUsage]

    def filtered(tracer: TracerBase, stack: traceback.StackSummary) -> traceback.StackSummary:
        return Frames(those_of_model(tracer, stack))

    with (
        patch.object(_traceback, "_extract_symbolized_tb", extracted),
        patch.object(TracerBase, "_filter_traceback_frames", filtered),
    ):
        yield
