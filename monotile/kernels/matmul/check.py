"""Checks that a step of a product is valid."""

import math

from monotile.analysis.contraction import contraction, factors, in_tf32
from monotile.codegen.lines import Lines
from monotile.ir.dtype import DType
from monotile.ir.program import Compute
from monotile.kernels.common.cost import round_up
from monotile.kernels.common.epilogue import why_not
from monotile.kernels.common.late import looks_up, several_blocks
from monotile.kernels.common.moments import moments
from monotile.kernels.common.product import PASSES, contraction_of, elements_of
from monotile.kernels.common.register_rows import even
from monotile.kernels.common.rowwise import rowwise
from monotile.kernels.common.sparse import SPARSE_CHUNK
from monotile.kernels.family import Checked, Statements
from monotile.kernels.matmul.gate import sums_of
from monotile.kernels.matmul.method import Matmul, MatmulRows
from monotile.kernels.matmul.panel_prefetch import panel_prefetch
from monotile.kernels.matmul.prefetch import operands
from monotile.kernels.matmul.settle import ROWS, SUMS_BYTES
from monotile.kernels.matmul.sides import exact_sides
from monotile.kernels.matmul.tiles import COMPUTED, first_sides, tiles_of, why_not_read
from monotile.kernels.matmul.words import why_not_words
from monotile.plan.invalid import fail
from monotile.plan.nodes import Method, Stage
from monotile.plan.places import Register
from monotile.targets.target import Target

MANY_ROWS = 9  # of a product, from which on warps multiply them though K has one end


def check(c: Checked) -> None:
    """Checks that the anchor is a sum of products, read as the method says, and that the warps add up."""
    stage, m, target = c.stage, c.step.method, c.target
    assert isinstance(m, Matmul)
    anchor, *others = sums_of(c.step, c.statements) or (c.anchor,)
    found = contraction_of(anchor, c.view.tables) if isinstance(anchor, Compute) else None
    if not isinstance(anchor, Compute) or found is None or found.swapped != m.swapped:
        fail(f"{stage.name}: {anchor.out.name} is no such product")
    if (why := _why_not_several(m, len(others) + 1, c)) is not None:
        fail(f"{stage.name}: {c.anchor.out.name} {why}")
    if why := _why_not_ahead(m, c):
        fail(f"{stage.name} cannot ask for an operand ahead: {why}")
    if target.has.register_tiles:
        _check_tile(c, m)
        return
    if m.warps_m * m.warps_n * m.slices * m.teams * target.warp != target.threads:
        fail(f"{stage.name}: the warps of {anchor.out.name} do not add up")
    if why := _why_not_multiplied(m, anchor):
        fail(f"{stage.name}: {anchor.out.name} by {m.instruction}: {why}")
    if m.teams > 1 and (len(stage.steps) > 1 or stage.late or m.slices > 1):
        fail(f"{stage.name}: teams of several steps or slices, or that wait late")
    if m.sparse and (
        m.instruction != "wgmma"
        or m.warps_n % 4
        or m.block_n % 64
        or m.block_k not in (SPARSE_CHUNK, 2 * SPARSE_CHUNK)
    ):
        fail(f"{stage.name}: no warpgroups multiply the sparse operand of {anchor.out.name} so")
    if m.runs > 1 and m.left.copy != "async":
        fail(f"{stage.name}: the runs of {anchor.out.name} cannot be copied side by side")
    if exact_sides(c.step, c.view) != (m.left, m.right):
        fail(f"{stage.name}: the operands of {anchor.out.name} cannot be read so")
    site, block = c.view.site(c.step), (m.block_m, m.columns)
    if isinstance(m, MatmulRows):
        _check_rows(c, m)
    elif why := why_not(m.epilogue, c.view, site, m.m, m.n, block, target.threads // m.teams):
        fail(f"{stage.name}: the epilogue of {anchor.out.name}: {why}")
    if m.following and (why := _why_not_following(m, c)):
        fail(f"{stage.name}: nothing of a next task can be asked for: {why}")


def _why_not_several(m: Matmul, products: int, c: Checked) -> str | None:
    """Why the step cannot have so many products side by side."""
    if m.products != products:
        return f"is made of the sums of {products} products, not of {m.products}"
    if products == 1:
        return None
    product = c.step.computes[0]
    if any(not isinstance(p, Register) for p in c.view.places[product]):
        return f"is made of sums of {product}, which others read"
    if m.block_n % products or m.sparse or m.runs > 1 or c.target.has.register_tiles:
        return f"is no gate of {products} products side by side"
    return None


def _why_not_multiplied(m: Matmul, anchor: Compute) -> str | None:
    """Why the instruction cannot multiply the factors in their on-chip types, in so many passes."""
    element, _ = elements_of(*factors(anchor, swapped=m.swapped), anchor)
    if m.instruction == "fma":
        return None if element.itemsize >= 4 and element.is_float and m.passes == 1 else "its types"
    if element not in PASSES or PASSES[element] == 0:
        return f"tensor cores take no {element}"
    if m.passes != PASSES[element] and not (m.passes == 1 and in_tf32(anchor)):
        return f"{m.passes} passes lose precision that nobody gave up, or none"
    majors = {m.left.major, m.right.major}
    turned = "mn" in majors and (
        element.itemsize == 1 or (element.itemsize == 4 and m.instruction == "wgmma")
    )
    return "an operand does not lie along k" if turned else None


def _check_tile(c: Checked, m: Matmul) -> None:
    """Checks that a block of columns is whole vectors, a thread's stack has room for the sums, and the tiles can read the operands in
    that way."""
    anchor = c.anchor
    assert isinstance(anchor, Compute)
    if anchor.body.dtype not in COMPUTED or m.instruction not in ("dot", "outer", "words"):
        fail(f"{c.stage.name}: no tiles compute {anchor.out.name} by {m.instruction}")
    tiles = tiles_of(c.view.site(c.step), anchor, m)
    if m.instruction == "words" and (why := why_not_words(m, tiles.element, c.target)):
        fail(f"{c.stage.name}: no words of {anchor.out.name} are multiplied so: {why}")
    narrow = {x.dtype.itemsize for x in factors(anchor)} == {1}
    in_place = m.instruction == "dot" and m.left.copy == m.right.copy == "direct"
    if anchor.body.dtype is DType.I32 and not (narrow and (in_place or m.instruction == "words")):
        fail(f"{c.stage.name}: tiles sum {anchor.out.name} in integers of bytes that lie along k")
    size, (rows, columns) = anchor.body.dtype.itemsize, m.sums or (m.block_m, m.block_n)
    if m.instruction == "outer" and m.block_n * size % c.target.vector_bytes:
        fail(f"{c.stage.name}: {m.block_n} columns of {anchor.out.name} are no whole vectors")
    if min(rows, columns) < 1 or rows % m.block_m or columns % m.block_n:
        fail(f"{c.stage.name}: {rows} x {columns} sums of {anchor.out.name} are no whole blocks")
    many = rows > round_up(ROWS, m.block_m)
    last = (rows - m.block_m) * columns if many else rows * (columns - m.block_n)
    if last * size > SUMS_BYTES:
        fail(f"{c.stage.name}: {rows} x {columns} sums of {anchor.out.name} are too many")
    lines = Lines(c.view)
    if why := why_not_read(tiles, lines):
        fail(f"{c.stage.name}: the operands of {anchor.out.name} cannot be read so: {why}")
    if apart := m.ahead("block", "right"):
        panel = panel_prefetch(tiles, first_sides(tiles, lines)[1], m.right.copy)
        if panel is None or not panel.fits(apart):
            fail(f"{c.stage.name}: no lines of {anchor.out.name}'s next panel lie so")


def _check_rows(c: Checked, m: MatmulRows) -> None:
    """Checks that the epilogue works row by row, and a task is a block of whole rows."""
    stage, step, anchor = c.stage, c.step, c.anchor
    if sorted(m.order) != sorted(step.computes) or m.order[0] != anchor.out.name:
        fail(f"{stage.name}: its order of evaluation is of other computes than its own")
    assert isinstance(anchor, Compute)
    found = rowwise([s for n in m.order if isinstance(s := c.statements[n], Compute)], anchor)
    wide = [found is not None and found.wide(found.by_name(n)) for n in step.computes]
    if found is None or wide != [k >= step.anchor for k in range(len(wide))]:
        fail(f"{stage.name}: what follows {anchor.out.name} does not work row by row")
        return
    columns = step.dims[m.n]
    if m.match != found.names or columns.axes != tuple(range(found.rows, len(anchor.axes))):
        fail(f"{stage.name}: the rows of {anchor.out.name} are not those that its method says")
    if columns.tile < columns.extent or several_blocks(step, {m.m: m.block_m, m.n: m.columns}):
        fail(
            f"{stage.name}: a row of {anchor.out.name} has several tasks, or a task several blocks"
        )
    if m.lanes > c.target.warp or m.lanes & (m.lanes - 1) or m.runs > 1:
        fail(f"{stage.name}: {m.lanes} lanes, {m.runs} runs")
    if m.vector not in (1, 2, 4) or found.span[-1] % m.vector:
        fail(f"{stage.name}: the vectors of {anchor.out.name} do not fit")
    possible = moments(found).items() if even(math.prod(found.span), m, c.target) else ()
    if not set(possible).issuperset(m.moments):
        fail(f"{stage.name}: {m.moments[0][0]} cannot be found in one pass with a sum")


def _why_not_ahead(m: Matmul, c: Checked) -> str | None:
    for side, read in operands(c.step, c.statements).items():
        if m.ahead("handoff", side) and (c.step != c.stage.steps[0] or not c.stage.late):
            return "it does not wait late, in that step"
        if m.ahead("handoff", side) and not {x.tensor.name for x in read} <= c.steady:
            return "what it reads may be made in this launch"
    return None


def _why_not_following(m: Matmul, c: Checked) -> str | None:
    if len(c.stage.steps) > 1 or m.slices > 1 or m.teams > 1:
        return "it has several steps, slices or teams"
    anchor = sums_of(c.step, c.statements)[0]
    chunks = -(-math.prod(anchor.reduce[p].extent for p in m.k) // m.block_k)
    if m.following >= m.depth or m.following > chunks:
        return f"{m.following} of {chunks} chunks in a ring of {m.depth}"
    if several_blocks(c.step, {m.m: m.block_m, m.n: m.columns}):
        return "a task has several blocks"
    return None


def bounded(anchor: Compute, method: Method, target: Target) -> bool:
    """On the CPU, where one thread loops over all of K. For warps, if K ends at different places for each matrix of a batch, or of many
    rows; few rows with one end for all belong to a cache, which reductions handle faster."""
    assert isinstance(method, Matmul)
    if len(anchor.reduce) != 1 or not target.has.lockstep:
        return len(anchor.reduce) == 1
    x, found = anchor.live_along(anchor.reduce[0]), contraction(anchor)
    if x is None or found is None or x.first is not None or method.runs > 1:
        return False
    return bool(x.at) or math.prod(anchor.axes[p].extent for p in found.m) >= MANY_ROWS


def why_not_late(stage: Stage, statements: Statements) -> str | None:
    """A product may wait late if the addresses of its operands are known before the hand-off."""
    first = stage.steps[0]
    m = first.method
    assert isinstance(m, Matmul)
    if several_blocks(first, {m.m: m.block_m, m.n: m.columns}):
        return "a task has several blocks"
    return looks_up(first, statements)
