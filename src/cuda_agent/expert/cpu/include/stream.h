// Stores that go past the caches: what is larger than the cache and not read again need not be fetched before it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace stream {

#if defined(__AVX512F__)
constexpr size_t kWidth = 64;
inline void store(char* to, const char* from) { _mm512_stream_si512((__m512i*)to, _mm512_loadu_si512(from)); }
inline void fence() { _mm_sfence(); }
#elif defined(__AVX2__)
constexpr size_t kWidth = 32;
inline void store(char* to, const char* from) {
    _mm256_stream_si256((__m256i*)to, _mm256_loadu_si256((const __m256i*)from));
}
inline void fence() { _mm_sfence(); }
#else
constexpr size_t kWidth = 16;
inline void store(char* to, const char* from) { std::memcpy(to, from, kWidth); }
inline void fence() {}
#endif

// Copy a block that was computed in the cache. Call `fence` once a thread is done.
template <class T> inline void copy(T* to, const T* from, int64_t count) {
    char* target = reinterpret_cast<char*>(to);
    const char* source = reinterpret_cast<const char*>(from);
    size_t bytes = size_t(count) * sizeof(T);
    const size_t head = (kWidth - reinterpret_cast<uintptr_t>(target) % kWidth) % kWidth;
    if (head >= bytes) {
        std::memcpy(target, source, bytes);
        return;
    }
    std::memcpy(target, source, head);
    target += head, source += head, bytes -= head;
    for (; bytes >= kWidth; bytes -= kWidth, target += kWidth, source += kWidth) store(target, source);
    std::memcpy(target, source, bytes);
}

}  // namespace stream
