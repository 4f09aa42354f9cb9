// Messages: values that a block sends to other blocks one by one, each with a tag beside it in one 64-bit store.
//
// Why a reader that sees the tag has the value: a 64-bit access is atomic in the PTX memory model, and an access to a vector of two
// words is two such accesses. Relaxed accesses at gpu scope go to L2, past the caches of the multiprocessors. A tag says nothing
// about other memory: a message orders no other access, and the Plan's verifier checks that nothing depends on one.
//
// No slot is ever cleared. Each call has a new tag, and so has each loop of a call that uses the slots again after a barrier of the
// grid. The last tag is at sync[2], which is zero at first, as the slots are. Every slot is written under every tag, so that tags
// may wrap around.
#pragma once
#include "cuda/device/barrier.cuh"

namespace mt {

// The last tag of the calls before this one.
__device__ __forceinline__ u32 last_tag(const u32* sync) { return ptx::load_acquire(sync + 2); }

// A value of at most 32 bits as a word, and back.
template <class T>
__device__ __forceinline__ u32 to_word(T x) {
  static_assert(sizeof(T) <= 4, "a message's values have at most 32 bits");
  u32 word = 0;
  *reinterpret_cast<T*>(&word) = x;
  return word;
}
template <class T>
__device__ __forceinline__ T from_word(u32 word) {
  return *reinterpret_cast<const T*>(&word);
}

// Sends element `element` of the message at `slots`.
template <class T>
__device__ __forceinline__ void send(char* slots, i64 element, T value, u32 tag) {
  ptx::store_word_8(slots + 8 * element, u64(tag) << 32 | to_word(value));
}

// Loads WIDTH (1 or 2) neighbouring elements with their tags.
template <int WIDTH>
__device__ __forceinline__ void load_tagged(u64 (&words)[WIDTH], const char* from) {
  if constexpr (WIDTH == 1)
    words[0] = ptx::load_word_8(from);
  else
    ptx::load_words_16(from, words[0], words[1]);
}

// The threads of a block wait for COUNT vectors of WIDTH values of type T and store them at `image`, one after the other. where(e):
// the first element of vector e in the message at `slots`. A thread issues up to 8 loads before it reads the first result.
template <class T, int WIDTH, int COUNT, int THREADS, class Where>
__device__ __forceinline__ void receive(T* image, const char* slots, u32 tag, Where where) {
  constexpr int STEPS = ceil_div(COUNT, THREADS), UNROLL = min_of(STEPS, 8);
#pragma unroll 1
  for (int step = 0; step < STEPS; step += UNROLL) {
    const char* from[UNROLL];
    u64 words[UNROLL][WIDTH];
    u32 missing = 0;
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      int e = (step + i) * THREADS + threadIdx.x;
      if (e < COUNT) missing |= 1u << i;
      from[i] = slots + 8 * i64(where(min_of(e, COUNT - 1)));
    }
    const u32 wanted = missing;
    u64 begin = 0;
    for (u32 tries = 1; missing; ++tries) {
#pragma unroll
      for (int i = 0; i < UNROLL; ++i)
        if (missing >> i & 1) load_tagged(words[i], from[i]);
#pragma unroll
      for (int i = 0; i < UNROLL; ++i) {
        bool here = true;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) here = here && u32(words[i][k] >> 32) == tag;
        if (here) missing &= ~(1u << i);
      }
      if ((tries & 0xfffff) == 0) begin = check_timeout(begin);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      if (!(wanted >> i & 1)) continue;
      Pack<T, WIDTH> values;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) values[k] = from_word<T>(u32(words[i][k]));
      *reinterpret_cast<Pack<T, WIDTH>*>(image + ((step + i) * THREADS + threadIdx.x) * WIDTH) = values;
    }
  }
}

}  // namespace mt
