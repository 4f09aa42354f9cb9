"""Writes the product of every step of a compilation to a folder (`Options(dump_dir=...)`)."""

from collections.abc import Callable
from pathlib import Path

from monotile.codegen.source import Source
from monotile.passes.table import Product
from monotile.plan.nodes import Plan
from monotile.plan.printer import show as show_plan


class Dump:
    """Writes the products to numbered files in a folder; None: writes nothing."""

    def __init__(self, folder: str | None) -> None:
        self._folder = Path(folder) if folder else None
        self._count = 0

    def _write(self, name: str, text: Callable[[], str]) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{self._count:02d}_{name}").write_text(text())
            self._count += 1

    def product(self, name: str, product: Product) -> None:
        """Writes a pass's product."""
        self._write(f"{name}.txt", product.show)

    def plan(self, plan: Plan) -> None:
        self._write("plan.json", plan.to_json)
        self._write("plan.txt", lambda: show_plan(plan))

    def source(self, source: Source, suffix: str) -> None:
        self._write(f"source{suffix}", lambda: source.text)
