// Instructions that came with sm_89: conversions of 8-bit floats.
#pragma once

namespace mt::ptx {

// Two of float8_e4m3fn as two of float16.
__device__ __forceinline__ unsigned f8e4m3x2_to_f16x2(unsigned short x) {
  unsigned y;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));
  return y;
}

}  // namespace mt::ptx
