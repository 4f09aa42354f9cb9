// Messages: values that a block hands to others one by one, each with a tag beside it in one 64-bit store.
//
// Why a reader that has seen the tag has the value: a 64-bit access is whole in the PTX memory model, and a vector of two is
// two of them. Relaxed accesses at gpu scope go to L2, past the multiprocessors' own caches. Nothing else may be
// concluded from a tag: a message orders no other memory, and the schedule's verifier sees to it that nothing depends on that.
//
// No slot is ever cleared: a tag is another in each call, and in each loop of a call that uses the slots again after a barrier
// of the grid. The last one used lies at sync[2], zero at first like the slots; as every slot is written under every tag, it
// does not matter that they wrap.
#pragma once
#include "cuda/device/barrier.cuh"

namespace mt {

// The last tag that calls before this one used.
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

// Hands on element number `element` of the message at `slots`.
template <class T>
__device__ __forceinline__ void send(char* slots, i64 element, T value, u32 tag) {
  ptx::store_word_8(slots + 8 * element, u64(tag) << 32 | to_word(value));
}

// WIDTH neighbouring elements as they lie: 1 or 2.
template <int WIDTH>
__device__ __forceinline__ void peek(u64 (&words)[WIDTH], const char* from) {
  if constexpr (WIDTH == 1)
    words[0] = ptx::load_word_8(from);
  else
    ptx::load_words_16(from, words[0], words[1]);
}

// The threads of a block wait for COUNT vectors of WIDTH values of type T and put them to `image`, side by side; where(e) gives
// the first element of vector e in the message at `slots`. A thread has up to 8 loads on their way before it looks at any.
template <class T, int WIDTH, int COUNT, int THREADS, class Where>
__device__ __forceinline__ void receive(T* image, const char* slots, u32 tag, Where where) {
  constexpr int ROUNDS = ceil_div(COUNT, THREADS), ONCE = min_of(ROUNDS, 8);
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round += ONCE) {
    const char* from[ONCE];
    u64 words[ONCE][WIDTH];
    u32 missing = 0;
#pragma unroll
    for (int i = 0; i < ONCE; ++i) {
      int e = (round + i) * THREADS + threadIdx.x;
      if (e < COUNT) missing |= 1u << i;
      from[i] = slots + 8 * i64(where(min_of(e, COUNT - 1)));
    }
    const u32 wanted = missing;
    u64 begin = 0;
    for (u32 tries = 1; missing; ++tries) {
#pragma unroll
      for (int i = 0; i < ONCE; ++i)
        if (missing >> i & 1) peek(words[i], from[i]);
#pragma unroll
      for (int i = 0; i < ONCE; ++i) {
        bool here = true;
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) here = here && u32(words[i][k] >> 32) == tag;
        if (here) missing &= ~(1u << i);
      }
      if ((tries & 0xfffff) == 0) begin = check_patience(begin);
    }
#pragma unroll
    for (int i = 0; i < ONCE; ++i) {
      if (!(wanted >> i & 1)) continue;
      Pack<T, WIDTH> values;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) values[k] = from_word<T>(u32(words[i][k]));
      *reinterpret_cast<Pack<T, WIDTH>*>(image + ((round + i) * THREADS + threadIdx.x) * WIDTH) = values;
    }
  }
}

}  // namespace mt
