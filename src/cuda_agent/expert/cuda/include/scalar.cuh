// Scalar arithmetic with the semantics of the torch functions of the same names.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#define DEVICE __device__ __forceinline__

template <typename To, typename From>
DEVICE To cast(From a) {
  if constexpr (std::is_same_v<To, From>) {
    return a;
  } else if constexpr (std::is_same_v<From, __half>) {
    return cast<To>(__half2float(a));
  } else if constexpr (std::is_same_v<From, __nv_bfloat16>) {
    return cast<To>(__bfloat162float(a));
  } else if constexpr (std::is_same_v<To, __half>) {
    if constexpr (std::is_same_v<From, double>) return __double2half(a);
    else return __float2half_rn(static_cast<float>(a));
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    if constexpr (std::is_same_v<From, double>) return __double2bfloat16(a);
    else return __float2bfloat16_rn(static_cast<float>(a));
  } else if constexpr (std::is_same_v<To, bool>) {
    return a != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To> && sizeof(To) < 4) {
    return static_cast<To>(static_cast<int64_t>(a));  // as torch: negative floats wrap around in small integers
  } else {
    return static_cast<To>(a);
  }
}

template <typename T>
DEVICE bool op_isnan(T a) {
  return a != a;
}

// NaN wins, as in torch.maximum, torch.minimum, amax and amin.
template <typename T>
DEVICE T op_max(T a, T b) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
  }
#endif
  if constexpr (std::is_floating_point_v<T>) return (a > b || a != a) ? a : b;
  else return a > b ? a : b;
}

template <typename T>
DEVICE T op_min(T a, T b) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
  }
#endif
  if constexpr (std::is_floating_point_v<T>) return (a < b || a != a) ? a : b;
  else return a < b ? a : b;
}

template <typename T>
DEVICE T op_abs(T a) {
  if constexpr (std::is_same_v<T, float>) return fabsf(a);
  else if constexpr (std::is_same_v<T, double>) return fabs(a);
  else if constexpr (std::is_unsigned_v<T>) return a;
  else return a < 0 ? static_cast<T>(-a) : a;
}

template <typename T>
DEVICE T op_sign(T a) {
  return static_cast<T>((a > T(0)) - (a < T(0)));
}

template <typename T>
DEVICE T op_fmod(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return fmod(a, b);
  else return static_cast<T>(a % b);
}

template <typename T>
DEVICE T op_mod(T a, T b) {  // the sign of b, as Python's %
  T r = op_fmod(a, b);
  return (r != T(0) && ((r < T(0)) != (b < T(0)))) ? static_cast<T>(r + b) : r;
}

template <typename T>
DEVICE T op_truncdiv(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return trunc(a / b);
  else return static_cast<T>(a / b);
}

template <typename T>
DEVICE T op_floordiv(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {  // c10::div_floor_floating
    if (b == T(0)) return a / b;
    T mod = fmod(a, b);
    T div = (a - mod) / b;
    if (mod != T(0) && (b < T(0)) != (mod < T(0))) div -= T(1);
    if (div == T(0)) return copysign(T(0), a / b);
    T down = floor(div);
    return div - down > T(0.5) ? down + T(1) : down;
  } else {
    T q = static_cast<T>(a / b);
    return (a % b != 0 && ((a < 0) != (b < 0))) ? static_cast<T>(q - 1) : q;
  }
}

template <typename T>
DEVICE T op_rsqrt(T a) {
  if constexpr (std::is_same_v<T, float>) return rsqrtf(a);
  else return rsqrt(a);
}

// 1 / (1 + exp(-a)). The quick division is within 2 ulp here: its denominator is never below 1, and infinity gives 0.
template <typename T>
DEVICE T op_sigmoid(T a) {
  if constexpr (std::is_same_v<T, float>) return __fdividef(1.0f, 1.0f + expf(-a));
  else return T(1) / (T(1) + exp(-a));
}

template <typename T>
DEVICE T op_round(T a) {
  if constexpr (std::is_same_v<T, float>) return rintf(a);
  else return rint(a);
}

// Whether element (a, i) comes before (b, k) as the extreme one: NaN first, then the larger (smaller) value, then the
// lower position.
template <bool LARGEST, typename T, typename I>
DEVICE bool op_precedes(T a, I i, T b, I k) {
  if (op_isnan(a) || op_isnan(b)) return op_isnan(a) && (!op_isnan(b) || i < k);
  if (a == b) return i < k;
  return LARGEST ? a > b : a < b;
}
