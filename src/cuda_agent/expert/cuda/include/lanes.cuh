// Several neighbouring elements in the registers of one thread, and how they move to and from memory.
#pragma once

#include <cstring>

#include "scalar.cuh"

template <typename T, int N>
struct Lanes {
  T v[N];
  DEVICE T& operator[](int j) { return v[j]; }
  DEVICE const T& operator[](int j) const { return v[j]; }
};

template <int BYTES>
struct Word;
template <>
struct Word<1> { using type = unsigned char; };
template <>
struct Word<2> { using type = unsigned short; };
template <>
struct Word<4> { using type = unsigned int; };
template <>
struct Word<8> { using type = uint2; };
template <>
struct Word<16> { using type = uint4; };

// How loads and stores treat the caches: 0 ordinary, 1 streaming (evicted first), 2 (loads) past L1.
enum Cache { KEEP = 0, STREAM = 1, SKIP_L1 = 2 };

template <int CACHE, typename W>
DEVICE W load_word(const W* p) {
  if constexpr (CACHE == STREAM) return __ldcs(p);
  else if constexpr (CACHE == SKIP_L1) return __ldcg(p);
  else return __ldg(p);
}

template <int CACHE, typename W>
DEVICE void store_word(W* p, W value) {
  if constexpr (CACHE == STREAM) __stcs(p, value);
  else *p = value;
}

DEVICE void prefetch_l2(const void* p) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}

__host__ __device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

// N elements from p on; p is aligned to UNIT elements (a power of two).
template <int N, int UNIT, int CACHE, typename T>
DEVICE Lanes<T, N> load_lanes(const T* p) {
  constexpr int CHUNK = smaller(smaller(N, UNIT), 16 / static_cast<int>(sizeof(T)));
  using W = typename Word<CHUNK * sizeof(T)>::type;
  Lanes<T, N> out;
#pragma unroll
  for (int c = 0; c < N / CHUNK; ++c) {
    W word = load_word<CACHE>(reinterpret_cast<const W*>(p + c * CHUNK));
    memcpy(out.v + c * CHUNK, &word, sizeof(W));
  }
  return out;
}

// The same, for elements `stride` apart; stride 0 repeats one element.
template <int N, typename T>
DEVICE Lanes<T, N> load_strided(const T* p, int64_t stride) {
  Lanes<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) out[j] = (stride == 0 && j > 0) ? out[0] : load_lanes<1, 1, KEEP>(p + j * stride)[0];
  return out;
}

// Only the lanes in [low, high) exist.
template <int N, int CACHE, typename T>
DEVICE Lanes<T, N> load_some(const T* p, int64_t stride, int low, int high) {
  Lanes<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) out[j] = (j >= low && j < high) ? load_lanes<1, 1, CACHE>(p + j * stride)[0] : T();
  return out;
}

template <int N, int UNIT, int CACHE, typename T>
DEVICE void store_lanes(T* p, const Lanes<T, N>& in) {
  constexpr int CHUNK = smaller(smaller(N, UNIT), 16 / static_cast<int>(sizeof(T)));
  using W = typename Word<CHUNK * sizeof(T)>::type;
#pragma unroll
  for (int c = 0; c < N / CHUNK; ++c) {
    W word;
    memcpy(&word, in.v + c * CHUNK, sizeof(W));
    store_word<CACHE>(reinterpret_cast<W*>(p + c * CHUNK), word);
  }
}

template <int N, typename T>
DEVICE void store_some(T* p, int64_t stride, const Lanes<T, N>& in, int low, int high) {
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (j >= low && j < high) p[j * stride] = in[j];
}
