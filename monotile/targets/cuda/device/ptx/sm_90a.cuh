// Instructions that came with sm_90a: matrix products of a warpgroup, four warps whose operands lie in shared memory; copies of whole
// pieces into shared memory, and the barriers on which they arrive.
#pragma once
#include "cuda/device/float8.cuh"

namespace mt::ptx {

// A panel as wgmma reads it, in its 128-byte swizzle: lines of 128 bytes, each group of eight at a multiple of 1024 bytes, whose
// 16-byte cells are permuted by XOR with bits 7 to 9 of the address. A line is 64 values of k of one row, or of 64 rows at one k.
// In the second case each 64 rows are a block, and the blocks are `block` bytes apart. The panel begins at a multiple of 1024
// bytes. `distance`: bytes to what is read, along k.
__device__ __forceinline__ u32 panel_address(u32 address, u32 block = 16) { return (address & 0x3ffff) >> 4 | block >> 4 << 16; }
__device__ __forceinline__ u64 panel_descriptor(u32 panel, u32 distance) {
  constexpr u32 LINES = 1024 >> 4, SWIZZLE_128 = 1u << 30;
  return u64(LINES | SWIZZLE_128) << 32 | (panel + (distance >> 4));
}

// The same of a panel whose lines have 64 bytes, each group of eight at a multiple of 512, cells permuted by XOR with bits 7 and 8.
__device__ __forceinline__ u64 narrow_panel_descriptor(u32 panel, u32 distance) {
  constexpr u32 LINES = 512 >> 4, SWIZZLE_64 = 2u << 30;
  return u64(LINES | SWIZZLE_64) << 32 | (panel + (distance >> 4));
}

// All warps of a warpgroup: its threads give up registers, down to N each; or they take of what others have given up, up to N.
template <int N>
__device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N>
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// Makes this thread's writes to shared memory visible to its wgmma, and after the next barrier to those of other threads.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `PENDING` of the newest groups are under way.
template <int PENDING = 0>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Orders accesses to registers that wgmma reads or writes: none moves across this line. The compiler knows such dependences for
// memory only.
template <int N>
__device__ __forceinline__ void register_fence(float (&x)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])::"memory");
}
template <int N>
__device__ __forceinline__ void register_fence(u32 (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}
template <int N>
__device__ __forceinline__ void register_fence(u32 (&x)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i][0]), "+r"(x[i][1]), "+r"(x[i][2]), "+r"(x[i][3])::"memory");
}

// One function for each instruction. They are members of templates: NVRTC reads the bodies of those alone that are used.
template <class A, class B, int TN, bool B_K, bool ADD, class Sum, int = 0>
struct Wgmma;
template <class T, int TN, bool ADD, int = 0>
struct WgmmaLeft;

// c += a * b of a warpgroup, 64xN, over 32 bytes along k: 16 values of 16 bits, 32 of 8, 8 of 32. Integers are summed as integers; of a float
// the last 13 bits are not looked at (TF32). A warp has 16 rows of the result, in its lanes as in `mma`; c[j] is columns 8j to 8j + 7.
// B_K: the lines of b's panel lie along k; else along its columns, 64 of 16 bits to a line. Without ADD: c = a * b.
template <class A, class B, int TN, bool B_K, bool ADD = true, class Sum>
__device__ __forceinline__ void wgmma(Sum (&c)[TN][4], u64 a, u64 b) {
  Wgmma<A, B, TN, B_K, ADD, Sum>::run(c, a, b);
}
// The same with a in registers, a warp's 16 rows as in `mma`. The lines of b's panel lie along k if T is float; else along its columns.
template <class T, int TN, bool ADD = true>
__device__ __forceinline__ void wgmma(float (&c)[TN][4], const u32 (&a)[4], u64 b) {
  WgmmaLeft<T, TN, ADD>::run(c, a, b);
}
// wgmma_by_rows: the same of 16-bit floats, where the lines of a's panel lie along its rows, 64 to a line.
// wgmma_sparse: c += a * b of a warpgroup, 64xN, over 32 values of k, of whose fours along k a has two each (2:4): its narrow panel holds 16 of them, and `places`
// where they are: a lane has those of two rows, lane / 4 and 8 more in the high half, and of 16 values of k. Lanes 2 * HALF and the next one of each
// four are looked at. Both panels' lines lie along k.

#define MT_SUMS_1(R, j) "+" R(c[j][0]), "+" R(c[j][1]), "+" R(c[j][2]), "+" R(c[j][3])
#define MT_SUMS_2(R, j) MT_SUMS_1(R, j), MT_SUMS_1(R, j + 1)
#define MT_SUMS_4(R, j) MT_SUMS_2(R, j), MT_SUMS_2(R, j + 2)
#define MT_SUMS_8(R, j) MT_SUMS_4(R, j), MT_SUMS_4(R, j + 4)
#define MT_SUMS_16(R, j) MT_SUMS_8(R, j), MT_SUMS_8(R, j + 8)
#define MT_COLUMNS_8(R) MT_SUMS_1(R, 0)
#define MT_COLUMNS_16(R) MT_SUMS_2(R, 0)
#define MT_COLUMNS_24(R) MT_SUMS_2(R, 0), MT_SUMS_1(R, 2)
#define MT_COLUMNS_32(R) MT_SUMS_4(R, 0)
#define MT_COLUMNS_40(R) MT_SUMS_4(R, 0), MT_SUMS_1(R, 4)
#define MT_COLUMNS_48(R) MT_SUMS_4(R, 0), MT_SUMS_2(R, 4)
#define MT_COLUMNS_56(R) MT_SUMS_4(R, 0), MT_SUMS_2(R, 4), MT_SUMS_1(R, 6)
#define MT_COLUMNS_64(R) MT_SUMS_8(R, 0)
#define MT_COLUMNS_80(R) MT_SUMS_8(R, 0), MT_SUMS_2(R, 8)
#define MT_COLUMNS_96(R) MT_SUMS_8(R, 0), MT_SUMS_4(R, 8)
#define MT_COLUMNS_128(R) MT_SUMS_16(R, 0)
#define MT_COLUMNS_160(R) MT_SUMS_16(R, 0), MT_SUMS_4(R, 16)
#define MT_COLUMNS_192(R) MT_SUMS_16(R, 0), MT_SUMS_8(R, 16)
#define MT_COLUMNS_256(R) MT_SUMS_16(R, 0), MT_SUMS_16(R, 16)
#define MT_WGMMA_OF(A_TYPE, B_TYPE, SUM, R, SHAPE, FLAGS, B_K, ADD, TEST, N, REGISTERS, A, B, ...)         \
  template <int X>                                                                                         \
  struct Wgmma<A_TYPE, B_TYPE, N / 8, B_K, ADD, SUM, X> {                                                  \
    static __device__ __forceinline__ void run(SUM(&c)[N / 8][4], u64 a, u64 b) {                          \
      asm volatile("{\n.reg .pred p;\nsetp." #TEST ".u32 p, 0, 0;\n"                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N SHAPE " " REGISTERS ", " A ", " B ", p" FLAGS ";\n}"\
                   : MT_COLUMNS_##N(R)                                                                     \
                   : "l"(a), "l"(b));                                                                      \
    }                                                                                                      \
  };
#define MT_WGMMA_LEFT(T, SHAPE, FLAGS, ADD, TEST, N, REGISTERS, X, Y, A, B)                                \
  template <int OWN>                                                                                       \
  struct WgmmaLeft<T, N / 8, ADD, OWN> {                                                                   \
    static __device__ __forceinline__ void run(float(&c)[N / 8][4], const u32(&a)[4], u64 b) {             \
      asm volatile("{\n.reg .pred p;\nsetp." #TEST ".u32 p, 0, 0;\n"                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N SHAPE " " REGISTERS                              \
                   ", {" A "}, " B ", p" FLAGS ";\n}"                                                      \
                   : MT_COLUMNS_##N("f")                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                  \
    }                                                                                                      \
  };
#define MT_WGMMA_ROWS_OF(T, N, REGISTERS, A, B, B_ROWS)                                                    \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " " REGISTERS ", " A ", " B     \
               ", p, 1, 1, 1, " #B_ROWS ";\n}"                                                             \
               : MT_COLUMNS_##N("f")                                                                       \
               : "l"(a), "l"(b))
#define MT_WGMMA_ROWS(T, N, REGISTERS, A, B, ...)                                                          \
  template <bool B_K>                                                                                      \
  __device__ __forceinline__ void wgmma_by_rows(T, float(&c)[N / 8][4], u64 a, u64 b) {                    \
    if constexpr (B_K)                                                                                     \
      MT_WGMMA_ROWS_OF(T, N, REGISTERS, A, B, 0);                                                          \
    else                                                                                                   \
      MT_WGMMA_ROWS_OF(T, N, REGISTERS, A, B, 1);                                                          \
  }
#define MT_WGMMA_SPARSE(T, N, REGISTERS, X, Y, A, ...)                                                     \
  template <int HALF>                                                                                      \
  __device__ __forceinline__ void wgmma_sparse(T, float(&c)[N / 8][4], u64 a, u64 b, u32 places) {         \
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                               \
                 "wgmma.mma_async.sp.sync.aligned.m64n" #N "k32.f32." #T "." #T " " REGISTERS              \
                 ", " A ", p, 1, 1, 0, 0;\n}"                                                              \
                 : MT_COLUMNS_##N("f")                                                                     \
                 : "l"(a), "l"(b), "r"(places), "n"(HALF));                                                \
  }
#define MT_WGMMA_HALF(T, ...)                                                                              \
  MT_WGMMA_OF(T, T, float, "f", "k16.f32." #T "." #T, ", 1, 1, 0, 0", true, true, eq, __VA_ARGS__)         \
  MT_WGMMA_OF(T, T, float, "f", "k16.f32." #T "." #T, ", 1, 1, 0, 0", true, false, ne, __VA_ARGS__)        \
  MT_WGMMA_SPARSE(T, __VA_ARGS__)                                                                          \
  MT_WGMMA_ROWS(T, __VA_ARGS__)
#define MT_WGMMA_FLOATS(...)                                                                               \
  MT_WGMMA_HALF(f16, __VA_ARGS__) MT_WGMMA_HALF(bf16, __VA_ARGS__)                                         \
  MT_WGMMA_OF(float, float, float, "f", "k8.f32.tf32.tf32", ", 1, 1", true, true, eq, __VA_ARGS__)         \
  MT_WGMMA_LEFT(float, "k8.f32.tf32.tf32", ", 1, 1", true, eq, __VA_ARGS__)                                \
  MT_WGMMA_LEFT(float, "k8.f32.tf32.tf32", ", 1, 1", false, ne, __VA_ARGS__)                               \
  MT_WGMMA_OF(f8e4m3, f8e4m3, float, "f", "k32.f32.e4m3.e4m3", ", 1, 1", true, true, eq, __VA_ARGS__)      \
  MT_WGMMA_OF(f8e4m3, f8e4m3, float, "f", "k32.f32.e4m3.e4m3", ", 1, 1", true, false, ne, __VA_ARGS__)
#define MT_WGMMA(...)                                                                                      \
  MT_WGMMA_FLOATS(__VA_ARGS__)                                                                             \
  MT_WGMMA_OF(i8, i8, int, "r", "k32.s32.s8.s8", "", true, true, eq, __VA_ARGS__)                          \
  MT_WGMMA_OF(i8, u8, int, "r", "k32.s32.s8.u8", "", true, true, eq, __VA_ARGS__)                          \
  MT_WGMMA_OF(u8, i8, int, "r", "k32.s32.u8.s8", "", true, true, eq, __VA_ARGS__)                          \
  MT_WGMMA_OF(u8, u8, int, "r", "k32.s32.u8.u8", "", true, true, eq, __VA_ARGS__)
#define MT_WGMMA_BOTH(...)                                                                                 \
  MT_WGMMA(__VA_ARGS__)                                                                                    \
  MT_WGMMA_OF(f16, f16, float, "f", "k16.f32.f16.f16", ", 1, 1, 0, 1", false, true, eq, __VA_ARGS__)       \
  MT_WGMMA_OF(bf16, bf16, float, "f", "k16.f32.bf16.bf16", ", 1, 1, 0, 1", false, true, eq, __VA_ARGS__)
// Of values, whose columns lie along a panel's lines: as many as one has.
#define MT_WGMMA_VALUES(...)                                                                               \
  MT_WGMMA_LEFT(f16, "k16.f32.f16.f16", ", 1, 1, 1", true, eq, __VA_ARGS__)                                \
  MT_WGMMA_LEFT(bf16, "k16.f32.bf16.bf16", ", 1, 1, 1", true, eq, __VA_ARGS__)
#define MT_WGMMA_NARROW(...) MT_WGMMA(__VA_ARGS__) MT_WGMMA_VALUES(__VA_ARGS__)
MT_WGMMA_VALUES(8, "{%0, %1, %2, %3}", "%4", "%5", "%4, %5, %6, %7", "%8")
MT_WGMMA_SPARSE(f16, 8, "{%0, %1, %2, %3}", "%4", "%5", "%4, %5, %6, %7")
MT_WGMMA_SPARSE(bf16, 8, "{%0, %1, %2, %3}", "%4", "%5", "%4, %5, %6, %7")
MT_WGMMA_NARROW(16,
         "{%0, %1, %2, %3, %4, %5, %6, %7}", "%8", "%9", "%8, %9, %10, %11", "%12")
MT_WGMMA_NARROW(24,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}", "%12", "%13", "%12, %13, %14, %15", "%16")
MT_WGMMA_NARROW(32,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}", "%16", "%17", "%16, %17, %18, %19", "%20")
MT_WGMMA_FLOATS(40,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}", "%20", "%21", "%20, %21, %22, %23", "%24")
MT_WGMMA_VALUES(40,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}", "%20", "%21", "%20, %21, %22, %23", "%24")
MT_WGMMA_NARROW(48,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23}", "%24", "%25", "%24, %25, %26, %27", "%28")
MT_WGMMA_VALUES(56,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27}", "%28", "%29", "%28, %29, %30, %31", "%32")
MT_WGMMA_BOTH(64,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}", "%32", "%33", "%32, %33, %34, %35", "%36")
MT_WGMMA_VALUES(64,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}", "%32", "%33", "%32, %33, %34, %35", "%36")
MT_WGMMA(80,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39}", "%40", "%41", "%40, %41, %42, %43", "%44")
MT_WGMMA(96,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
         "%42, %43, %44, %45, %46, %47}", "%48", "%49", "%48, %49, %50, %51", "%52")
MT_WGMMA_BOTH(128,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
         "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
         "%62, %63}", "%64", "%65", "%64, %65, %66, %67", "%68")
MT_WGMMA(160,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
         "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
         "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}", "%80", "%81", "%80, %81, %82, %83", "%84")
MT_WGMMA_BOTH(192,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
         "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
         "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
         "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}", "%96", "%97", "%96, %97, %98, %99", "%100")
MT_WGMMA_BOTH(256,
         "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
         "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
         "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
         "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
         "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "
         "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "
         "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}", "%128", "%129", "%128, %129, %130, %131", "%132")
#undef MT_WGMMA
#undef MT_WGMMA_BOTH
#undef MT_WGMMA_FLOATS
#undef MT_WGMMA_HALF
#undef MT_WGMMA_LEFT
#undef MT_WGMMA_OF
#undef MT_WGMMA_ROWS
#undef MT_WGMMA_ROWS_OF
#undef MT_WGMMA_SPARSE
#undef MT_COLUMNS_8
#undef MT_COLUMNS_16
#undef MT_COLUMNS_24
#undef MT_COLUMNS_32
#undef MT_COLUMNS_40
#undef MT_COLUMNS_48
#undef MT_COLUMNS_64
#undef MT_COLUMNS_80
#undef MT_COLUMNS_96
#undef MT_COLUMNS_128
#undef MT_COLUMNS_160
#undef MT_COLUMNS_192
#undef MT_COLUMNS_256
#undef MT_SUMS_1
#undef MT_SUMS_2
#undef MT_SUMS_4
#undef MT_SUMS_8
#undef MT_SUMS_16

// A barrier in shared memory whose phases end when there were `count` arrivals and all bytes that they said to expect have come.
__device__ __forceinline__ void arrival_start(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// As so many arrivals.
__device__ __forceinline__ void arrive(u32 barrier, u32 count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Makes the starts visible to the copies that arrive there.
__device__ __forceinline__ void arrival_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void arrival_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// The barrier's phase does not end before the copies of `copy_async` that the thread has begun so far.
__device__ __forceinline__ void copy_async_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Waits for the end of the phase of that parity.
__device__ __forceinline__ void arrival_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Copies `bytes`, a multiple of 16, from global to shared memory.
__device__ __forceinline__ void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Two 16-bit floats at a time, each rounded once.
#define MT_PAIR(NAME, OP)                                                                      \
  template <class T>                                                                           \
  __device__ __forceinline__ u32 NAME(u32 a, u32 b) {                                          \
    u32 c;                                                                                     \
    if constexpr (same<T, f16>)                                                                \
      asm(OP ".rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));                              \
    else                                                                                       \
      asm(OP ".rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));                             \
    return c;                                                                                  \
  }
MT_PAIR(add_x2, "add")
MT_PAIR(sub_x2, "sub")
MT_PAIR(mul_x2, "mul")
#undef MT_PAIR
template <class T>
__device__ __forceinline__ u32 fma_x2(u32 a, u32 b, u32 c) {
  u32 d;
  if constexpr (same<T, f16>)
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Two floats rounded to T, the first one in the low half.
template <class T>
__device__ __forceinline__ u32 pair_of(float low, float high) {
  u32 both;
  if constexpr (same<T, f16>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// (a & b) ^ c in one instruction, whatever the compiler makes of two literals.
__device__ __forceinline__ u32 and_xor(u32 a, u32 b, u32 c) {
  u32 out;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}
// The bytes of `low` (0 to 3) and `high` (4 to 7) that the digits of `which` name, the lowest first.
__device__ __forceinline__ u32 bytes_of(u32 low, u32 high, u32 which) {
  u32 out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(which));
  return out;
}

}  // namespace mt::ptx
