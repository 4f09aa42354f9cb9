// The tensor-core kernel of a warp: products of 16-bit floats, of 8-bit integers, or of float32.
#pragma once
#include "cuda/device/panel.cuh"

namespace mt {

// Addresses for ldmatrix: the 16 bytes at (row, k) of a panel, and those at constant distances from there. The permutation of a
// panel's cells depends on the line modulo 8 only. So where k runs along the line, a distance is an XOR of address bits; this needs
// panels that begin at multiples of 128 bytes.
template <class Panel>
struct Rows {
  static constexpr bool K_MAJOR = Panel::K_MAJOR;
  static constexpr int UNIT = Panel::UNIT;
  u32 base, first;
  int row, k;

  __device__ __forceinline__ Rows(const char* panel, int row, int k)
      : base(ptx::shared_address(panel)),
        first(base + (K_MAJOR ? Panel::offset(row, k / UNIT) : 0)),
        row(row),
        k(k) {}
  // rows: a multiple of 8. more: 32 bytes of k, or several times these, added to a k that lies within the first.
  __device__ __forceinline__ u32 at(int rows, int more) const {
    if constexpr (!K_MAJOR) return base + Panel::offset(k + more, (row + rows) / UNIT);
    int cells = more / UNIT;
    if constexpr (!Panel::XOR) return first + (rows * Panel::PITCH + cells) * 16;
    return (first ^ ((cells & Panel::MASK) * 16)) + (rows * Panel::PITCH + (cells & ~Panel::MASK)) * 16;
  }
};

// What a lane holds of an operand for one instruction: of 32 bytes along k, of 16 rows of the left operand, or of 8 of the right one.
// row0: the first of the warp's rows.
template <class Panel>
struct Fragments {
  static constexpr bool K_MAJOR = Panel::K_MAJOR;
  static constexpr int UNIT = Panel::UNIT;
  static_assert(K_MAJOR || sizeof(typename Panel::T) == 2, "ldmatrix turns 16-bit elements only.");
  Rows<Panel> rows;

  // LEFT: matrices of 8 rows side by side before those further along k; else the other way round.
  template <bool LEFT>
  static __device__ __forceinline__ Fragments of(const char* panel, int row0, int lane) {
    int low = lane & 7, bit3 = (lane >> 3) & 1, bit4 = lane >> 4;
    int down = LEFT ? bit3 : bit4, along = LEFT ? bit4 : bit3;
    return {Rows<Panel>(panel, row0 + down * 8 + (K_MAJOR ? low : 0), along * UNIT + (K_MAJOR ? 0 : low))};
  }
  __device__ __forceinline__ void left(u32 (&a)[4], int row, int k) const { ptx::load_matrix_x4<!K_MAJOR>(a, rows.at(row, k)); }
  template <int TN>
  __device__ __forceinline__ void right(u32 (&b)[TN][2], int k) const {
#pragma unroll
    for (int j = 0; j + 1 < TN; j += 2) {
      u32 pair[4];
      ptx::load_matrix_x4<!K_MAJOR>(pair, rows.at(j * 8, k));
      b[j][0] = pair[0], b[j][1] = pair[1], b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
    }
    if constexpr (TN % 2 == 1)  // lanes from 16 on give addresses that are not used
      ptx::load_matrix_x2<!K_MAJOR>(b[TN - 1], rows.at((TN - 1) * 8, k));
  }
};
// The same of 32-bit elements whose lines lie along the rows: word by word.
template <class Panel>
  requires(!Panel::K_MAJOR && sizeof(typename Panel::T) == 4)
struct Fragments<Panel> {
  const char* panel;
  int row, k;

  template <bool LEFT>
  static __device__ __forceinline__ Fragments of(const char* panel, int row0, int lane) {
    return {panel, row0 + lane / 4, lane % 4};
  }
  __device__ __forceinline__ u32 word(int rows, int more) const {
    int at = row + rows;
    return *reinterpret_cast<const u32*>(panel + Panel::offset(k + more, at / Panel::UNIT) + at % Panel::UNIT * 4);
  }
  __device__ __forceinline__ void left(u32 (&a)[4], int row, int k) const {
    a[0] = word(row, k), a[1] = word(row + 8, k), a[2] = word(row, k + 4), a[3] = word(row + 8, k + 4);
  }
  template <int TN>
  __device__ __forceinline__ void right(u32 (&b)[TN][2], int k) const {
#pragma unroll
    for (int j = 0; j < TN; ++j) b[j][0] = word(j * 8, k), b[j][1] = word(j * 8, k + 4);
  }
};

template <int N>
__device__ __forceinline__ void round(u32 (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = ptx::to_tf32(x[i]);
}
// What TF32 leaves of floats that are given by their bits.
template <int N>
__device__ __forceinline__ void rests(u32 (&low)[N], const u32 (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) low[i] = __float_as_uint(rest_of_tf32(__uint_as_float(x[i])));
}

// The m x n results that one warp accumulates, from chunks of k. piece: so many values of k have their own sums in three passes; 0 for all.
struct WarpTile {
  int m = 0, n = 0, k = 0, piece = 0;
};

// Computes TILE of operands in LeftPanel and RightPanel. PASSES: 1, where float32 is rounded to TF32, unless it has been; or 3, for products of float32 as those of
// its two parts of TF32, of which the product of both rests is left out. Their sums are rounded to nearest piece by piece: tensor cores cut off what a sum has no bits for.
template <class T, WarpTile TILE, class LeftPanel, class RightPanel, int PASSES = 1, bool LEFT_ROUNDED = false, bool RIGHT_ROUNDED = false>
struct Mma {
  static constexpr bool LEFT_K = LeftPanel::K_MAJOR, RIGHT_K = RightPanel::K_MAJOR;
  static constexpr int K = 32 / int(sizeof(T));  // values of k in an instruction
  static_assert(TILE.m % 16 == 0 && TILE.n % 8 == 0, "A warp's tile for mma is a multiple of 16 x 8.");
  static_assert(TILE.k % K == 0, "A chunk for mma is a multiple of 32 bytes along k.");
  static_assert(same<T, typename RightPanel::T> || (is_integer8<T> && is_integer8<typename RightPanel::T>),
                "The two operands of a product have one element type, or are 8-bit integers.");
  static_assert(PASSES == 1 || same<T, float>, "Only float32 is multiplied in parts.");
  static constexpr int TM = TILE.m / 16, TN = TILE.n / 8, PIECE = PASSES > 1 && TILE.piece > 0 ? TILE.piece : TILE.k;
  template <bool INTEGERS, class = void>
  struct SumOf {
    using type = float;
  };
  template <class V>
  struct SumOf<true, V> {
    using type = int;
  };
  using Sum = typename SumOf<is_integer8<T>>::type;

  struct Accumulator {
    Sum c[TM][TN][4];
  };

  static __device__ __forceinline__ void clear(Accumulator& acc) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc.c[i][j][e] = 0;
  }

  static __device__ __forceinline__ void add(Accumulator& acc, const Accumulator& part) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc.c[i][j][e] += part.c[i][j][e];
  }

  // m0, n0: the warp's corner inside the block.
  static __device__ __forceinline__ void step(Accumulator& acc, const char* left, const char* right,
                                              int m0, int n0, int lane) {
    if constexpr (PASSES == 1) {
      multiply(acc, left, right, m0, n0, 0, lane);
    } else {
#pragma unroll
      for (int k = 0; k < TILE.k; k += PIECE) {
        Accumulator part;
        clear(part);
        multiply(part, left, right, m0, n0, k, lane);
        add(acc, part);
      }
    }
  }

  // Of the piece from k0 on.
  static __device__ __forceinline__ void multiply(Accumulator& acc, const char* left, const char* right, int m0, int n0, int k0,
                                                  int lane) {
    const auto a_rows = Fragments<LeftPanel>::template of<true>(left, m0, lane);
    const auto b_rows = Fragments<RightPanel>::template of<false>(right, n0, lane);
#pragma unroll
    for (int k = k0; k < min_of(k0 + PIECE, TILE.k); k += K) {
      u32 a[TM][4], b[TN][2];
#pragma unroll
      for (int i = 0; i < TM; ++i) a_rows.left(a[i], i * 16, k);
      b_rows.right(b, k);
      if constexpr (same<T, float> && PASSES == 1) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
          if constexpr (!LEFT_ROUNDED) round(a[i]);
#pragma unroll
        for (int j = 0; j < TN; ++j)
          if constexpr (!RIGHT_ROUNDED) round(b[j]);
      }
      if constexpr (PASSES == 3) {
        u32 b_low[TN][2];
#pragma unroll
        for (int j = 0; j < TN; ++j) rests(b_low[j], b[j]);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
          u32 a_low[4];
          rests(a_low, a[i]);
#pragma unroll
          for (int j = 0; j < TN; ++j) ptx::mma<T, typename RightPanel::T>(acc.c[i][j], a_low, b[j]);
#pragma unroll
          for (int j = 0; j < TN; ++j) ptx::mma<T, typename RightPanel::T>(acc.c[i][j], a[i], b_low[j]);
        }
      }
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) ptx::mma<T, typename RightPanel::T>(acc.c[i][j], a[i], b[j]);
    }
  }

  static constexpr bool PROMOTES = false;
  static __device__ __forceinline__ void finish(Accumulator&) {}

  // The sums of a lane: fragment i is WIDTH neighbours along n at (row, column) of the warp's tile.
  static constexpr int WIDTH = 2, FRAGMENTS = TM * TN * 2;
  static __device__ __forceinline__ bool keeps(int, int) { return true; }
  static __device__ __forceinline__ int row(int i, int lane) { return i / TN * 8 + lane / 4; }
  static __device__ __forceinline__ int column(int i, int lane) { return i % TN * 8 + (lane & 3) * 2; }
  static __device__ __forceinline__ Pack<Sum, 2> fragment(const Accumulator& acc, int i) {
    const Sum(&c)[4] = acc.c[i / TN / 2][i % TN];
    return i / TN % 2 ? Pack<Sum, 2>{{c[2], c[3]}} : Pack<Sum, 2>{{c[0], c[1]}};
  }
};

}  // namespace mt
