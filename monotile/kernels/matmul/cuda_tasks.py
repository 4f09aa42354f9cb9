"""Stages with a single product whose step loops over the worker's tasks itself: teams of threads that alternate, or prefetches of the next
task's operands."""

from monotile.codegen.block import READY, BlockEmitter
from monotile.codegen.stages import product
from monotile.kernels.matmul.cuda import TaskSequence, write_operands, write_product
from monotile.kernels.matmul.cuda_operands import product_site
from monotile.kernels.matmul.method import Matmul
from monotile.plan.nodes import Stage


def write_tasks(e: BlockEmitter, stage: Stage, axes: tuple[str, ...]) -> bool:
    """Writes the stage's function, if the stage is of this kind."""
    method = stage.steps[0].method
    if method.teams > 1:
        _teams(e, stage, axes)
    elif method.ahead("task"):
        _in_a_row(e, stage, axes)
    return method.teams > 1 or method.ahead("task") > 0


def _teams(e: BlockEmitter, stage: Stage, axes: tuple[str, ...]) -> None:
    """The function with teams of threads that take the tasks in turn. A profile records the time of all teams as one."""
    workers = e.plan.launch.workers
    teams = stage.steps[0].method.teams
    with e.function(stage.name, axes, e.passed):
        w = e.writer
        w.define("scratch")
        w.write("char* const scratch = mt::ptx::shared_memory();")
        w.write(f"const idx first = {e.first_task(stage)};")
        grid = e.grid(stage)
        tasks = product(grid)
        with e.profiling.task(w, stage, "first"):
            each = e.plan.launch.threads // teams
            w.write(f"const idx team = mt::ptx::uniform(threadIdx.x / {each});")
            loop = f"for (idx task = first + team * {workers}; task < {tasks}; task += {workers * teams})"
            with w.open(loop, ["task"], fence=True):
                e.write_coordinates(grid)
                e.write_prefetches(stage)
                for site in e.sites(stage):
                    e.step(site)
            w.write("mt::block_barrier();")


def _in_a_row(e: BlockEmitter, stage: Stage, axes: tuple[str, ...]) -> None:
    """The function whose tasks prefetch the operands of the next one."""
    workers = e.plan.launch.workers
    step = stage.steps[0]
    assert isinstance(step.method, Matmul)
    given = e.passed | ({"grid": "const mt::GridBarrier"} if stage.late else {})
    with e.function(stage.name, axes, given):
        w = e.writer
        w.define("scratch")
        w.write("char* const scratch = mt::ptx::shared_memory();")
        grid = e.grid(stage)
        tasks = product(grid)
        head = "auto operands = [&](idx task, auto&& use)"
        with w.open(head, ["task", "use"], fence=True, tail=";"):
            e.write_coordinates(grid)
            (sides,) = [write_operands(e, product_site(s, step.method)) for s in e.sites(stage)]
        w.write(f"const idx first = {e.first_task(stage)};")
        if stage.late and stage.live:  # a worker may have no task
            with w.open(f"if (first >= {tasks})", fence=True):
                w.write(e.await_text())
        loop = f"for (idx task = first; task < {tasks}; task += {workers})"
        with w.open(loop, ["task"], fence=True):
            w.write("const bool prefetched = task != first;")
            e.write_coordinates(grid)
            with e.profiling.task(w, stage):
                await_ = (
                    f"[&] {{ if (!prefetched) {{ {e.await_text()} }} }}" if stage.late else READY
                )
                sequence = TaskSequence(sides, tasks, workers)
                for site in e.sites(stage):
                    write_product(e, product_site(site, step.method), await_, sequence)
