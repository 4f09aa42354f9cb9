// Failures that the host must hear of.
#pragma once
#include "cuda/types.cuh"

namespace mt {

__device__ __noinline__ void fail(const char* message) {
  __assertfail(message, "", 0, "monotile", 1);
}

}  // namespace mt
