// Elementary functions in float32 without branches or calls, so that loops over them vectorise on any instruction set.
//
// Within 5 ulp of the exact value, or 0 where that is below 2e-38 (exp) or denormal; infinities, NaN and signed zeros come
// out as in <cmath>.
// Each reduces its argument, evaluates a polynomial (weighted least squares towards minimax), and puts the pieces together.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// Half precision in memory, under the names that prototypes use.
struct half {
    uint16_t bits;
};
struct nv_bfloat16 {
    uint16_t bits;
};

namespace simd {

inline float as_float(int32_t bits) { return __builtin_bit_cast(float, bits); }
inline int32_t as_int(float value) { return __builtin_bit_cast(int32_t, value); }

// 2^k * 2 e^r / 2 for the k in `shifted` = k + 1.5 * 2^23 and |r| <= ln 2 / 2. The 2 keeps the scale finite up to k = 128.
inline float scaled_exp(float shifted, float r) {
    float p = 0.0027884122f;
    p = p * r + 0.016727552f;
    p = p * r + 0.08333273f;
    p = p * r + 0.33333146f;
    p = p * r + 1.0f;
    p = p * r + 2.0f;
    p = p * r + 2.0f;
    return p * as_float(int32_t((uint32_t(as_int(shifted)) + (126u - 0x4B400000u)) << 23));
}

// e^x = 2^k * e^r with k = round(x / ln 2). Below e^-87, just above the denormals, it is 0. Clamping the result takes two
// instructions less than clamping x.
inline float exp(float x) {
    const float shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
    const float k = shifted - 12582912.0f;
    const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;  // ln 2 in two parts
    float result = scaled_exp(shifted, r);
    result = x > 89.0f ? INFINITY : result;
    return x < -87.0f ? 0.0f : result;
}

// log x = e ln 2 + log(1 + f), x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
inline float log(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const float y = tiny ? x * 8388608.0f : x;
    const int32_t bits = as_int(y) - 0x3F3504F3;
    const float e = float(bits >> 23) - (tiny ? 23.0f : 0.0f);
    const float f = as_float((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
    float p = 0.07341783f;
    p = p * f - 0.11674955f;
    p = p * f + 0.11637838f;
    p = p * f - 0.123948276f;
    p = p * f + 0.14250691f;
    p = p * f - 0.16669218f;
    p = p * f + 0.20000702f;
    p = p * f - 0.2499998f;
    p = p * f + 0.3333333f;
    const float s = f * f;
    float result = p * f * s + e * -2.12194440e-4f;
    result = (result - 0.5f * s) + f + e * 0.693359375f;
    result = x < INFINITY ? result : x;  // infinity and NaN
    result = x == 0.0f ? -INFINITY : result;
    return x < 0.0f ? NAN : result;
}

inline float exp2(float x) {
    const float shifted = x + 12582912.0f;
    float result = scaled_exp(shifted, (x - (shifted - 12582912.0f)) * 0.69314718f);
    result = x > 128.5f ? INFINITY : result;
    return x < -125.5f ? 0.0f : result;
}

inline float expm1(float x) {
    float p = 2.49451e-05f;
    p = p * x + 0.00019949081f;
    p = p * x + 0.0013888668f;
    p = p * x + 0.0083332285f;
    p = p * x + 0.041666668f;
    p = p * x + 0.16666667f;
    const float small = x + (x * x) * (p * x + 0.5f);
    const float large = exp(x) - 1.0f;
    return std::fabs(x) < 0.5f ? small : large;
}

inline float log1p(float x) {
    const float u = 1.0f + x;
    const float d = u - 1.0f;
    const float corrected = log(u) * (x / d);  // undoes the rounding of 1 + x
    const float result = d == 0.0f ? x : corrected;
    return x < INFINITY ? result : x;
}

inline float log2(float x) { return log(x) * 1.44269504f; }
inline float log10(float x) { return log(x) * 0.434294482f; }

inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

// x P(x^2) / Q(x^2), up to where the float nearest to tanh is one.
inline float tanh(float x) {
    const float a = x > 9.0f ? 9.0f : x < -9.0f ? -9.0f : x;
    const float s = a * a;
    float p = -1.2247207e-11f;
    p = p * s + 3.0643925e-08f;
    p = p * s + 2.8031925e-05f;
    p = p * s + 0.0038695394f;
    p = p * s + 0.13680881f;
    p = p * s + 1.0f;
    float q = 1.289077e-06f;
    q = q * s + 0.0003940768f;
    q = q * s + 0.027250273f;
    q = q * s + 0.47014213f;
    q = q * s + 1.0f;
    return a * p / q;
}

inline float erf(float x) {
    const float a = x > 3.92f ? 3.92f : x < -3.92f ? -3.92f : x;
    const float s = a * a;
    float p = 2.050159e-06f;
    p = p * s + 0.00028487566f;
    p = p * s + 0.003765271f;
    p = p * s + 0.052747663f;
    p = p * s + 0.19039829f;
    p = p * s + 1.1283791f;
    float q = 3.809209e-05f;
    q = q * s + 0.0011624529f;
    q = q * s + 0.014968526f;
    q = q * s + 0.114105746f;
    q = q * s + 0.5020688f;
    q = q * s + 1.0f;
    return a * p / q;
}

// The remaining functions, and all in float64, are the C library's.
#define SIMD_LIBRARY(name) \
    inline double name(double x) { return std::name(x); }
SIMD_LIBRARY(exp) SIMD_LIBRARY(exp2) SIMD_LIBRARY(expm1) SIMD_LIBRARY(log) SIMD_LIBRARY(log2) SIMD_LIBRARY(log10)
SIMD_LIBRARY(log1p) SIMD_LIBRARY(tanh) SIMD_LIBRARY(erf)
#undef SIMD_LIBRARY
inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

template <class T> inline T rsqrt(T x) { return T(1) / std::sqrt(x); }
template <class T> inline T sign(T x) { return T((T(0) < x) - (x < T(0))); }
template <class T> inline T abs(T x) {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
    else return x < T(0) ? T(-x) : x;
}
template <class T> inline T minimum(T a, T b) {  // NaN if either is
    if constexpr (std::is_floating_point_v<T>) return a != a || a < b ? a : b;
    else return a < b ? a : b;
}
template <class T> inline T maximum(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a != a || a > b ? a : b;
    else return a > b ? a : b;
}
template <class T> inline T mod(T a, T b) {  // Python's %: the sign of b
    if constexpr (std::is_floating_point_v<T>) {
        const T m = std::fmod(a, b);
        return m != T(0) && (m < T(0)) != (b < T(0)) ? m + b : m;
    } else {
        const T m = T(a % b);
        return m != 0 && (m < 0) != (b < 0) ? T(m + b) : m;
    }
}
template <class T> inline T floordiv(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        const T m = mod(a, b);
        const T q = (a - m) / b;
        const T f = std::floor(q);
        return q - f > T(0.5) ? f + T(1) : f;
    } else {
        const T q = T(a / b);
        return a % b != 0 && (a < 0) != (b < 0) ? T(q - 1) : q;
    }
}
template <class T> inline T truncdiv(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return std::trunc(a / b);
    else return T(a / b);
}
template <class T> inline T fmod(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return std::fmod(a, b);
    else return T(a % b);
}
template <class T> inline T round(T x) { return std::nearbyint(x); }

inline float widen(nv_bfloat16 x) { return as_float(int32_t(uint32_t(x.bits) << 16)); }
inline float widen(half x) {
    const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16;
    const uint32_t rest = x.bits & 0x7FFFu;
    const float scaled = as_float(int32_t(rest << 13)) * 5.192296858534828e33f;  // 2^112 puts the exponent right
    const uint32_t bits = rest >= 0x7C00u ? 0x7F800000u | (rest << 13) : uint32_t(as_int(scaled));
    return as_float(int32_t(bits | sign));
}
inline nv_bfloat16 narrow_bf16(float x) {
    const uint32_t bits = uint32_t(as_int(x));
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return {uint16_t(x == x ? rounded : 0x7FC0u)};
}
inline half narrow_f16(float x) {
    const uint32_t bits = uint32_t(as_int(x));
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const float a = std::fabs(x);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t small = uint32_t(as_int(a + 0.5f)) - 0x3F000000u;  // denormals: adding 0.5 rounds to their grid
    uint32_t result = a < 6.103515625e-05f ? small : normal;
    result = a >= 65520.0f ? 0x7C00u : result;
    result = a == a ? result : 0x7E00u;
    return {uint16_t(result | sign)};
}

}  // namespace simd
