"""Decoding with language models: one token with a static cache, whole answers, prompts; beside PyTorch on the same cache.

    python -m bench.decoding [CASE ...] [--rival eager|compile|max-autotune]... [--out FILE]

Each time stands beside what its bytes take at the bandwidth of device memory as measured in the same run: all parameters but
embeddings that are only looked up, and the live part of the cache. An answer is compared with float32 first.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

import monotile
from bench.harness import command, graph_timing, rival, timed
from bench.zoo.audio import WhisperToken, whisper_token
from bench.zoo.causal import SHAPES, causal
from bench.zoo.decoders import gpt2, llama_1b
from monotile.compare.results import Entry, Floor, Timing
from monotile.generation.decoder import Decoder
from monotile.generation.layers import put, tensors_of
from monotile.packing.layer import PackedEmbedding, PackedLinear
from monotile.runtime.accuracy import error
from monotile.runtime.measure import measure

PROMPT, ANSWER = 32, 128  # tokens


class Case(NamedTuple):
    """make: of the model. capacity, position: of the cache, and of the token that is read; position 0: a whole answer; less: a prompt of so many.
    arranged: parameters lie as our kernel reads them, for rivals too. cache: how keys and values are stored, for rivals too."""

    make: Callable[[torch.dtype], nn.Module]
    dtype: torch.dtype
    capacity: int
    position: int
    arranged: bool = False
    cache: str | None = None


def shaped(name: str) -> Callable[[torch.dtype], nn.Module]:
    """A model of `bench.zoo.causal`."""
    return lambda dtype: causal(name, dtype)


def llama(dtype: torch.dtype) -> nn.Module:
    return llama_1b(dtype, max_position_embeddings=8192)[0]


def llama_long(dtype: torch.dtype) -> nn.Module:
    return llama_1b(dtype, max_position_embeddings=32768)[0]


def gpt2_xl(dtype: torch.dtype) -> nn.Module:
    return gpt2(dtype, layers=48, n_embd=1600, n_head=25)[0]


def packed(
    make: Callable[[torch.dtype], nn.Module], kind: str, *, embeddings: bool = False
) -> Callable[[torch.dtype], nn.Module]:
    """The model with its linear layers packed; a head that is tied to the embedding, and that, if `embeddings`."""
    return lambda dtype: monotile.pack(make(dtype), kind, embeddings=embeddings, inplace=True)


CASES = {
    **{name: Case(shaped(name), torch.bfloat16, 1024, 511) for name in SHAPES},
    "llama_1b": Case(llama, torch.bfloat16, 1024, 511),
    "llama_1b_int4": Case(packed(llama, "int4"), torch.bfloat16, 1024, 511),
    "llama_1b_int8": Case(packed(llama, "int8"), torch.bfloat16, 1024, 511),
    "llama_1b_fp8": Case(packed(llama, "fp8"), torch.bfloat16, 1024, 511),
    "llama_1b_int4_head": Case(packed(llama, "int4", embeddings=True), torch.bfloat16, 1024, 511),
    "llama_1b_int8_head": Case(packed(llama, "int8", embeddings=True), torch.bfloat16, 1024, 511),
    "llama_1b_fp8_head": Case(packed(llama, "fp8", embeddings=True), torch.bfloat16, 1024, 511),
    "llama_8b_int4": Case(packed(shaped("llama_8b"), "int4"), torch.bfloat16, 1024, 511),
    "llama_8b_int8": Case(packed(shaped("llama_8b"), "int8"), torch.bfloat16, 1024, 511),
    "llama_8b_fp8": Case(packed(shaped("llama_8b"), "fp8"), torch.bfloat16, 1024, 511),
    "llama_1b_4000": Case(llama, torch.bfloat16, 4096, 4000),
    "llama_1b_4000_fp8_cache": Case(llama, torch.bfloat16, 4096, 4000, cache="fp8"),
    "llama_1b_32000": Case(llama_long, torch.bfloat16, 32768, 32000),
    "llama_1b_32000_int8_cache": Case(llama_long, torch.bfloat16, 32768, 32000, cache="int8"),
    "llama_1b_32000_fp8_cache": Case(llama_long, torch.bfloat16, 32768, 32000, cache="fp8"),
    "llama_1b_answer": Case(llama, torch.bfloat16, 1024, 0),
    "llama_1b_prompt": Case(llama, torch.bfloat16, 1024, -128),
    "llama_1b_prompt_512": Case(llama, torch.bfloat16, 4096, -512),
    "llama_1b_prompt_2000": Case(llama, torch.bfloat16, 4096, -2000),
    "olmoe_7b_prompt_512": Case(shaped("olmoe_7b"), torch.bfloat16, 4096, -512),
    "gpt2": Case(lambda dtype: gpt2(dtype)[0], torch.float16, 1024, 511),
    "gpt2_arranged": Case(lambda dtype: gpt2(dtype)[0], torch.float16, 1024, 511, arranged=True),
    "gpt2_xl": Case(gpt2_xl, torch.float16, 1024, 511),
    "whisper_base": Case(lambda dtype: whisper_token(dtype)[0], torch.float16, 448, 200),
}
CACHES = ("key_cache", "value_cache", "key_scales", "value_scales")
STATES = ("conv_states", "recurrent_states")  # of which a token reads and writes all


def floor(decoder: Decoder | WhisperToken, case: Case, rate: float) -> Floor:
    """The bytes of a token: weights, keys and values up to it, and all of those that it crosses."""
    looked_up = [decoder.decoder.embed_positions.weight] if isinstance(decoder, WhisperToken) else _apart(decoder.model)  # fmt: skip
    held = sum(p.nbytes for p in decoder.parameters() if not any(p is x for x in looked_up))
    held += sum(
        b.nbytes
        for m in decoder.modules()
        if isinstance(m, PackedLinear)
        for b in m.packed.values()
    )
    own, states, cross = (
        sum(b.nbytes for n, b in decoder.named_buffers() if n.startswith(names))
        for names in (CACHES, STATES, ("cross_keys", "cross_values"))
    )
    total = held + own * max(case.position, 1) // case.capacity + 2 * states + cross
    return Floor(total, 2 * held // case.dtype.itemsize, total / rate * 1e6)


def _known(name: str, b: torch.Tensor) -> torch.Tensor:
    """What lies in a cache: normal numbers, as they are stored."""
    if "scales" in name:
        return torch.full_like(b, 1 / 32)
    x = torch.randn(b.shape, device=b.device)
    return (x * 32).clamp(-127, 127).round() if b.dtype is torch.int8 else x


def _apart(model: Any) -> list[torch.Tensor]:
    """An embedding that is not the head's weight as well."""
    table = model.get_input_embeddings()
    if isinstance(table, PackedEmbedding):  # its table is counted where it is a PackedLinear too
        return []
    weight = table.weight
    return [] if model.get_output_embeddings().weight is weight else [weight]


def one_token(case: Case, rivals: tuple[str, ...], rate: float, device: torch.device) -> dict[str, Any]:  # fmt: skip
    """A token at its position, every call in a CUDA graph."""
    with device:
        made = case.make(case.dtype)
        decoder = (
            made if isinstance(made, WhisperToken) else Decoder(made, 1, case.capacity, case.cache)
        )
    for name, b in decoder.named_buffers():
        if name.startswith(CACHES):
            b.copy_(_known(name, b))
    call = {
        "input_ids": torch.full((1, 1), 17, device=device),
        "cache_position": torch.tensor([case.position], device=device),
    }
    with torch.no_grad():
        right = rebound(copy.deepcopy(decoder).float())(**call)
        options = monotile.Options(arrange_parameters=case.arranged)
        fast, took = timed(lambda: monotile.compile(decoder, (), kwargs=call, options=options))
        runs: dict[str, Callable[[], Any]] = {"ours": lambda: fast(**call)}
        for name in rivals:
            other = rival(name, decoder)
            runs[name] = lambda other=other: other(**call)
        held = {n: b.clone() for n, b in decoder.named_buffers() if n.startswith(STATES)}
        errors = {}
        for name, run in runs.items():
            for n, b in decoder.named_buffers():
                if n in held:
                    b.copy_(held[n])
            errors[name] = error(run().float(), right)
        del right
        times = {n: graph_timing(run, device, took if n == "ours" else None) for n, run in runs.items()}  # fmt: skip
    return {
        "ours": times.pop("ours"), "rivals": times, "errors": errors, "floor": floor(decoder, case, rate),
    }  # fmt: skip


def rebound(wide: Any) -> Any:
    """A copied decoder whose cache has the copied buffers."""
    if isinstance(wide, WhisperToken):
        both = (
            (wide.cache.self_attention_cache, {}),
            (wide.cache.cross_attention_cache, {"key_cache": "cross_keys", "value_cache": "cross_values"}),
        )  # fmt: skip
    else:
        both = ((wide.cache, {}),)
    for cache, names in both:
        for i, layer in enumerate(cache.layers):
            for name in tensors_of(layer):
                held = getattr(wide, f"{names.get(name, name)}_{i}", None)
                if held is not None:
                    put(layer, name, held)
    return wide


def answer(case: Case, rate: float, device: torch.device) -> dict[str, Any]:
    """Microseconds for each token of whole calls; transformers' eager `generate` beside it."""
    with device:
        model = case.make(case.dtype)
    lm, took = timed(lambda: monotile.generator(model, case.capacity))
    ids = torch.randint(0, 1000, (1, PROMPT), device=device)
    ours = lm.generate(ids, ANSWER, eos_token_id=[])

    def theirs() -> Any:
        return model.generate(
            ids, max_new_tokens=ANSWER, do_sample=False, eos_token_id=None, pad_token_id=0
        )  # type: ignore[operator]

    same = (ours[0] == theirs()[0, : ours.shape[1]]).float().mean().item()
    both = [measure(run, device, 1.0, 3) for run in (lambda: lm.generate(ids, ANSWER, eos_token_id=[]), theirs)]  # fmt: skip
    each = [
        Timing(t.median * 1e6 / ANSWER, None, compiling, None, t.samples, None)
        for t, compiling in zip(both, (took * 1e6, None), strict=True)
    ]
    return {
        "ours": each[0], "rivals": {"transformers": each[1]},
        "errors": {"ours": 1 - same, "transformers": 0.0}, "floor": floor(lm.decoder, case, rate),
    }  # fmt: skip


class Prompt(nn.Module):
    """A model that reads a prompt, as it does for the first token of an answer: logits, and the keys of each layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        found = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        return found.logits, [x for y in found.past_key_values.layers for x in (y.keys, y.values)]


def prompt(
    case: Case, rivals: tuple[str, ...], rate: float, device: torch.device
) -> dict[str, Any]:
    """A whole prompt into the cache; rivals are compiled for its length, and compute logits of its last token too."""
    with device:
        model = case.make(case.dtype)
    count = -case.position
    lm = monotile.generator(model, case.capacity)
    assert lm.reader is not None
    ids = torch.randint(0, 1000, (case.capacity,), device=device)
    given, whole = lm.reader.bounds(0, count, device), Prompt(model)
    with torch.no_grad():
        kernel = lm.reader.kernel
        runs: dict[str, Callable[[], Any]] = {"ours": lambda: kernel(ids, *given)}
        for name in rivals:
            other = rival(name, whole)
            runs[name] = lambda other=other: other(ids[None, :count])
        times = {n: graph_timing(run, device) for n, run in runs.items()}
        theirs = whole(ids[None, :count])[1][6]
    off = error(lm.decoder.key_cache_3[0, :, :count].float(), theirs[0].float())
    return {
        "ours": times["ours"], "rivals": {n: times[n] for n in rivals},
        "errors": {"ours": off} | dict.fromkeys(rivals, 0.0), "floor": floor(lm.decoder, case, rate),
    }  # fmt: skip


def entry(name: str, rivals: tuple[str, ...], rate: float, device: torch.device) -> Entry:
    case = CASES[name]
    if case.position > 0:
        found = one_token(case, rivals, rate, device)
    else:
        found = answer(case, rate, device) if case.position == 0 else prompt(case, rivals, rate, device)  # fmt: skip
    where = {"capacity": case.capacity, "position": case.position}
    dtype = str(case.dtype).removeprefix("torch.")
    return Entry(model=name, arguments=where, dtype=dtype, **found)


def entries(
    names: tuple[str, ...], rivals: tuple[str, ...], device: torch.device, rate: float
) -> Iterator[tuple[str, Callable[[], Entry]]]:
    for name in names:
        yield name, lambda name=name: entry(name, rivals, rate, device)


NOTES = "'errors' of answers: part of the ids that differ from transformers'; of prompts: keys of a layer against eager"
main = command(CASES, NOTES, entries)


if __name__ == "__main__":
    main()
