"""The networks whose sources `bench.sources` compares: those of the zoo and the examples, with few layers, and the small ones.

Each is `name:dtype:arguments:options`, the last two `key=value,...`; options are those of `monotile.Options`.
"""

from typing import Any

import torch

from bench.zoo import MODELS, Spec
from bench.zoo.small import SMALL
from monotile.runtime.reference import Call

# Together these have every method of the Plan, in each form that any of the networks below has.
QUICK = """
    bert_base:float16:layers=2 bert_base:float16:layers=2:profile=True gpt2:float16:layers=2,tokens=1 resnet18:float16
    gpt2:float16:layers=2,tokens=1:arrange_parameters=True lstm:float32:layers=3,steps=20 lstm:float32:layers=3,steps=20:profile=True
    lstm_unrolled:float32:layers=3,steps=7 mmoe:float16 mlp:float16 mlp:float64 mlp_one_row:float32 products_in_rounds:float16
    products_of_odd_rows:float16 columns:float16 batched_products:float32 weight_first:float16 logits:float16 gated:bfloat16 mixer:float32
    packed_weights:float16 conv_net:float32 convolutions_of_groups:float16 residual:float16 squeeze_excite:float16 conv_1d:float32
    conv_3d:float32 unet:float16 diffusion_block:float16 channels_last_image:float16 gru:float16 lstm_both_ways:float32 cells:float32
    selective_scan:float32 causal_attention:float16 causal_attention:float32 long_attention:float16 masked_attention:float16
    transformer:float16 decoder_step:float16 complex_rotary:float32 recommender:float32 top_experts:float32 messages_on_a_graph:float32
    codebook:float32 questions:float16 counter:float32 pointwise:float32 reductions:float32 reductions_of_much:float16 orders:float32
    updates:float32 lookups:float32 moves:float16 copies:float16 integers:float32
""".split()

NETWORKS = """
    bert_base:float16:layers=2 bert_base:float32:layers=2 bert_base:bfloat16:layers=2 bert_base:float16:layers=2,batch=8
    bert_base:float16:layers=2,tokens=384 bert_base:float16:layers=2:profile=True bert_base:float16:layers=2:fast_math=True
    bert_base:float16:layers=2:roll=False bert_base:float16:layers=2:excess_precision=False bert_base:float32:layers=2,tokens=1
    bert_large:float16:layers=2 roberta_base:float16:layers=2 clip_text:float16:layers=2 clip_text:float32:layers=2
    t5_base:float16:layers=2 t5_base:float32:layers=2,use_cache=False t5_base:bfloat16:layers=2,tokens=1
    gpt2:float16:layers=2 gpt2:float32:layers=2 gpt2:float16:layers=2,batch=8 gpt2:float16:layers=2,use_cache=False
    gpt2:float16:layers=2,tokens=1 gpt2:float32:layers=2,tokens=1 gpt2:bfloat16:layers=2,tokens=1,use_cache=False
    gpt2:float16:layers=2,tokens=1:arrange_parameters=True gpt2:float16:layers=2:profile=True
    opt_125m:float16:layers=2 opt_125m:float16:layers=2,tokens=1 opt_125m:float32:layers=2,use_cache=False
    llama_1b:bfloat16:layers=2 llama_1b:bfloat16:layers=2,tokens=1 llama_1b:bfloat16:layers=2,use_cache=False
    whisper_base:float16:layers=2 whisper_base:float32:layers=2 wav2vec2_base:float16:layers=2 wav2vec2_base:float32:layers=2
    vit_base:float16:layers=2 vit_base:float32:layers=2 vit_base:float16:layers=2,batch=8 clip_vision:float16:layers=2
    swin_base:float16:layers=2 swin_base:float32:layers=2 swin_base:float16:layers=2,batch=8
    resnet18:float16 resnet18:float32 resnet18:float16:batch=8 resnet50:float16 resnet50:float16:batch=8 resnet50:bfloat16
    resnet50:float16::arrange_parameters=True resnext101:float16:layers=2 resnext101:float16:layers=2,batch=8
    convnext_tiny:float16 convnext_tiny:float16:batch=8 segformer_b0:float16 segformer_b0:float32
    efficientnet_b0:float16 efficientnet_b0:float32 efficientnet_b0:float16:batch=8 mobilenet_v2:float16 mobilenet_v2:float16:batch=8
    lstm:float32:layers=3,steps=20 lstm:float32 lstm:float16 lstm:bfloat16:layers=3,steps=20 lstm:float32:layers=3,steps=20,batch=8
    lstm:float32:layers=3,steps=20:profile=True lstm:float64:layers=2,steps=5
    lstm_unrolled:float32:layers=3,steps=7 lstm_unrolled:float16 lstm_unrolled:float32:layers=3,steps=7:roll=False
    mmoe:float16 mmoe:float32 mmoe:float16:batch=8 mmoe:bfloat16:batch=32 mmoe:float32::workers=1
    mlp:float32 mlp:float16 mlp:float64 mlp:bfloat16 mlp:float32::workers=1 mlp_one_row:float32 mlp_one_row:float16
    products_in_rounds:float16 products_in_rounds:bfloat16 products_of_odd_rows:float16 products_of_odd_rows:float32
    columns:float16 columns:float32 columns:float16::arrange_parameters=True weight_first:float16 batched_products:float32 batched_products:float16
    logits:float16 logits:float32 gated:float16 gated:bfloat16 mixer:float16 mixer:float32 packed_weights:float16 packed_weights:float32
    conv_net:float32 conv_net:float16 convolutions_of_groups:float16 convolutions_of_groups:float32 residual:float16 residual:float32
    residual:float16::arrange_parameters=True squeeze_excite:float16 squeeze_excite:float32 conv_1d:float16 conv_1d:float32
    conv_3d:float32 conv_3d:float16 unet:float16 unet:float32 diffusion_block:float16 diffusion_block:float32
    channels_last_image:float16 channels_last_image:float32
    gru:float32 gru:float16 lstm_both_ways:float32 lstm_both_ways:float16 cells:float32 cells:float16 selective_scan:float32
    selective_scan:float16 causal_attention:float16 causal_attention:float32 long_attention:float16 long_attention:bfloat16
    masked_attention:float16 masked_attention:float32 transformer:float16 transformer:float32 decoder_step:float16 decoder_step:float32
    complex_rotary:float32 complex_rotary:float16 recommender:float32 recommender:float16 top_experts:float32 top_experts:float16
    messages_on_a_graph:float32 messages_on_a_graph:float16 codebook:float32 questions:float16 questions:float32 counter:float32
    counter:float16 pointwise:float32 pointwise:float16 pointwise:float64 reductions:float32 reductions:float16 reductions:float64
    reductions_of_much:float32 reductions_of_much:float16 orders:float32 orders:float16 updates:float32 updates:float16 lookups:float32
    moves:float32 moves:float16 copies:float16 copies:float32 resampling:float32 resampling:float16 integers:float32
""".split()


def make(text: str) -> tuple[torch.nn.Module, Call]:
    """The network, in eval mode and without gradients, and its arguments."""
    spec = Spec.parse(text)
    if spec.name in MODELS:
        return spec.make()
    model, args = SMALL[spec.name](getattr(torch, spec.dtype))
    return model, (args, {})


def options(text: str) -> dict[str, Any]:
    return Spec.parse("::" + ":".join(text.split(":")[3:])).arguments
