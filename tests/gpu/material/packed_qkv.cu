// Attention as a model's own kernel might be written: q, k, v in one length-major tensor, macros for the layout and the declaration.
// qkv (B, L, 3, H, D), out (B, L, H, D)   grid (L, H, B)   block (32), a warp a query   shared L floats
#include <cuda_runtime.h>
#include <math_constants.h>

#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define READS(T) const T* __restrict__
#define ROW(which, row) (qkv + ((((size_t)blockIdx.z * L + (row)) * 3 + (which)) * H + blockIdx.y) * D)
#define ALL_LANES 0xffffffffu
#define FOR_LANES(i, n) for (int i = threadIdx.x; i < (n); i += 32)
#define DYNAMIC(T, name) extern __shared__ T name[]

enum { Q, K, V };

KERNEL(packed_attention, READS(float) qkv, float* out, int L, int H, int D, float scale, bool causal) {
  DYNAMIC(float, weights);
  const int query = blockIdx.x, seen = causal ? query + 1 : L;
  const float* q = ROW(Q, query);
  float m = -CUDART_INF_F, total = 0.f;
  FOR_LANES(j, seen) {
    float score = 0.f;
    for (int d = 0; d < D; ++d) score += q[d] * ROW(K, j)[d];
    weights[j] = score * scale;
    m = fmaxf(m, weights[j]);
  }
  for (int lanes = 16; lanes; lanes /= 2) m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, lanes));
  FOR_LANES(j, seen) total += weights[j] = expf(weights[j] - m);
  for (int lanes = 16; lanes; lanes /= 2) total += __shfl_xor_sync(ALL_LANES, total, lanes);
  __syncwarp();
  FOR_LANES(d, D) {
    float sum = 0.f;
    for (int j = 0; j < seen; ++j) sum += weights[j] * ROW(V, j)[d];
    out[(((size_t)blockIdx.z * L + query) * H + blockIdx.y) * D + d] = sum / total;
  }
}
