// Failures that the host reports: a number is stored to a word of the host's memory, and the launch ends.
//
// `__assertfail` is not used: where a kernel calls a function of the system, ptxas serialises all of its wgmma (warning C7510),
// which makes a product take a tenth more time.
#pragma once
#include "cuda/device/types.cuh"

// The address of that word, which `targets/cuda/failures.py` stores here when it has loaded the kernel.
// Of the parts in which a kernel is compiled, the one with the kernel has it.
extern "C" {
#if defined(MT_UNIT) && MT_UNIT > 0
extern
#endif
    __device__ unsigned* mt_failure;
}

namespace mt {

// Smaller numbers are those of the Program's index checks.
inline constexpr u32 HANDOFF_TIMEOUT = 0xfffffffe;  // a block has waited for other blocks for too long

__device__ __forceinline__ void fail(u32 number) { ptx::trap(mt_failure, number + 1); }

}  // namespace mt
