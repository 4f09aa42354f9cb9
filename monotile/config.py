"""All options of a compilation.

Every field is part of the key of the on-disk cache, except those in `NOT_IN_CACHE_KEY`.
"""

import msgspec

NOT_IN_CACHE_KEY = frozenset({"cache", "cache_dir", "dump_dir", "progress"})


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to compile.

    fast_math:          use approximate division, square root and transcendental functions.
    excess_precision:   keep intermediate values of a fused expression in float32 where PyTorch would round them to float16
                        or bfloat16.
    roll:               find repeated layers and unrolled recurrences and emit each as one loop.
    arrange_parameters: have the model's parameters in the order that the kernel reads fastest. On a GPU their strides change, as by
                        `module.to(memory_format=...)`; shapes and values stay, and the module can be used as before. On the CPU the kernel
                        has copies of the weights of its products (`CompiledModule.copied_bytes`), which follow changes in place, but
                        for those through `tensor.data` and of inference tensors.
    specialise:         remove channels, heads and features that the parameters' zeros make useless (pruned models); the kernel reads
                        smaller copies of the parameters, which have to keep these zeros.
    tf32:               let products of float32 on tensor cores take their factors rounded to TF32, 10 bits of mantissa; None: where PyTorch
                        would (`torch.backends.cudnn.conv.fp32_precision`, `torch.backends.cuda.matmul.fp32_precision`, and what
                        sets these: `allow_tf32`, `set_float32_matmul_precision`), which by default is in convolutions.
    workers:            resident thread blocks (CUDA) or threads (CPU); None: all of the target.
    profile:            let the kernel record when each worker began and ended each task, for `CompiledModule.profile`;
                        it is slightly slower.
    cache:              look up and store binaries on disk.
    cache_dir:          directory of the cache; None: `$MONOTILE_CACHE_DIR`, else the user's cache directory.
    dump_dir:           write the result of every compilation step to this directory.
    progress:           report steps that take over a second on standard error.
    """

    fast_math: bool = False
    excess_precision: bool = True
    roll: bool = True
    arrange_parameters: bool = False
    specialise: bool = False
    tf32: bool | None = None
    workers: int | None = None
    profile: bool = False
    cache: bool = True
    cache_dir: str | None = None
    dump_dir: str | None = None
    progress: bool = False
