"""What capture makes of a model besides its operators: names, weights, signature, origins."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute, statements
from monotile.ir.signature import AliasLeaf, OutputLeaf, TensorLeaf, ValueLeaf
from tests.frontend.against import check


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.ones(4))
        self.register_buffer("positions", torch.arange(7), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids) + self.shift) + self.positions + torch.tensor([0.5])


def test_parameters_and_constants() -> None:
    model = Tied()
    captured = check(model, (torch.tensor([1, 2]),))
    assert set(captured.parameters) == {"embed.weight", "shift"}
    assert captured.parameters["embed.weight"].data_ptr() == model.embed.weight.data_ptr()
    assert set(captured.constants) == {"positions", "const.1"}
    np.testing.assert_array_equal(captured.constants["positions"], np.arange(7))
    parts = [p for w in captured.program.weights for p in w.parts]
    assert sorted(parts) == sorted([*captured.parameters, *captured.constants])


def test_bfloat16_constants() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(3).bfloat16(), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table

    captured = check(Model(), (torch.randn(3).bfloat16(),))
    assert captured.constants["table"].dtype.name == "bfloat16"


def test_what_is_not_needed_is_left_out() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.unused(x)
            return self.used(x).max(-1)[0]

    captured = capture(Model(), (torch.randn(2, 3),))
    assert set(captured.parameters) == {"used.weight", "used.bias"}
    kinds = [s.combiner for s in captured.program.body if isinstance(s, Compute)]
    assert "argmax" not in kinds


def test_what_the_author_checks_of_the_data_is_left_out() -> None:
    """Numbers that a check alone asks for, and what they are made of, with a lowering or without."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, shapes: torch.Tensor) -> torch.Tensor:
            torch._check_tensor_all(shapes.prod(1).sum() == x.shape[0])
            torch._check(shapes.sum().item() > 0)
            return x * 2

    captured = check(Model(), (torch.randn(6, 3), torch.tensor([[2, 1], [2, 2]])))
    assert len(captured.program.body) == 1


def test_a_number_of_data_is_a_tensor() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            k = n.sum().item()
            torch._check(k > 0)
            return x * k

    check(Model(), (torch.randn(6, 3), torch.tensor([2])))


def test_signature() -> None:
    class Model(nn.Module):
        def forward(
            self,
            x: torch.Tensor,
            pair: tuple[torch.Tensor, int],
            flag: bool = False,
            *,
            mask: torch.Tensor | None = None,
            options: dict[str, torch.Tensor] | None = None,
        ) -> dict[str, object]:
            assert options is not None
            assert flag
            y = x + pair[0] * pair[1] + options["bias"]
            return {"y": y, "x": x, "again": [y, None], "n": 3}

    args = (torch.randn(2), (torch.randn(2), 5), True)
    kwargs = {"options": {"bias": torch.randn(2)}, "mask": None}
    captured = check(Model(), args, kwargs)
    signature = captured.signature
    assert signature.names == (
        "args[0]",
        "args[1][0]",
        "args[1][1]",
        "args[2]",
        "options['bias']",
        "mask",
    )
    kinds = [type(leaf) for leaf in signature.inputs]
    assert kinds == [TensorLeaf, TensorLeaf, ValueLeaf, ValueLeaf, TensorLeaf, ValueLeaf]
    assert signature.inputs[2:4] == (ValueLeaf(5), ValueLeaf(True))
    assert signature.input_tree == pytree.tree_structure((args, kwargs))
    y, x, again, none, n = signature.outputs
    assert (y, again) == (OutputLeaf(0), OutputLeaf(0))
    assert (x, none, n) == (AliasLeaf(0), ValueLeaf(None), ValueLeaf(3))
    assert len(captured.program.outputs) == 1


def test_an_output_is_a_tensor_of_its_own() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.weight, x.clone(), x.view(3, 1)

    captured = check(Model(), (torch.randn(3),))
    given = {*captured.program.inputs, *(w.tensor for w in captured.program.weights)}
    assert given.isdisjoint(captured.program.outputs)


def test_names_are_c_identifiers_and_unique() -> None:
    class Model(nn.Module):
        def forward(self, double: torch.Tensor, i0: torch.Tensor) -> torch.Tensor:
            return torch.softmax(double + i0, -1).softmax(0)

    program = capture(Model(), (torch.randn(2, 3), torch.randn(3))).program
    names = [t.name for t in program.inputs]
    names += [s.out.name for s in statements(program.body) if isinstance(s, Compute)]
    assert all(n.isidentifier() and n not in ("double", "i0") for n in names)
    assert len(set(names)) == len(names)
    assert {"softmax", "softmax_max", "softmax_exp", "softmax_sum"} <= set(names)


def test_origins_are_the_users_lines() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)  # the line

    program = capture(Model(), (torch.randn(2, 3),)).program
    for s in program.body:
        assert s.origin.startswith("test_capture.py:")
        assert s.origin.endswith("in forward: return self.linear(x)  # the line")


def test_exported_program() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    x = torch.randn(2, 3)
    exported = torch.export.export(model, (x,))
    captured = capture(exported)
    assert captured.program == capture(model, (x,)).program
    assert set(captured.parameters) == {"0.weight", "0.bias"}


def test_capture_is_deterministic() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    assert capture(model, (x,)).program == capture(model, (x,)).program


@pytest.mark.parametrize("enabled", [False, True])
def test_autocast_and_no_grad(enabled: bool) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled), torch.no_grad():
                y = x @ x
            return y + 1

    check(Model(), (torch.randn(4, 4),))


def test_in_place_operators_on_values() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[:, 1:3] *= 2
            y[0].fill_(3.0)
            y.relu_().add_(1)
            return y

    check(Model(), (torch.randn(3, 4),))
