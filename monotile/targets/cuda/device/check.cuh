// Failures that the host must hear of: a number goes to a word of the host's memory, and the launch ends.
//
// Not by `__assertfail`: ptxas puts every wgmma of a kernel in line with the next where any function of the system is called
// (warning C7510), which costs a tenth of a product's time.
#pragma once
#include "cuda/device/types.cuh"

// Where the host looks: its `runtime/failures.py` puts the address here when it has loaded the kernel.
extern "C" {
__device__ unsigned* mt_failure;
}

namespace mt {

// Numbers below are those of the Program's index checks.
inline constexpr u32 NO_HANDOFF = 0xfffffffe;  // a block has waited for the others for too long

__device__ __forceinline__ void fail(u32 number) { ptx::trap(mt_failure, number + 1); }

}  // namespace mt
