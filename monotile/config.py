"""The options of a compilation, all in one place.

Every field enters the key of the on-disk cache except those in `NOT_IN_CACHE_KEY`.
"""

import msgspec

NOT_IN_CACHE_KEY = frozenset({"cache", "cache_dir", "dump_dir", "progress"})


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to compile.

    fast_math:         approximate division, square root and transcendental functions.
    excess_precision:  values inside a fused expression stay in float32 where PyTorch would round them
                       to float16 or bfloat16 in between.
    roll:              find repeated layers and unrolled recurrences and emit them once.
    arrange_parameters: move the model's parameters in memory, as `module.to(memory_format=...)` does, to the order in
                       which the kernel reads them fastest (CUDA); shapes, values and the module's own use stay.
    workers:           resident thread blocks (CUDA) or threads (CPU); None: all that the target has.
    cache:             look up and store binaries on disk.
    cache_dir:         where; None: `$MONOTILE_CACHE_DIR`, else the user's cache directory.
    profile:           the kernel also writes down when each worker began and ended each of its tasks, for
                       `CompiledModule.profile`; it is somewhat slower.
    dump_dir:          write the product of every compilation step to this directory.
    progress:          show progress on standard error for steps that take over a second.
    """

    fast_math: bool = False
    excess_precision: bool = True
    roll: bool = True
    arrange_parameters: bool = False
    workers: int | None = None
    profile: bool = False
    cache: bool = True
    cache_dir: str | None = None
    dump_dir: str | None = None
    progress: bool = False
