"""The tables of passes: consistent, valid after each pass, dumped, traced; and Plans that are given instead."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import monotile
from monotile import pipeline
from monotile.compile import trace
from monotile.errors import InternalError, PlanError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.ir.verify import verify as verify_program
from monotile.passes.plans import PlanState
from monotile.passes.programs import ProgramState
from monotile.passes.table import NOTHING, Pass, Trace, capability, checked, option
from monotile.pipeline import PLANS, PROGRAMS, lower, schedule, to_plan
from monotile.plan.check.given import check_given, load_plan
from monotile.plan.check.structure import verify as verify_plan
from monotile.plan.nodes import Plan, Stage
from monotile.plan.places import Workspace
from monotile.plan.walk import stages_in
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from tests.cli.test_cli import invoke
from tests.models.control_networks import cases
from tests.transform.test_update_tables import WIDTH, Remembers

OPTIONS = monotile.Options(cache=False, arrange_parameters=True)
TARGETS = (cpu_target(workers=2), cuda_target("sm_80"), cuda_target("sm_90a"))


class Layers(nn.Module):
    """Three alike, each a normalisation, two products and a gate; every layer's result is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.ups = nn.ModuleList(nn.Linear(32, 64) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(32, 64) for _ in range(3))
        self.downs = nn.ParameterList(torch.randn(64, 32) / 8 for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept: list[torch.Tensor] = []
        for norm, up, gate, down in zip(self.norms, self.ups, self.gates, self.downs, strict=True):
            y = norm(x)
            x = x + (up(y) * torch.sigmoid(gate(y))) @ down
            kept.append(x)
        return x.mean(0), *kept


class Attention(nn.Module):
    """Of two heads, with a bias of positions that depends on constants alone and is a result as well."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(32, 96)
        self.register_buffer("far", torch.arange(16.0)[:, None] - torch.arange(16.0), False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = self.mix(x).view(16, 3, 2, 16).permute(1, 2, 0, 3)
        bias = torch.exp(-self.far.abs()).to(x.dtype)
        y = nn.functional.scaled_dot_product_attention(q, k, v, bias)
        return torch.relu(y.transpose(0, 1)) + 1, bias


class Counter(nn.Module):
    """Buffers that each call updates, one at a position from data; and a changed copy of what the caller holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8, 4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.seen[at] = x
        self.calls += 1
        y = torch.cat([x, x + 1]).index_add(0, at, x)
        return self.seen.sum(0) * self.calls, y, x.index_add(0, at % 2, x)


def layers() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Layers().half(), (torch.randn(16, 32).half(),)


def recurrent() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.LSTM(16, 16, 2), (torch.randn(8, 1, 16),)


def images() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 1, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return model.half(), (torch.randn(1, 3, 32, 32).half(),)


def attention() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Attention().half(), (torch.randn(16, 32).half(),)


def counter() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Counter(), (torch.randn(2, 4), torch.tensor([1, 5]))


def choices() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model, calls = cases()["skip"]
    return model, calls[0]


def loops() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model, calls = cases()["nested"]
    return model, calls[0]


def caches() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Remembers("rows"), (torch.randn(1, WIDTH), torch.tensor([2]))


def gated() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU()), (torch.randn(1, WIDTH),)


NETWORKS = (layers, recurrent, images, attention, counter, choices, loops, caches, gated)
Network = Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]


def beginning(network: Network, target: Target) -> ProgramState:
    torch.manual_seed(0)
    model, args = network()
    captured = capture(export(model.eval(), args, None))
    held = frozenset(captured.parameters)
    return ProgramState(captured.program, OPTIONS, target, captured.constants, held)


def planned(s: ProgramState) -> PlanState:
    assert s.target is not None
    return PlanState.of(s.program, s.target, s.options, s.context)


# The tables.


def a_pass(name: str, **kw: object) -> Pass[ProgramState]:
    found: Pass[ProgramState] = Pass(name, lambda s: s, "For a test.")
    return replace(found, **kw)


def test_the_tables_are_consistent() -> None:
    assert checked(PROGRAMS) == PROGRAMS
    assert checked(PLANS, before=PROGRAMS) == PLANS


ROLL, WIDE = option("roll"), capability("many_workers")
MAKES = a_pass("makes", sets=("made",))
MAY_MAKE = a_pass("may_make", sets=("made",), where=(ROLL,))
TAKES = a_pass("takes", needs=("made",))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ((TAKES,), 'takes needs "made", which no pass before it sets'),
        ((TAKES, MAKES), 'takes needs "made", which no pass before it sets'),
        ((MAY_MAKE, TAKES), "may_make may be left out where takes is not"),
        ((MAY_MAKE, a_pass("takes", needs=("made",), where=(WIDE,))), "may be left out"),
        ((a_pass("later", after=("made",)), MAKES), "which no pass before it sets"),
        ((MAKES, MAKES), "two passes are called makes"),
        ((a_pass("mute", why=""),), "mute does not say why"),
    ],
)
def test_broken_tables_are_refused(table: tuple[Pass[ProgramState], ...], message: str) -> None:
    with pytest.raises(InternalError, match=message):
        checked(table)


def test_what_may_be_left_out() -> None:
    both = a_pass("takes", needs=("made",), where=(WIDE, ROLL))
    assert checked((MAY_MAKE, both, a_pass("last", after=("made",))))
    assert both.left_out(TARGETS[0], OPTIONS) == "no capability many_workers"
    assert both.left_out(None, OPTIONS) == "no capability many_workers"
    assert both.left_out(TARGETS[1], monotile.Options(roll=False)) == "option roll is off"
    assert both.left_out(TARGETS[1], OPTIONS) == ""


# Each product is valid.


def check_plan_state(s: PlanState) -> None:
    """What can be said of a Plan that is not finished; from `settle_methods` on it is one that is valid."""
    drafts = list(pipeline.plans.drafts_of(s.tree))
    made = [x.out.name for d in drafts for x in d.group.statements()]
    assert sorted(made) == sorted(s.computes)
    for d in drafts:
        assert all(n > 0 for n in d.grid)
        assert d.shared_bytes <= s.target.shared_bytes or s.target.kind == "cpu"
    if s.memory is not None:
        assert s.places.keys() >= s.computes.keys()
        for places in s.places.values():
            assert places
            for p in places:
                assert not isinstance(p, Workspace) or p.offset < s.memory.workspace_bytes
    if s.body:
        found = [n for stage in stages_in(s.body) for step in stage.steps for n in step.computes]
        assert sorted(found) == sorted(s.computes)
        assert s.on_chip <= s.target.shared_bytes or s.target.kind == "cpu"


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_product_is_valid(network: Network, target: Target) -> None:
    done: list[str] = []

    def program(name: str, s: ProgramState) -> None:
        verify_program(s.program)
        assert s.show().startswith(("input", "weight"))
        done.append(name)

    def plan(name: str, s: PlanState) -> None:
        check_plan_state(s)
        assert s.show()
        done.append(name)
        if "settle_methods" in done:
            verify_plan(s.as_plan(), s.program, s.target)

    lowered = lower(beginning(network, target), program)
    found = to_plan(planned(lowered), plan)
    assert found == schedule(lowered.program, target, OPTIONS, lowered.context)
    assert done == [p.name for p in (*PROGRAMS, *PLANS) if not p.left_out(target, OPTIONS)]


# Of the passes, those that change none of these networks: what they are for is larger, or rare.
RARE = {"group_rows", "inline_decoding", "split_axes", "bound_tasks", "replicate_results", "reserve_ring", "split_keys", "bound_live", "bound_walks", "context", "iterate", "mask_stacks", "reroll_selects_again", "split_reductions", "spread_copies", "streams_first", "messages_or_weights", "specialise", "list_nonzeros", "copy_lines", "gather_kept", "narrow_products", "split_long", "pad_outputs", "pad_rows", "pad_slices", "share_equal", "round_factors", "read_parts", "merge_axes", "part_axes", "shorten_reductions", "join_reductions", "jam_loops", "list_rows", "copy_rounded", "order_sums", "distribute", "crop", "one_pass", "reassociate", "separate_terms"}  # fmt: skip


def test_a_trace_says_what_each_pass_changed() -> None:
    changed: set[str] = set()
    for network in NETWORKS:
        for target in (TARGETS[0], TARGETS[2]):
            traces: list[Trace] = []
            lowered = lower(beginning(network, target), traces=traces)
            to_plan(planned(lowered), traces=traces)
            assert [t.name for t in traces] == [p.name for p in (*PROGRAMS, *PLANS)]
            assert all(t.seconds >= 0 for t in traces)
            assert all(t.changed == NOTHING for t in traces if t.left_out)
            changed |= {t.name for t in traces if t.changed != NOTHING}
    assert {p.name for p in (*PROGRAMS, *PLANS)} - changed <= RARE


def test_messages_make_way_for_weights() -> None:
    """Where the on-chip memory holds a loop's weights, but not the messages as well."""
    room = msgspec.structs.replace(TARGETS[2], shared_bytes=67000)
    for target, wins in ((room, "weights"), (TARGETS[2], "messages")):
        traces: list[Trace] = []
        first = beginning(lambda: (nn.LSTM(1024, 1024).half(), (torch.randn(5, 1, 1024).half(),)), target)  # fmt: skip
        plan = to_plan(planned(lower(first)), traces=traces)
        (settled,) = (t for t in traces if t.name == "messages_or_weights")
        assert (settled.changed == NOTHING) == (wins == "messages")
        assert bool(plan.launch.message_bytes) == (wins == "messages")


# What is dumped and printed.


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_a_file_for_each_pass(target: str, tmp_path: Path) -> None:
    model, args = layers()
    options = monotile.Options(cache=False, dump_dir=str(tmp_path))
    monotile.compile(model.eval(), args, target=target, options=options)
    names = [p.name for p in sorted(tmp_path.iterdir())]
    assert [n[:3] for n in names] == [f"{k:02d}_" for k in range(len(names))]
    run = [t.name for ts in trace(model, args, target=target, options=options) for t in ts if not t.left_out]  # fmt: skip
    source = "source.c" if target == "cpu" else "source.cu"
    made = ["capture.txt", *(f"{name}.txt" for name in run), "plan.json", "plan.txt", source]
    assert [n[3:] for n in names] == made
    texts = {p.name[3:]: p.read_text() for p in tmp_path.iterdir()}
    assert "loop" in texts["roll.txt"]
    assert "us by the cost model" in texts["group_and_cut.txt"]
    assert texts["launch.txt"] == texts["plan.txt"]


def test_the_tables_are_printed() -> None:
    code, out = invoke("inspect", "mmoe", "--passes", "--target", "cpu")
    assert code == 0, out
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    for p in (*PROGRAMS, *PLANS):
        assert p.name in lines
    assert "left out: no capability messages" in lines["messages"]
    assert "left out: option arrange_parameters is off" in lines["arrange_parameters"]
    assert re.search(r"\d\.\d  \d+ -> \d+ statements", lines["eliminate_dead_code"])
    assert re.search(r"\d\.\d  \d+ stages", lines["group_and_cut"])
    left_out = re.findall(r"(\w+) .*left out", invoke("inspect", "mmoe", "--passes", "--target", "cuda:sm_90a")[1].partition("pad_channels")[2])  # fmt: skip
    assert not left_out


# Plans that are given.


def test_a_plan_that_is_given_is_used(tmp_path: Path) -> None:
    model, args = layers()
    model = model.float().eval()
    args = tuple(x.float() for x in args)
    options = monotile.Options(cache_dir=str(tmp_path / "cache"), workers=1)
    own = monotile.compile(model, args, target="cpu", options=options)
    path = tmp_path / "plan.json"
    path.write_text(own.plan.to_json())
    for given in (own.plan, path, str(path)):
        fast = monotile.compile(model, args, target="cpu", options=options, plan=given)
        assert (fast.source, fast.plan) == (own.source, own.plan)

    # Another valid one: with a barrier more than it needs.
    *rest, last = own.plan.body
    assert isinstance(last, Stage)
    assert last.handoff != "grid"
    waiting = msgspec.structs.replace(last, handoff="grid")
    other = msgspec.structs.replace(own.plan, body=(*rest, waiting))
    fast = monotile.compile(model, args, target="cpu", options=options, plan=other)
    assert fast.plan == other
    assert fast.source != own.source  # so the cache has not given the first one's
    for x, y in zip(fast(*args), own(*args), strict=True):
        assert torch.equal(x, y)
    again = monotile.compile(model, args, target="cpu", options=options)
    assert again.plan == own.plan


def test_plans_for_something_else_are_refused(tmp_path: Path) -> None:
    target = TARGETS[2]
    lowered = lower(beginning(layers, target))
    program, plan = lowered.program, to_plan(planned(lowered))
    check_given(plan, program, target)

    def changed(**kw: object) -> Plan:
        return msgspec.structs.replace(plan, **kw)

    def launch(**kw: object) -> Plan:
        return changed(launch=msgspec.structs.replace(plan.launch, **kw))

    another = lower(beginning(attention, target))
    cases = [
        (plan, program, TARGETS[1], "is for cuda:sm_90a, and the target is cuda:sm_80"),
        (launch(workers=7), program, target, "7 workers, and the target has 132"),
        (launch(threads=512), program, target, "512 threads, and the target's 256"),
        (plan, another.program, target, "the Plan is for another Program: of outputs, it has"),
        (changed(inputs=("y",)), program, target, "of inputs, it has y and it lacks x"),
        (changed(weights=plan.weights[::-1]), program, target, "in another order"),
        (changed(body=plan.body[1:]), program, target, "of statements, it lacks"),
        (changed(places={}), program, target, "of tensors with a place, it lacks"),
        (launch(workspace_bytes=0), program, target, "reaches past the 0 bytes of workspace"),
        (
            changed(places={n: p for n, p in plan.places.items() if "before" not in n}),
            program,
            target,
            "does not fit",
        ),
    ]
    for given, p, t, message in cases:
        with pytest.raises(PlanError, match=message):
            check_given(given, p, t)

    for content in ("no JSON", "{}", '{"target": 3}'):
        path = tmp_path / "plan.json"
        path.write_text(content)
        with pytest.raises(PlanError, match=r"plan\.json holds no Plan"):
            load_plan(path)
    with pytest.raises(PlanError, match=r"absent\.json holds no Plan"):
        monotile.compile(*layers(), target="cpu", plan="absent.json")


def test_plans_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    code, text = invoke("inspect", "mmoe", "--target", "cpu", "--workers", "1", "--show", "plan")
    assert code == 0, text
    path.write_text(text)
    for command in (("compile",), ("inspect", "--show", "stages")):
        code, out = invoke(*command, "mmoe", "--target", "cpu", "--workers", "1", "--plan", str(path))  # fmt: skip
        assert code == 0, out
    code, out = invoke("compile", "lstm", "--target", "cpu", "--workers", "1", "--plan", str(path))
    assert (code, "the Plan is for another Program" in out) == (1, True)
    assert invoke("inspect", "mmoe", "--plan", str(path), "--passes")[0] == 2
    assert invoke("inspect", "some.monotile", "--plan", str(path))[0] == 2
