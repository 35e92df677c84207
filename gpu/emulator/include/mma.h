// nvcuda::wmma for 16-bit inputs and float32 accumulation. CUDA leaves open which lane holds which element of a fragment:
// here element e = 32 i + lane of the row-major tile is x[i] of that lane.
#pragma once
#include "runtime.h"

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K> struct Tile;
template <int M, int N, int K> struct Tile<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct Tile<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };
template <int M, int N, int K> struct Tile<accumulator, M, N, K> { static constexpr int rows = M, columns = N; };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment : Tile<Use, M, N, K> {
  static constexpr int num_elements = Tile<Use, M, N, K>::rows * Tile<Use, M, N, K>::columns / 32;
  T x[num_elements];
};

template <class Use, int M, int N, int K, class T, class Layout>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, T value) {
  for (auto& element : f.x) element = value;
}

inline int element_of_lane(int i) { return 32 * i + static_cast<int>(emu::current->lane); }

inline void check_pointer(const void* p, const char* file, int line) {
  if (reinterpret_cast<uintptr_t>(p) % 32) emu::fail(emu::Kind::misaligned, file, line, "wmma: the pointer is not a multiple of 32");
}

template <class Fragment, class T>
EMU_INLINE void load(Fragment& f, const T* p, unsigned stride, bool row_order, const char* file, int line) {
  check_pointer(p, file, line);
  emu::wait_for_warp(0xffffffffu, emu::Op::mma, nullptr, 0, file, line);
  for (int i = 0; i < Fragment::num_elements; ++i) {
    const int row = element_of_lane(i) / Fragment::columns, column = element_of_lane(i) % Fragment::columns;
    f.x[i] = row_order ? p[row * stride + column] : p[column * stride + row];
  }
}
template <class Use, int M, int N, int K, class T, class Layout>
EMU_INLINE void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const T* p, unsigned stride, EMU_CALLER) {
  load(f, p, stride, std::is_same<Layout, row_major>::value, file, line);
}
template <int M, int N, int K, class T>
EMU_INLINE void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const T* p, unsigned stride, layout_t layout, EMU_CALLER) {
  load(f, p, stride, layout == mem_row_major, file, line);
}

template <int M, int N, int K, class T>
EMU_INLINE void store_matrix_sync(T* p, const fragment<accumulator, M, N, K, T>& f, unsigned stride, layout_t layout, EMU_CALLER) {
  check_pointer(p, file, line);
  emu::wait_for_warp(0xffffffffu, emu::Op::mma, nullptr, 0, file, line);
  for (int i = 0; i < f.num_elements; ++i) {
    const int row = element_of_lane(i) / N, column = element_of_lane(i) % N;
    p[layout == mem_row_major ? row * stride + column : column * stride + row] = f.x[i];
  }
}

template <int M, int N, int K, class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, M, N, K, float>& d, const fragment<matrix_a, M, N, K, T, LayoutA>& a,
              const fragment<matrix_b, M, N, K, T, LayoutB>& b, const fragment<accumulator, M, N, K, float>& c, EMU_CALLER) {
  struct Inputs {
    T a[M * K / 32], b[K * N / 32];
  } mine;
  for (int i = 0; i < M * K / 32; ++i) mine.a[i] = a.x[i];
  for (int i = 0; i < K * N / 32; ++i) mine.b[i] = b.x[i];
  emu::wait_for_warp(0xffffffffu, emu::Op::mma, &mine, sizeof mine, file, line);
  const auto theirs = [&](int element) { return static_cast<const Inputs*>(emu::brought_by(element % 32, true, file, line)); };
  for (int i = 0; i < d.num_elements; ++i) {
    const int row = element_of_lane(i) / N, column = element_of_lane(i) % N;
    double sum = 0;
    for (int k = 0; k < K; ++k) {
      const int in_a = row * K + k, in_b = k * N + column;
      sum += static_cast<double>(static_cast<float>(theirs(in_a)->a[in_a / 32])) * static_cast<float>(theirs(in_b)->b[in_b / 32]);
    }
    d.x[i] = static_cast<float>(sum + c.x[i]);
  }
}

}  // namespace wmma
}  // namespace nvcuda
