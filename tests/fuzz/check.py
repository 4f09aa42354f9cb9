"""Is one graph's answer right on a target? What is wrong, and since which step of the compiler."""

import traceback
from dataclasses import dataclass

from monotile.errors import CaptureError, UnsupportedOperatorError
from tests.fuzz.graph import Graph
from tests.fuzz.runs import Rejected, differences, run
from tests.fuzz.targets import TARGETS, stages


@dataclass(frozen=True, slots=True)
class Verdict:
    """kind: "equal", "refused", "unclear" (eager's answer hangs on rounding), "wrong", or an error's class."""

    kind: str
    text: str = ""

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("equal", "refused", "unclear")


def check(graph: Graph, target: str) -> Verdict:
    try:
        runs = run(graph)
    except Rejected as e:
        return Verdict("unclear", str(e))
    try:
        found = TARGETS[target](graph)
    except (UnsupportedOperatorError, CaptureError) as e:
        return Verdict("refused", str(e))
    except Exception as e:
        return Verdict(type(e).__name__, f"{e}\n{traceback.format_exc(limit=-4)}")
    wrong = differences(runs, graph, found)
    return Verdict("wrong", "\n".join(wrong)) if wrong else Verdict("equal")


def located(graph: Graph, target: str) -> str:
    """The first step whose product gives another answer, by the evaluator."""
    runs = run(graph)
    try:
        for name, result in stages(graph, target != "cpu"):
            try:
                wrong = differences(runs, graph, result())
            except Exception as e:
                return f"{name}: {type(e).__name__}: {e}"
            if wrong:
                return f"{name}: {wrong[0]}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "schedule or code generation"
