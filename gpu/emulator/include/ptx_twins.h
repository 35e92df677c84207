// The emulated twins of ptx.cuh: the same names, the register layout of the PTX ISA, warp exchanges instead of instructions.
#pragma once
#include "runtime.h"

namespace ptx {

inline float widened(unsigned bits, __nv_bfloat16) { return emu::bits_as<float>(bits << 16); }
inline float widened(unsigned bits, __half) { return __half2float(emu::bits_as<__half>(static_cast<unsigned short>(bits))); }

// Thread (lane) holds of d rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and the next.
template <class T>
void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const char* file, int line) {
  const unsigned mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  emu::wait_for_warp(0xffffffffu, emu::Op::mma, mine, sizeof mine, file, line);
  const auto element = [&](int lane, int word, int half) {
    const unsigned* words = static_cast<const unsigned*>(emu::brought_by(lane, true, file, line));
    return static_cast<double>(widened((words[word] >> (16 * half)) & 0xffffu, T{}));
  };
  const int lane = static_cast<int>(emu::current->lane);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    double sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int half = k % 2, pair = k % 8 / 2;
      sum += element(row % 8 * 4 + pair, (row >= 8) + 2 * (k >= 8), half) * element(column * 4 + pair, 4 + (k >= 8), half);
    }
    d[i] = static_cast<float>(sum + d[i]);
  }
}
inline void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], EMU_CALLER) {
  mma_m16n8k16<__nv_bfloat16>(d, a, b, file, line);
}
inline void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], EMU_CALLER) {
  mma_m16n8k16<__half>(d, a, b, file, line);
}

// Register j of lane l holds elements 2 (l % 4) and the next of row l / 4 of matrix j; transposed: of column l / 4.
template <int Matrices>
EMU_INLINE void ldmatrix(unsigned (&r)[Matrices], const void* row, bool transposed, const char* file, int line) {
  if (reinterpret_cast<uintptr_t>(row) % 16) {
    emu::fail(emu::Kind::misaligned, file, line, "ldmatrix: the address of a row is not a multiple of 16");
  }
  emu::wait_for_warp(0xffffffffu, emu::Op::ldmatrix, &row, sizeof row, file, line);
  const int lane = static_cast<int>(emu::current->lane);
  for (int j = 0; j < Matrices; ++j) {
    const auto element = [&](int r, int c) __attribute__((always_inline)) {
      const unsigned short* theirs;
      memcpy(&theirs, emu::brought_by(8 * j + r, true, file, line), sizeof theirs);
      return static_cast<unsigned>(theirs[c]);
    };
    const int outer = lane / 4, inner = lane % 4 * 2;
    const unsigned low = transposed ? element(inner, outer) : element(outer, inner);
    const unsigned high = transposed ? element(inner + 1, outer) : element(outer, inner + 1);
    r[j] = low | high << 16;
  }
}
EMU_INLINE void ldmatrix_x4(unsigned (&r)[4], const void* row, EMU_CALLER) { ldmatrix(r, row, false, file, line); }
EMU_INLINE void ldmatrix_x4_trans(unsigned (&r)[4], const void* row, EMU_CALLER) { ldmatrix(r, row, true, file, line); }
EMU_INLINE void ldmatrix_x2(unsigned (&r)[2], const void* row, EMU_CALLER) { ldmatrix(r, row, false, file, line); }
EMU_INLINE void ldmatrix_x2_trans(unsigned (&r)[2], const void* row, EMU_CALLER) { ldmatrix(r, row, true, file, line); }

EMU_INLINE void cp_async_16(void* shared, const void* global, bool pred = true, EMU_CALLER) {
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 16) {
    emu::fail(emu::Kind::misaligned, file, line, "cp.async of 16 bytes: an address is not a multiple of 16");
  }
  emu::start_copy(shared, pred ? global : nullptr, 16);
}
EMU_INLINE void cp_async_commit() { emu::commit_copies(); }
template <int N>
EMU_INLINE void cp_async_wait() {
  emu::wait_for_copies(N);
}
EMU_INLINE void cp_async_wait_all() {
  emu::commit_copies();
  emu::wait_for_copies(0);
}

}  // namespace ptx
