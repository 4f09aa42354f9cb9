"""The results of the analyses of a Program, as text."""

from monotile.analysis.dependence import dependences
from monotile.analysis.reuse import intensity, reuses
from monotile.ir.program import Compute, Program, Scatter, statements


def show(program: Program) -> str:
    """A line for each statement (its dependences and intensity), then one for each tensor (its reuse)."""
    needs: dict[str, list[str]] = {}
    for d in dependences(program):
        needs.setdefault(d.reader, []).append(f"{d.tensor} {d.form}")
    lines = ["statements"]
    for s in statements(program.body):
        if isinstance(s, (Compute, Scatter)):
            found = ", ".join(needs.get(s.out.name, ["nothing"]))
            lines.append(f"  {s.out.name}: {found}; {intensity(s):.2f} operations a byte")
    lines.append("tensors")
    for r in reuses(program):
        times = f"{r.times:.1f}".removesuffix(".0")
        lines.append(
            f"  {r.tensor}: {r.readers} readers, each element {times} times by one of them"
        )
    return "\n".join(lines) + "\n"
