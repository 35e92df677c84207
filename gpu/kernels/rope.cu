// Rotary position embedding: each pair of the first R coordinates of a row turned by its position times its frequency.
//
//   (a_i, b_i) -> (a_i c_i - b_i s_i,  a_i s_i + b_i c_i),   c_i = m cos(p f_i),  s_i = m sin(p f_i),   i < R / 2
//   "half": pair i is (x_i, x_(i + R/2));  interleaved: (x_2i, x_(2i + 1))
//
// x, out: (rows, D) in T; positions (rows) int64; frequencies (R / 2) float64, made on the host: linear, ntk, yarn and llama3 are
// nothing but other numbers there, and m = 1 but for yarn. The angle, its sine and cosine are float64: an angle in float32 is off by
// p 2^-24. They are rounded to float32 once; the products and the sum are float32, and rounded to T once. Coordinates from R on are
// copied. Every thread reads its pair before it writes it, so out may be x.
// grid (ceil(rows / 4))   block (32, 4), a warp a row, a lane a pair   shared none   budget: 64 registers, 0 spills
// instances: rope<float|__half|__nv_bfloat16>
// Source: Su et al. 2021 (arXiv 2104.09864), equation 34.
#include "common.cuh"

template <typename T>
__global__ void __launch_bounds__(128)
rope(const T* x, const long long* __restrict__ positions, const double* __restrict__ frequencies, T* out, long long rows, int D, int R,
     int interleaved, double m) {
  const long long row = (long long)blockIdx.x * 4 + threadIdx.y;
  if (row >= rows) return;
  const T* from = x + row * D;
  T* to = out + row * D;
  const double p = (double)positions[row];            // whole numbers up to 2^53 are float64
  for (int i = threadIdx.x; i < R / 2; i += 32) {
    const int first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + R / 2;
    double sine, cosine;
    sincos(p * frequencies[i], &sine, &cosine);
    const float a = widen(from[first]), b = widen(from[second]), c = (float)(m * cosine), s = (float)(m * sine);
    narrow(a * c - b * s, &to[first]);
    narrow(a * s + b * c, &to[second]);
  }
  for (int c = R + threadIdx.x; c < D; c += 32) to[c] = from[c];
}
