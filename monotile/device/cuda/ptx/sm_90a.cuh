// Instructions that came with sm_90a: matrix products of a warpgroup, four warps whose operands lie in shared memory.
#pragma once
#include "cuda/types.cuh"

namespace mt::ptx {

// A panel as wgmma sees it: lines of 128 bytes, eight of them 1024 bytes apart from the next eight, 16-byte cells permuted by XOR
// with the line's number in bits 7 to 9 of the address. A line is 64 values of k of one row, or of 64 rows (then its only ones) at
// one k. Begins at a multiple of 1024 bytes, and is read from `distance` bytes on along k.
__device__ __forceinline__ u32 panel_address(u32 address) { return (address & 0x3ffff) >> 4 | 1 << 16; }
__device__ __forceinline__ u64 panel_descriptor(u32 panel, u32 distance) {
  constexpr u32 LINES = 1024 >> 4, SWIZZLE_128 = 1u << 30;
  return u64(LINES | SWIZZLE_128) << 32 | (panel + (distance >> 4));
}

// What this thread wrote to shared memory is visible to wgmma, after the next barrier to that of others.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// c += a * b of a warpgroup, 64xN += 64x16 * 16xN; a warp has 16 rows of c, its lanes as in mma.m16n8k16, eight columns a row of c.
// B_K: whether the lines of b's panel lie along k, not along its columns, which are 64 then.
template <class T, int TN, bool B_K>
__device__ __forceinline__ void wgmma(float (&c)[TN][4], u64 a, u64 b);

#define MT_WGMMA_OF(T, B_K, TURNED, N, REGISTERS, A, B, ...)                                                \
  template <>                                                                                             \
  __device__ __forceinline__ void wgmma<T, N / 8, B_K>(float (&c)[N / 8][4], u64 a, u64 b) {              \
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                               \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " " REGISTERS ", " A ", " B    \
                 ", p, 1, 1, 0, " #TURNED ";\n}"                                                          \
                 : __VA_ARGS__                                                                            \
                 : "l"(a), "l"(b));                                                                       \
  }
#define MT_WGMMA(...) MT_WGMMA_OF(f16, true, 0, __VA_ARGS__) MT_WGMMA_OF(bf16, true, 0, __VA_ARGS__)
#define MT_WGMMA_TURNED(...) MT_WGMMA_OF(f16, false, 1, __VA_ARGS__) MT_WGMMA_OF(bf16, false, 1, __VA_ARGS__)
#define MT_SUMS(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
MT_WGMMA(16,
         "{%0, %1, %2, %3, %4, %5, %6, %7}", "%8", "%9",
         MT_SUMS(0), MT_SUMS(1))
MT_WGMMA(24,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}", "%12", "%13",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2))
MT_WGMMA(32,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}", "%16", "%17",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3))
MT_WGMMA(40,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}", "%20", "%21",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3), MT_SUMS(4))
MT_WGMMA(48,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23}", "%24", "%25",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3), MT_SUMS(4), MT_SUMS(5))
MT_WGMMA(64,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}", "%32", "%33",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3), MT_SUMS(4), MT_SUMS(5), MT_SUMS(6), MT_SUMS(7))
MT_WGMMA_TURNED(64,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}", "%32", "%33",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3), MT_SUMS(4), MT_SUMS(5), MT_SUMS(6), MT_SUMS(7))
MT_WGMMA(80,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39}", "%40", "%41",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3), MT_SUMS(4), MT_SUMS(5), MT_SUMS(6), MT_SUMS(7), MT_SUMS(8),
         MT_SUMS(9))
MT_WGMMA(96,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
         "%42, %43, %44, %45, %46, %47}", "%48", "%49",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3), MT_SUMS(4), MT_SUMS(5), MT_SUMS(6), MT_SUMS(7), MT_SUMS(8),
         MT_SUMS(9), MT_SUMS(10), MT_SUMS(11))
MT_WGMMA(128,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
         "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
         "%62, %63}", "%64", "%65",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3), MT_SUMS(4), MT_SUMS(5), MT_SUMS(6), MT_SUMS(7), MT_SUMS(8),
         MT_SUMS(9), MT_SUMS(10), MT_SUMS(11), MT_SUMS(12), MT_SUMS(13), MT_SUMS(14), MT_SUMS(15))
MT_WGMMA(160,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
         "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
         "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}", "%80", "%81",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3), MT_SUMS(4), MT_SUMS(5), MT_SUMS(6), MT_SUMS(7), MT_SUMS(8),
         MT_SUMS(9), MT_SUMS(10), MT_SUMS(11), MT_SUMS(12), MT_SUMS(13), MT_SUMS(14), MT_SUMS(15), MT_SUMS(16),
         MT_SUMS(17), MT_SUMS(18), MT_SUMS(19))
MT_WGMMA(192,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
         "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
         "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
         "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}", "%96", "%97",
         MT_SUMS(0), MT_SUMS(1), MT_SUMS(2), MT_SUMS(3), MT_SUMS(4), MT_SUMS(5), MT_SUMS(6), MT_SUMS(7), MT_SUMS(8),
         MT_SUMS(9), MT_SUMS(10), MT_SUMS(11), MT_SUMS(12), MT_SUMS(13), MT_SUMS(14), MT_SUMS(15), MT_SUMS(16),
         MT_SUMS(17), MT_SUMS(18), MT_SUMS(19), MT_SUMS(20), MT_SUMS(21), MT_SUMS(22), MT_SUMS(23))
#undef MT_SUMS
#undef MT_WGMMA
#undef MT_WGMMA_TURNED
#undef MT_WGMMA_OF

}  // namespace mt::ptx
