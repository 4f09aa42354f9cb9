// Failures that the host must hear of.
#pragma once
#include "cuda/types.cuh"

extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned line,
                                        const char* function, decltype(sizeof(0)) char_size);

namespace mt {

__device__ __noinline__ void fail(const char* message) {
  __assertfail(message, "", 0, "monotile", 1);
}

}  // namespace mt
