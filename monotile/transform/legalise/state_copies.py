"""Copy insertion for states: each gets a single statement that overwrites its memory.

Afterwards the new value of every state is computed by Scatters that update the old one in place, or by a copy at the end, after all
readers of the old value. The scheduler fuses such a copy with the statement that it copies unless another reader of the old value would
then come too late. A value that a loop carries in place is read before it is overwritten, too.
"""

from collections.abc import Mapping

import msgspec

from monotile.analysis.states import scattered, waits
from monotile.errors import ScheduleError
from monotile.ir.expr import Load, Tensor
from monotile.ir.program import Program, Statement, compute, defined, updates
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body
from monotile.transform.roll.order import topological


def insert_state_copies(program: Program) -> Program:
    """`program` with a copy for each state that no Scatter may update in place, and readers of old values before their writers. Raises
    ScheduleError where the host watches such a state."""
    done = _with_copies(program) if program.states else program
    before = waits(done)
    # A reader of an old value may come after its writer, such as a result that became a copy of an argument.
    return with_body(done, _ordered(done.body, before)) if before else done


def _ordered(body: Body, before: Mapping[str, frozenset[str]]) -> Body:
    inner = tuple(map_bodies(s, lambda x: _ordered(x, before)) for s in body)
    return topological(inner, before)


def _with_copies(program: Program) -> Program:
    in_place = set(scattered(program).values())
    origin = {t.name: s.origin for s in program.body for t in defined(s)}
    taken = Names(program)
    made: list[Statement] = []
    new: list[Tensor] = []
    for u in updates(program):
        if any(t.name in in_place for t in u.old):
            new.append(u.result)
            continue
        if u.name in program.watched:
            raise ScheduleError(
                f"the state {u.name} cannot be watched: it is not updated where it lies"
            )
        out = Tensor(taken.fresh(f"{u.result.name}_state"), u.result.shape, u.result.dtype)
        source = u.result
        made.append(
            compute(out, lambda *axes, t=source: Load(t, axes), origin=origin.get(source.name, ""))
        )
        new.append(out)
    outputs = (*program.results, *new)
    return msgspec.structs.replace(program, body=(*program.body, *made), outputs=outputs)
