"""Which of several ways a test wants (`choice.chooser.Prefer`)."""

from collections.abc import Callable

from monotile.choice.spec import Value


def by(method: str) -> Callable[[Value], bool]:
    """Of a cut: one step by such a method. A way with several steps, or by another one, is none."""
    return lambda value: [s["method"]["type"] for s in value["steps"]] == [method]
