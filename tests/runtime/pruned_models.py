"""Small models with pruned channels, heads and features, and what is to be kept of each class."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
)

Kept = list[tuple[int, int]]
Model = tuple[nn.Module, tuple[Tensor, ...], Kept]


def seeded(make: Callable[[], Model]) -> Model:
    """In eval mode, with the same parameters each time."""
    torch.manual_seed(0)
    with torch.no_grad():
        model, args, kept = make()
    return model.eval(), args, kept


def bert() -> Model:
    """Half of the heads, by columns of what follows them, and of the features between, by the same."""
    config = BertConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, vocab_size=50, max_position_embeddings=16
    )  # fmt: skip
    model = BertModel(config)
    for layer in model.encoder.layer:
        for linear in (
            layer.attention.self.query,
            layer.attention.self.value,
            layer.intermediate.dense,
        ):
            linear.bias.normal_()
        heads = torch.randperm(4)[:2]
        layer.attention.output.dense.weight.view(64, 4, 16)[:, heads] = 0
        layer.output.dense.weight[:, torch.randperm(128)[:64]] = 0
    return model, (torch.randint(0, 50, (2, 8)),), [(2, 4)] * 3 + [(64, 128)] * 3


def encoder(layers: int = 2) -> Model:
    """PyTorch's own, whose projections are one weight: heads without values, features that are made of nothing."""
    layer = nn.TransformerEncoderLayer(
        64, 4, 128, batch_first=True, activation="gelu", norm_first=True
    )
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    for one in model.layers:
        assert isinstance(one, nn.TransformerEncoderLayer)
        one.self_attn.in_proj_weight[128:160] = 0
        one.self_attn.in_proj_bias[128:160] = 0
        one.linear1.weight[::2] = 0
        one.linear1.bias[::2] = 0
    return model, (torch.randn(2, 16, 64),), [(2, 4)] * layers + [(64, 128)] * layers


class _Block(nn.Module):
    """A residual block; the channels between its convolutions are its own."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, inner, 1, bias=False)
        self.second = nn.Conv2d(inner, inner, 3, padding=1, bias=False, groups=inner)
        self.third = nn.Conv2d(inner, channels, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (inner, inner, channels))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        y = torch.relu(self.norms[1](self.second(y)))
        return torch.relu(x + self.norms[2](self.third(y)))


def resnet() -> Model:
    """Channels whose scale is zero: removed if the shift is not positive, or if no one reads them."""
    blocks = [_Block(32, 64) for _ in range(2)]
    stem = nn.Conv2d(3, 32, 3, padding=1)
    model = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean = torch.randn(norm.num_features)
            norm.running_var = torch.rand(norm.num_features) + 0.5
            norm.weight.normal_()
            norm.bias.normal_()
    for block in blocks:
        for norm in block.norms[:2]:
            assert isinstance(norm, nn.BatchNorm2d)
            norm.weight[16:48] = 0
            norm.bias[16:48] = -norm.bias[16:48].abs()
        first = block.norms[0]
        assert isinstance(first, nn.BatchNorm2d)
        first.weight[:16] = 0  # a constant above zero, which is of use
        first.bias[:16] = 1
    model[0].weight[:8] = 0
    return model, (torch.randn(2, 3, 8, 8),), [(32, 64), (32, 64)]


def llama() -> Model:
    """Groups of query heads whose values are zero, features of which a factor is."""
    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4, intermediate_size=128, vocab_size=50, use_cache=False
    )  # fmt: skip
    model = LlamaModel(config)
    for layer in model.layers:
        layer.self_attn.v_proj.weight[8:24] = 0
        layer.mlp.gate_proj.weight[32:64] = 0
        layer.mlp.up_proj.weight[64:96] = 0
    return model, (torch.randint(0, 50, (2, 8)),), [(2, 4)] * 2 + [(64, 128)] * 2


def gpt2() -> Model:
    """Queries, keys and values are slices of one product."""
    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=50, n_positions=16, use_cache=False, bos_token_id=0, eos_token_id=0
    )  # fmt: skip
    model = GPT2Model(config)
    for layer in model.h:
        layer.attn.c_proj.weight[16:48] = 0
        layer.mlp.c_proj.weight[::2] = 0
    return model, (torch.randint(0, 50, (2, 8)),), [(2, 4)] * 2 + [(128, 256)] * 2


def mlp() -> Model:
    """Dead by what makes it, by what reads it, and through layers in both directions."""
    model = nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)
    )  # fmt: skip
    model[0].weight[:32] = 0
    model[0].bias[:32] = -1
    model[2].weight[:16, 32:] = 0  # made of dead features alone
    model[2].bias[:16] = 0
    model[4].weight[:32, 48:] = 0  # read by dead features alone
    model[6].weight[:, 32:] = 0
    return model, (torch.randn(4, 16),), [(32, 64)] * 3


MODELS: dict[str, Callable[[], Model]] = {
    "bert": bert,
    "encoder": encoder,
    "resnet": resnet,
    "llama": llama,
    "gpt2": gpt2,
    "mlp": mlp,
}
