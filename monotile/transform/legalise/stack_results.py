"""Returns results that are rows of one tensor as that tensor; the runtime takes the rows as views.

Per-layer results, such as keys and values, leave a rolled loop as one stack. Copying each row would be a stage of its
own, and the generated code would grow with depth again.
"""

import msgspec

from monotile.analysis.rows import copied_row
from monotile.ir.expr import Const, Tensor
from monotile.ir.program import Compute, Loop, Program, Statement, used
from monotile.ir.signature import OutputLeaf

Row = tuple[Tensor, tuple[int, ...]]


def stack_results(program: Program) -> tuple[Program, tuple[OutputLeaf, ...]]:
    """`program`, and the location of each former result in the new ones.

    Runs after `insert_base_copies`, so that a tensor that is read is not updated in place.
    """
    made = {s.out.name: s for s in program.body if isinstance(s, Compute)}
    states = program.outputs[len(program.results) :]
    # Tensors already returned: a result may not share memory with another, nor may its rows.
    # The carries of a loop that may end early have no buffer known in advance.
    carried = (
        c.out for s in program.body if isinstance(s, Loop) and s.ends_early for c in s.carried
    )
    own = (*program.inputs, *(w.tensor for w in program.weights), *program.outputs, *carried)
    given = {t.name for t in own}
    read = {t.name for s in program.body for t in used(s)}
    outputs: list[Tensor] = []
    along: list[set[tuple[str, ...]]] = []
    places: list[OutputLeaf] = []
    copies: set[str] = set()
    taken: list[Row] = []
    for k, t in enumerate(program.results):
        found = None if t.name in read or t.name not in made else _row(made[t.name])
        if found is not None and (found[0].name in given or _overlaps(found, taken)):
            found = None
        whole, row = found or (t, ())
        taken.append((whole, row))
        if row:
            copies.add(t.name)
        if whole not in outputs:
            outputs.append(whole)
            along.append(set())
        along[outputs.index(whole)].add(("",) * len(row) + program.defined_along(k))
        places.append(OutputLeaf(outputs.index(whole), row))
    if not copies:
        return program, tuple(OutputLeaf(k) for k in range(len(program.results)))
    body = tuple(s for s in program.body if not _defines(s, copies))
    partial = (*(x.pop() if len(x) == 1 else () for x in along), *((),) * len(states))
    new = msgspec.structs.replace(
        program, body=body, outputs=(*outputs, *states), partial=partial if program.partial else ()
    )
    return new, tuple(places)


def _defines(s: Statement, names: set[str]) -> bool:
    return isinstance(s, Compute) and s.out.name in names


def _overlaps(row: Row, taken: list[Row]) -> bool:
    """Whether `row` overlaps a part that is already returned."""
    whole, at = row
    return any(w == whole and all(a == b for a, b in zip(at, r, strict=False)) for w, r in taken)


def _row(s: Compute) -> Row | None:
    """The tensor of which `s` copies a row, and the row, if it is known."""
    found = copied_row(s)
    if found is None:
        return None
    whole, index = found
    row = tuple(int(i.value) for i in index if isinstance(i, Const))
    return (whole, row) if len(row) == len(index) else None
