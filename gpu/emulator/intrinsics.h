// Device functions of CUDA that plain C++ lacks. Approximate ones (__expf, rsqrtf, …) are the host's accurate functions:
// what they lose on a device cannot be seen here.
#pragma once
#include "runtime.h"

using std::isfinite;
using std::isinf;
using std::isnan;

#define EMU_MIN_MAX(T)                                 \
  inline T min(T a, T b) { return a < b ? a : b; }     \
  inline T max(T a, T b) { return a > b ? a : b; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline void __sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.f), 1.f); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline double rsqrt(double x) { return 1. / sqrt(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1. / sqrt(static_cast<double>(x))); }
inline float __frcp_rn(float x) { return 1.f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

namespace emu {

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof to);
  return to;
}

inline int saturated(double x) {  // conversions on a device saturate, and turn NaN into 0
  if (std::isnan(x)) return 0;
  return x >= 2147483647. ? 2147483647 : x <= -2147483648. ? -2147483647 - 1 : static_cast<int>(x);
}

}  // namespace emu

inline int __float_as_int(float x) { return emu::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return emu::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return emu::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return emu::bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return emu::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return emu::bits_as<double>(x); }
inline int __float2int_rn(float x) { return emu::saturated(nearbyint(static_cast<double>(x))); }
inline int __float2int_rz(float x) { return emu::saturated(trunc(static_cast<double>(x))); }
inline int __float2int_ru(float x) { return emu::saturated(ceil(static_cast<double>(x))); }
inline int __float2int_rd(float x) { return emu::saturated(floor(static_cast<double>(x))); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= ((x >> bit) & 1u) << (31 - bit);
  return reversed;
}
inline int __dp4a(int a, int b, int sum) {  // four products of signed bytes
  for (int byte = 0; byte < 4; ++byte) sum += static_cast<signed char>(a >> (8 * byte)) * static_cast<signed char>(b >> (8 * byte));
  return sum;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32); }
inline int __mul24(int a, int b) { return a * b; }

template <class T> EMU_INLINE T __ldg(const T* p) { return *p; }
template <class T> EMU_INLINE T __ldcs(const T* p) { return *p; }
template <class T> EMU_INLINE T __ldcg(const T* p) { return *p; }
template <class T> EMU_INLINE void __stcs(T* p, T value) { *p = value; }
template <class T> EMU_INLINE void __stcg(T* p, T value) { *p = value; }

// The host side of NVIDIA's headers lacks these. The one rounding to double before the last changes a result only where it
// makes a tie: within 2^-53 of one.
inline __half __hfma(__half a, __half b, __half c) {
  return __double2half(fma(static_cast<double>(__half2float(a)), __half2float(b), __half2float(c)));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __double2bfloat16(fma(static_cast<double>(__bfloat162float(a)), __bfloat162float(b), __bfloat162float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return __halves2half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __halves2bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}

inline unsigned __cvta_generic_to_shared(const void*, EMU_CALLER) {
  emu::fail(emu::Kind::undefined, file, line, "__cvta_generic_to_shared has no meaning on a CPU: use the wrappers of ptx.cuh");
}
