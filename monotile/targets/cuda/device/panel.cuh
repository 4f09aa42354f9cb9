// One chunk of a contraction's operand in shared memory: how it is laid out and how it gets there.
//
// A panel holds ROWS rows (m of the left operand, n of the right) by DEPTH values of k. Its memory order follows the operand's: a
// K_MAJOR panel keeps the values of k of a row together, any other the rows of one k. It is made of 16-byte cells. Where a line has
// a power of two of cells they are permuted by XOR, else the pitch is odd. Either way the eight lines that one `ldmatrix` or one
// phase of 16-byte loads reads at one cell lie in different banks. In a FOLDED panel so do the cells that are 128 bytes apart in a
// line. A line of a multiple of 128 bytes of 16-bit rows is cut in blocks of 128 bytes. The blocks follow each other in memory, as
// wgmma reads them; so is one along k of a BLOCKED panel.
//
// An operand is one of
//   Linear     element (row, k) lies at base + row * ROW_STEP + k * K_STEP
//   Addressed  f(row, k) gives the address of VECTOR neighbours along the major direction, or if GUARDED their `Source`. LOOKS_UP: it
//              reads memory for that, so it is asked only for what there is
//   Evaluated  f(row, k) gives their values
//   Coded      codes(row, k), and what they share, sides(row, k), are asked for; decode(row, k, codes, sides) gives the values
//   Sparse     two of these: contract_sparse.cuh
//   Bounded    one of these, of which only the values of k before `k_end` count
//   Stacked    several of these, whose rows lie one above the other in a panel, as many of each; StackedLinear: all of them `Linear`
// The first two need Copy::ASYNC, Copy::DIRECT or Copy::UNALIGNED, `Evaluated` Copy::ELEMENT. `row` counts from the start of the operand, not of the block.
#pragma once
#include "cuda/device/copy.cuh"
#include "cuda/device/ptx/sm_80.cuh"

namespace mt {

// How an operand comes into shared memory: by asynchronous copies, or evaluated and stored by the threads. UNALIGNED: loaded and stored
// by them, in vectors along k at any alignment. DIRECT: it does not; threads load it into their registers.
enum class Copy { ASYNC, ELEMENT, UNALIGNED, DIRECT };
// Whether it is on its way in registers.
constexpr bool through_registers(Copy copy) { return copy == Copy::ELEMENT || copy == Copy::UNALIGNED; }

// How a product or attention reads one of its operands.
struct SideConfig {
  bool k_major = true;         // neighbours in memory lie along k; else along the rows
  Copy copy = Copy::ASYNC;
  int vector = 1;              // elements that one copy moves
  bool check_rows = false;     // a task may reach beyond the operand's last row
  int prefetched_chunks = 0;   // chunks that are copied before the hand-off, which no other block has written
  int task_rows = 0;           // rows of a task, where these are fewer than a block's
  bool evict_first = false;    // cache policy: the last-level cache evicts these lines before others
  bool rounded = false;        // float32 that has been rounded to TF32
  bool sparse = false;         // it has two of each four values along k (2:4): `Sparse`
};

template <class T_, SideConfig CONFIG>
struct Side {
  using T = T_;
  static constexpr bool K_MAJOR = CONFIG.k_major, CHECK_ROWS = CONFIG.check_rows, EVICT_FIRST = CONFIG.evict_first, ROUNDED = CONFIG.rounded,
                        SPARSE = CONFIG.sparse;
  static constexpr Copy COPY = CONFIG.copy;
  static constexpr int VECTOR = CONFIG.vector, PREFETCHED_CHUNKS = CONFIG.prefetched_chunks;
  static constexpr int TASK_ROWS = CONFIG.task_rows > 0 ? CONFIG.task_rows : 1 << 20;  // else no limit
  static_assert(is_power_of_two(VECTOR) && VECTOR * int(sizeof(T)) <= 16,
                "One copy moves a power of two of elements, at most 16 bytes.");
  static_assert(COPY != Copy::ASYNC || VECTOR * int(sizeof(T)) >= 4, "An asynchronous copy moves at least 4 bytes.");
  static_assert(PREFETCHED_CHUNKS >= 0 && CONFIG.task_rows >= 0, "Neither a task's rows nor its prefetched chunks can be negative.");
};

// Neighbours in memory. If they are not `valid` they count as zeros, and nothing is read.
template <class T>
struct Source {
  const T* address;
  bool valid;
};

template <class T, int ROW_STEP_, int K_STEP_>
struct Linear {
  static constexpr bool LINEAR = true, GUARDED = false, LOOKS_UP = false, CODED = false;
  static constexpr int ROW_STEP = ROW_STEP_, K_STEP = K_STEP_;
  const T* base;
  __device__ __forceinline__ const T* address(int row, int k) const {
    return base + i64(row) * ROW_STEP + i64(k) * K_STEP;
  }
  __device__ __forceinline__ Source<T> source(int row, int k) const { return {address(row, k), true}; }
};
template <class T, bool GUARDED_, bool LOOKS_UP_, class F>
struct Addressed {
  static constexpr bool LINEAR = false, GUARDED = GUARDED_, LOOKS_UP = LOOKS_UP_, CODED = false;
  static constexpr int ROW_STEP = 0, K_STEP = 0;
  F f;
  __device__ __forceinline__ Source<T> source(int row, int k) const {
    if constexpr (GUARDED)
      return f(row, k);
    else
      return {f(row, k), true};
  }
};
template <class T, int V, class F>
struct Evaluated {
  static constexpr bool LOOKS_UP = false;  // it is asked only for what there is in any case
  F f;
  __device__ __forceinline__ Pack<T, V> values(int row, int k) const { return f(row, k); }
};
template <class CodesOf, class SidesOf, class Decode>
struct Coded {
  static constexpr bool CODED = true;
  CodesOf codes;
  SidesOf sides;
  Decode decode;
  using Codes = decltype(codes(0, 0));
  using Sides = decltype(sides(0, 0));
};
template <class Operand>
struct Bounded {
  static constexpr bool LINEAR = false, GUARDED = true, LOOKS_UP = Operand::LOOKS_UP;
  static constexpr int ROW_STEP = 0, K_STEP = 0;
  const Operand& operand;
  int k_end;
  __device__ __forceinline__ auto source(int row, int k) const {
    return operand.source(row, k < k_end ? k : 0);  // an address may depend on data, which ends there too
  }
  __device__ __forceinline__ auto values(int row, int k) const { return operand.values(row, k < k_end ? k : 0); }
};
template <class Operand>
inline constexpr bool IS_BOUNDED = false;
template <class Operand>
inline constexpr bool IS_BOUNDED<Bounded<Operand>> = true;
template <class Operand>
__device__ __forceinline__ Bounded<Operand> bounded(const Operand& operand, int k_end) {
  return {operand, k_end};
}
template <class T, int ROW_STEP_, int K_STEP_, int COUNT>
struct StackedLinear {
  static constexpr bool LINEAR = true, GUARDED = false, LOOKS_UP = false, CODED = false;
  static constexpr int ROW_STEP = ROW_STEP_, K_STEP = K_STEP_;
  const T* base[COUNT];
  __device__ __forceinline__ const T* address(int number, int row, int k) const {
    const T* from = base[0];
#pragma unroll
    for (int i = 1; i < COUNT; ++i) {
      const T* next = base[i];  // no index, and not where it is known to be `number`: the pointers are in registers
      from = number >= i ? next : from;
    }
    return from + i64(row) * ROW_STEP + i64(k) * K_STEP;
  }
  __device__ __forceinline__ Source<T> source(int number, int row, int k) const { return {address(number, row, k), true}; }
};
template <class First, class... Rest>
struct Stacked {
  static constexpr bool LINEAR = false, GUARDED = true, LOOKS_UP = First::LOOKS_UP || Stacked<Rest...>::LOOKS_UP;
  static constexpr int ROW_STEP = 0, K_STEP = 0;
  const First& first;
  Stacked<Rest...> rest;
  __device__ __forceinline__ auto source(int number, int row, int k) const {
    return number == 0 ? first.source(row, k) : rest.source(number - 1, row, k);
  }
  __device__ __forceinline__ auto values(int number, int row, int k) const {
    return number == 0 ? first.values(row, k) : rest.values(number - 1, row, k);
  }
};
template <class Last>
struct Stacked<Last> {
  static constexpr bool LOOKS_UP = Last::LOOKS_UP;
  const Last& last;
  __device__ __forceinline__ auto source(int, int row, int k) const { return last.source(row, k); }
  __device__ __forceinline__ auto values(int, int row, int k) const { return last.values(row, k); }
};
template <class Operand>
inline constexpr bool IS_LINEAR = false;
template <class T, int ROW_STEP, int K_STEP>
inline constexpr bool IS_LINEAR<Linear<T, ROW_STEP, K_STEP>> = true;
template <class T, int ROW_STEP, int K_STEP, int COUNT>
inline constexpr bool IS_LINEAR<StackedLinear<T, ROW_STEP, K_STEP, COUNT>> = true;

template <class T, int ROW_STEP, int K_STEP>
__device__ __forceinline__ Linear<T, ROW_STEP, K_STEP> linear(const T* base) {
  return {base};
}
template <class T, int ROW_STEP, int K_STEP, class... Others>
  requires(same<Others, Linear<T, ROW_STEP, K_STEP>> && ...)
__device__ __forceinline__ StackedLinear<T, ROW_STEP, K_STEP, 1 + sizeof...(Others)> stacked(const Linear<T, ROW_STEP, K_STEP>& first,
                                                                                            const Others&... others) {
  return {{first.base, others.base...}};
}
template <class Last>
__device__ __forceinline__ Stacked<Last> stack_of(const Last& last) {
  return {last};
}
template <class First, class... Rest>
__device__ __forceinline__ Stacked<First, Rest...> stack_of(const First& first, const Rest&... rest) {
  return {first, stack_of(rest...)};
}
template <class... Operands>
__device__ __forceinline__ Stacked<Operands...> stacked(const Operands&... operands) {
  return stack_of(operands...);
}
template <class T, bool GUARDED = false, bool LOOKS_UP = false, class F>
__device__ __forceinline__ Addressed<T, GUARDED, LOOKS_UP, F> addressed(F f) {
  return {f};
}
template <class CodesOf, class SidesOf, class Decode>
__device__ __forceinline__ Coded<CodesOf, SidesOf, Decode> coded(CodesOf codes, SidesOf sides, Decode decode) {
  return {codes, sides, decode};
}
template <class T, int V, class F>
__device__ __forceinline__ Evaluated<T, V, F> evaluated(F f) {
  return {f};
}

// What TF32 leaves of a float, as a float of its own: 13 bits.
__device__ __forceinline__ float rest_of_tf32(float x) { return x - __uint_as_float(__float_as_uint(x) & 0xffffe000); }

struct PanelConfig {
  int rows = 0, k = 0;    // its extents
  bool k_major = true;
  bool folded = false;
  bool blocked = false;
};

template <class T_, PanelConfig CONFIG>
struct Panel {
  using T = T_;
  static constexpr bool K_MAJOR = CONFIG.k_major, FOLDED = CONFIG.folded;
  static constexpr int ROWS = CONFIG.rows, DEPTH = CONFIG.k;
  static_assert(ROWS > 0 && DEPTH > 0, "A panel has rows and values of k.");
  static constexpr int UNIT = 16 / int(sizeof(T));  // elements of a cell
  static constexpr int INNER = K_MAJOR ? DEPTH : ROWS;
  static constexpr int OUTER = K_MAJOR ? ROWS : DEPTH;
  static constexpr int WIDTH = ceil_div(INNER, UNIT);  // cells across all blocks
  static constexpr int BLOCKS = (!K_MAJOR || CONFIG.blocked) && sizeof(T) == 2 && WIDTH % 8 == 0 ? WIDTH / 8 : 1;
  static constexpr int CELLS = WIDTH / BLOCKS;  // of a line
  static constexpr bool XOR = is_power_of_two(CELLS);
  static constexpr int PITCH = XOR ? CELLS : CELLS | 1;
  static constexpr int LINES = BLOCKS * OUTER;
  static constexpr int BLOCK_BYTES = OUTER * PITCH * 16, BYTES = BLOCKS * BLOCK_BYTES;
  static constexpr int SPAN = CELLS >= 8 ? 1 : 8 / CELLS;  // lines that fill all banks once
  static constexpr int MASK = CELLS >= 8 ? 7 : CELLS - 1;

  // Byte offset of cell `cell` of line `line` (a row of a K_MAJOR panel, else a k).
  static __device__ __forceinline__ int offset(int line, int cell) {
    unsigned at = unsigned(cell) % CELLS;  // unsigned: quotients by constants are shifts
    if constexpr (XOR) at ^= (unsigned(line) / SPAN ^ (FOLDED ? at / (MASK + 1) : 0)) & MASK;
    return int(unsigned(cell) / CELLS) * BLOCK_BYTES + (line * PITCH + int(at)) * 16;
  }
};

struct CopyConfig {
  Copy copy = Copy::ASYNC;
  int vector = 1;            // elements that one copy moves
  int rows = 0;              // of a K_MAJOR panel only so many are copied
  int k = 0;                 // the extent of the whole operand along k
  int threads = 0;           // that copy
  bool check_rows = false;   // a panel may reach beyond the last row
  int products = 1;          // operands that are one above the other
};

// How threads copy the panels of an operand, VECTOR elements at a time. Neighbouring threads copy neighbours.
template <class Panel, CopyConfig CONFIG>
struct PanelCopies {
  using T = typename Panel::T;
  static constexpr bool K_MAJOR = Panel::K_MAJOR, CHECK_ROWS = CONFIG.check_rows;
  static constexpr Copy COPY = CONFIG.copy;
  static constexpr int VECTOR = CONFIG.vector, K = CONFIG.k, DEPTH = Panel::DEPTH, THREADS = CONFIG.threads;
  static_assert(CONFIG.rows > 0 && K > 0 && THREADS > 0, "Copies need the extents of what they copy, and threads.");
  static_assert(Panel::UNIT % VECTOR == 0, "A vector lies within one cell of 16 bytes.");
  static constexpr int BLOCK = Panel::INNER / Panel::BLOCKS;  // elements of a line
  static_assert(BLOCK % VECTOR == 0, "A block of a panel holds whole vectors of its operand.");
  static constexpr int PIECES = BLOCK / VECTOR;
  static constexpr int TOTAL = Panel::LINES * PIECES, NEEDED = (K_MAJOR && Panel::BLOCKS == 1 ? min_of(Panel::LINES, CONFIG.rows) : Panel::LINES) * PIECES;
  static constexpr int ROUNDS = ceil_div(NEEDED, THREADS);
  // A round may reach over the last row.
  static constexpr bool CHECKS = CHECK_ROWS || NEEDED < min_of(TOTAL, ROUNDS * THREADS) || (K_MAJOR && Panel::BLOCKS > 1 && CONFIG.rows < Panel::ROWS);
  static constexpr int CHUNK = DEPTH;
  static constexpr bool K_TAIL = K % DEPTH != 0;

  struct Piece {
    int row, k, offset;
  };

  static __device__ __forceinline__ bool exists(int round, int thread) {
    return TOTAL % THREADS == 0 || round * THREADS + thread < TOTAL;
  }
  // Where a thread's pieces repeat from round to round, they differ by constants: addresses need no arithmetic.
  static constexpr int LINES = THREADS % PIECES == 0 ? THREADS / PIECES : 0;  // lines that a round fills
  static constexpr bool REGULAR = LINES > 0 && (Panel::BLOCKS == 1 || Panel::OUTER % max_of(1, LINES) == 0);
  static constexpr int BLOCK_ROUNDS = REGULAR && Panel::BLOCKS > 1 ? Panel::OUTER / LINES : ROUNDS;
  // Of operands one above the other each has EACH rows. Where a round reaches into two of them at most, or there is none but one, a thread's
  // addresses go on by constants, of which it may have to choose.
  static constexpr int PRODUCTS = CONFIG.products, EACH = Panel::ROWS / PRODUCTS, ROUND_ROWS = K_MAJOR ? LINES : BLOCK;
  static_assert(Panel::ROWS % PRODUCTS == 0, "Operands one above the other have as many rows of a panel each.");
  static_assert(K_MAJOR || EACH % VECTOR == 0, "A vector lies within one of the operands that are one above the other.");
  static constexpr bool ONE_ROUND = K_MAJOR ? ROUNDS == 1 : Panel::BLOCKS == 1;  // along the rows
  static constexpr bool WALKED = REGULAR && (PRODUCTS == 1 || ROUND_ROWS <= EACH || ONE_ROUND);
  // Which operand has a row of the panel, and which of its rows that is.
  static __device__ constexpr int number_of(int row) { return PRODUCTS == 1 ? 0 : int(unsigned(row) / EACH); }
  static __device__ constexpr int row_of(int row) { return PRODUCTS == 1 ? row : int(unsigned(row) % EACH); }
  // The same of a row of a round, by the round alone where that says it.
  static __device__ __forceinline__ int number_of(int round, int row) {
    if constexpr (REGULAR && EACH % max_of(1, ROUND_ROWS) == 0) return number_of(rows_to(round));
    return number_of(row);
  }

  static __device__ __forceinline__ Piece piece(int round, int thread) {
    unsigned p = REGULAR ? thread : round * THREADS + thread;
    unsigned number = p / PIECES + (REGULAR ? round % BLOCK_ROUNDS * LINES : 0);
    int block = Panel::BLOCKS == 1 ? 0 : REGULAR ? round / BLOCK_ROUNDS : int(number / Panel::OUTER);
    int line = REGULAR ? int(number) : int(number) - block * Panel::OUTER;
    int inner = block * BLOCK + int(p % PIECES) * VECTOR;
    int offset = Panel::offset(line, inner / Panel::UNIT) +
                 (inner % Panel::UNIT) * int(sizeof(T));
    return {K_MAJOR ? line : inner, K_MAJOR ? inner : line, offset};
  }
  // How far round `i` is from the first along the rows and along k, and on chip, where these are constants.
  static constexpr bool UNIFORM = REGULAR && (!Panel::XOR || LINES % 8 == 0);
  static __device__ constexpr int rows_to(int i) { return K_MAJOR ? i % BLOCK_ROUNDS * LINES : i / BLOCK_ROUNDS * BLOCK; }
  static __device__ constexpr int k_to(int i) { return K_MAJOR ? i / BLOCK_ROUNDS * BLOCK : i % BLOCK_ROUNDS * LINES; }
  static __device__ constexpr int bytes_to(int i) { return i * (LINES * Panel::PITCH * 16); }
  static __device__ __forceinline__ Piece piece(const Piece& first, int round, int thread) {
    if constexpr (!UNIFORM) return piece(round, thread);
    return {first.row + rows_to(round), first.k + k_to(round), first.offset + bytes_to(round)};
  }

  // Where an operand, that of this number, has a vector of the block's rows, which begin with row0; of one that looks it up, for what it
  // does not have, another.
  template <class Operand>
  static __device__ __forceinline__ Source<T> source(const Operand& operand, int number, int row0, int row, int row_end, int k) {
    if constexpr (Operand::LOOKS_UP && (CHECKS || TOTAL % THREADS != 0)) row = row < row_end ? row : row0;
    if constexpr (Operand::LOOKS_UP && K_TAIL) k = k < K ? k : 0;
    if constexpr (PRODUCTS > 1)
      return operand.source(number, row, k);
    else
      return operand.source(row, k);
  }

  // Issues the copies of rows [row0, row_end) and k [k0, k0 + DEPTH). A k beyond K gives zeros; what is computed from rows
  // beyond row_end is never stored.
  template <class Operand>
  static __device__ __forceinline__ void issue(char* panel, const Operand& operand, int row0,
                                               int row_end, int k0, int thread) {
    static_assert(CONTIGUOUS<Operand>, "A vector lies along the major direction of its operand.");
    constexpr int BYTES = VECTOR * int(sizeof(T));
    u32 base = ptx::shared_address(panel);
    const Piece first = piece(0, thread);
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      if (!exists(i, thread)) continue;
      Piece p = piece(first, i, thread);
      const int number = number_of(i, p.row);
      int row = row0 + p.row - number * EACH, k = k0 + p.k;
      Source<T> from = source(operand, number, row0, row, row_end, k);
      if constexpr (IS_BOUNDED<Operand>) {
        int elements = K_MAJOR ? max_of(min_of(operand.k_end - k, VECTOR), 0) : k < operand.k_end ? VECTOR : 0;
        bool inside = !CHECKS || row < row_end;
        ptx::copy_async_part<BYTES>(base + p.offset, from.address, from.valid & inside ? elements * int(sizeof(T)) : 0);
      } else if constexpr (CHECKS || K_TAIL || Operand::GUARDED) {  // no branches: copies are all that such a loop waits for
        bool inside = (!CHECKS || row < row_end) & (!K_TAIL || k < K);
        ptx::copy_async_or_zero<BYTES>(base + p.offset, from.address, from.valid & inside);
      } else {
        ptx::copy_async<BYTES>(base + p.offset, from.address);
      }
    }
  }

  // Whether a vector's elements are neighbours in memory.
  template <class Operand>
  static constexpr bool CONTIGUOUS =
      VECTOR == 1 || !Operand::LINEAR || (K_MAJOR ? Operand::K_STEP : Operand::ROW_STEP) == 1;

  // Walks a linear operand chunk by chunk: a pointer that moves on, and constants. EVICT_FIRST: see `SideConfig`.
  template <class Operand, bool EVICT_FIRST = false>
  struct Walk {
    static_assert(CONTIGUOUS<Operand>, "A vector lies along the major direction of its operand.");
    const T* from;
    i64 apart[PRODUCTS];  // of operands one above the other: elements from the first to each
    int first_row;        // and the panel's row of round 0
    int offset, rows_left, k_left;
    u64 policy;  // of the last-level cache

    __device__ __forceinline__ Walk(const Operand& operand, int row0, int row_end, int k0, int thread) {
      Piece p = piece(0, thread);
      if constexpr (PRODUCTS == 1) {
        from = operand.address(row0 + p.row, k0 + p.k);
      } else {
        from = operand.address(number_of(p.row), row0 + row_of(p.row), k0 + p.k);
#pragma unroll
        for (int i = 0; i < PRODUCTS; ++i) apart[i] = operand.base[i] - operand.base[0];
        first_row = p.row;
      }
      if constexpr (EVICT_FIRST) policy = ptx::evict_first_policy();
      offset = p.offset, rows_left = row_end - row0 - row_of(p.row), k_left = K - k0 - p.k;
    }
    // Of operands one above the other: those that round `i` reaches into, the first and the last; and whether this thread's row is of the last.
    static __device__ constexpr int first_of(int i) { return PRODUCTS == 1 || ONE_ROUND ? 0 : number_of(rows_to(i)); }
    static __device__ constexpr int last_of(int i) {
      return PRODUCTS == 1 || ONE_ROUND ? 0 : min_of(number_of(rows_to(i) + ROUND_ROWS - 1), PRODUCTS - 1);
    }
    __device__ __forceinline__ bool is_last(int i) const { return first_row + rows_to(i) >= last_of(i) * EACH; }
    // How far round `i` is from the first along the rows of an operand, and where it begins.
    __device__ __forceinline__ int rows(int i) const {
      const int first = rows_to(i) - first_of(i) * EACH, last = rows_to(i) - last_of(i) * EACH;
      return first_of(i) == last_of(i) || !is_last(i) ? first : last;
    }
    __device__ __forceinline__ const T* at(int i) const {
      const T* to = from + (i64(rows(i)) * Operand::ROW_STEP + k_to(i) * Operand::K_STEP);
      if constexpr (PRODUCTS == 1) return to;
      const i64 first = apart[first_of(i)], last = apart[last_of(i)];
      return to + (first_of(i) == last_of(i) || !is_last(i) ? first : last);
    }
    // Where a thread's pieces come from and go to. Those of later chunks and stages lie at constant distances from there.
    struct Starts {
      const T* from[ROUNDS];
      u32 to;
      int k_left;
      __device__ __forceinline__ void advance(int k, int bytes) {
#pragma unroll
        for (int i = 0; i < ROUNDS; ++i) from[i] += i64(k) * Operand::K_STEP;
        to += bytes, k_left -= k;
      }
    };
    __device__ __forceinline__ Starts starts(u32 panel) const {
      Starts s;
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) s.from[i] = ptx::recompute(at(i));
      s.to = ptx::recompute(panel + offset), s.k_left = k_left;
      return s;
    }
    __device__ __forceinline__ void issue(u32 panel, int thread) const {
      Starts s;
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) s.from[i] = at(i);
      s.to = panel + offset, s.k_left = k_left;
      issue(s, thread, 0, 0);
    }
    // The chunk `k` further, into the panel `bytes` further.
    __device__ __forceinline__ void issue(const Starts& starts, int thread, int k, int bytes) const {
      constexpr int BYTES = VECTOR * int(sizeof(T));
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) {
        if (!exists(i, thread)) continue;
        if (CHECKS && rows_left <= rows(i)) continue;
        u32 to = starts.to + bytes + (UNIFORM ? bytes_to(i) : piece(i, thread).offset - offset);
        const T* there = starts.from[i] + i64(k) * Operand::K_STEP;
        if constexpr (K_TAIL)
          ptx::copy_async_or_zero<BYTES>(to, there, starts.k_left - k > k_to(i));
        else if constexpr (EVICT_FIRST && BYTES == 16)
          ptx::copy_async_with_policy(to, there, policy);
        else
          ptx::copy_async<BYTES>(to, there);
      }
    }
    __device__ __forceinline__ void advance(int k) {
      from += i64(k) * Operand::K_STEP;
      k_left -= k;
    }
    // If `condition`, continues as `other` does.
    __device__ __forceinline__ void replace_if(bool condition, const Walk& other) {
      from = condition ? other.from : from;
      if constexpr (PRODUCTS > 1)
#pragma unroll
        for (int i = 1; i < PRODUCTS; ++i) {
          const i64 own = apart[i], others = other.apart[i];
          apart[i] = condition ? others : own;
        }
      rows_left = condition ? other.rows_left : rows_left;
      k_left = condition ? other.k_left : k_left;
    }
    __device__ __forceinline__ void move(int rows, int k) {
      from += i64(rows) * Operand::ROW_STEP;
      rows_left -= rows;
      advance(k);
    }
  };

  // Rounds what a thread has copied into a panel, or stored there, to TF32.
  static __device__ __forceinline__ void round(char* panel, int thread) {
    static_assert(same<T, float>, "Only float32 is rounded to TF32.");
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      if (!exists(i, thread)) continue;
      auto at = reinterpret_cast<Pack<u32, VECTOR>*>(panel + piece(i, thread).offset);
      Pack<u32, VECTOR> x = *at;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) x[e] = ptx::to_tf32(x[e]);
      *at = x;
    }
  }

  // What TF32 leaves of what a thread has copied into `panel`, or stored there, into `to`.
  static __device__ __forceinline__ void rest(char* to, const char* panel, int thread) {
    static_assert(same<T, float>, "Only float32 has two parts of TF32.");
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      if (!exists(i, thread)) continue;
      const int offset = piece(i, thread).offset;
      auto x = *reinterpret_cast<const Pack<float, VECTOR>*>(panel + offset);
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) x[e] = rest_of_tf32(x[e]);
      *reinterpret_cast<Pack<float, VECTOR>*>(to + offset) = x;
    }
  }

  // A thread's values of an evaluated operand, in registers on their way to the panel.
  struct Values {
    Pack<T, VECTOR> value[COPY == Copy::ELEMENT ? ROUNDS : 1];
  };
  // The same of an unaligned one, as the aligned vectors round each. left: how many values of k there are from the chunk's first on.
  struct UnalignedValues {
    Unaligned<T, COPY == Copy::UNALIGNED ? VECTOR : 16 / int(sizeof(T))> value[COPY == Copy::UNALIGNED ? ROUNDS : 1];
    int left;
  };

  // Without branches, so that all loads are on their way at once: what has no row is read from the last one.
  template <class Operand>
  static __device__ __forceinline__ void load(UnalignedValues& values, const Operand& operand, int row0, int row_end, int k0, int thread) {
    static_assert(K_MAJOR, "An unaligned operand is read along k.");
    values.left = K - k0;
    const Piece first = piece(0, thread);
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      Piece p = piece(first, i, thread);
      const int number = number_of(i, p.row);
      int row = row0 + p.row - number * EACH;
      if constexpr (CHECKS || TOTAL % THREADS != 0) row = min_of(row, row_end - 1);
      const Source<T> from = source(operand, number, row0, row, row_end, k0 + p.k);
      values.value[i] = load_unaligned<VECTOR>(from.address, values.left - p.k);
    }
  }
  static __device__ __forceinline__ void store(char* panel, const UnalignedValues& values, int thread) {
    const Piece first = piece(0, thread);
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      if (!exists(i, thread)) continue;
      Piece p = piece(first, i, thread);
      *reinterpret_cast<Pack<T, VECTOR>*>(panel + p.offset) = joined(values.value[i], K_TAIL ? values.left - p.k : VECTOR);
    }
  }

  template <class Operand>
  static __device__ __forceinline__ void evaluate(Values& values, const Operand& operand, int row0,
                                                  int row_end, int k0, int thread) {
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      Piece p = piece(i, thread);
      const int number = number_of(i, p.row);
      int row = row0 + p.row - number * EACH, k = k0 + p.k;
      bool live = exists(i, thread) && (!CHECKS || row < row_end) && (!K_TAIL || k < K);
      if constexpr (PRODUCTS > 1)
        values.value[i] = live ? operand.values(number, row, k) : Pack<T, VECTOR>{};
      else
        values.value[i] = live ? operand.values(row, k) : Pack<T, VECTOR>{};
      if constexpr (IS_BOUNDED<Operand>) {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
          if (k + (K_MAJOR ? e : 0) >= operand.k_end) values.value[i][e] = T{};
      }
    }
  }
  static __device__ __forceinline__ void store(char* panel, const Values& values, int thread) {
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i)
      if (exists(i, thread))
        *reinterpret_cast<Pack<T, VECTOR>*>(panel + piece(i, thread).offset) = values.value[i];
  }
};

}  // namespace mt
