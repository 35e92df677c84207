// The only file with inline PTX. Every wrapper has an emulated twin with the register layout of the PTX ISA (section 9.7.14).
//
//   mma_m16n8k16_bf16 / _f16   d (16, 8) += a (16, 16, row major) b (16, 8, column major), float32 accumulation
//   ldmatrix_x2 / _x4 [_trans] two or four 8x8 matrices of 16-bit elements: lane 8 i + r gives the address of row r of matrix i
//   cp_async_16                16 bytes from global to shared memory, asynchronously (zeros where pred is false);
//                              visible to the thread itself after commit and wait (or wait_all), to others after a barrier too
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef ORACLES_EMULATED
#include "ptx_twins.h"
#else
namespace ptx {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

#define PTX_MMA_M16N8K16(NAME, TYPE)                                                                                    \
  __device__ __forceinline__ void NAME(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {                \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "                                        \
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"                                             \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                  \
  }
PTX_MMA_M16N8K16(mma_m16n8k16_bf16, "bf16")
PTX_MMA_M16N8K16(mma_m16n8k16_f16, "f16")
#undef PTX_MMA_M16N8K16

#define PTX_LDMATRIX_X4(NAME, MODIFIER)                                                                                 \
  __device__ __forceinline__ void NAME(unsigned (&r)[4], const void* row) {                                            \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" MODIFIER ".shared.b16 {%0,%1,%2,%3}, [%4];\n"                         \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                                      \
                 : "r"(shared_address(row))                                                                            \
                 : "memory");                                                                                          \
  }
PTX_LDMATRIX_X4(ldmatrix_x4, "")
PTX_LDMATRIX_X4(ldmatrix_x4_trans, ".trans")
#undef PTX_LDMATRIX_X4

#define PTX_LDMATRIX_X2(NAME, MODIFIER)                                                                                 \
  __device__ __forceinline__ void NAME(unsigned (&r)[2], const void* row) {                                            \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" MODIFIER ".shared.b16 {%0,%1}, [%2];\n"                               \
                 : "=r"(r[0]), "=r"(r[1])                                                                              \
                 : "r"(shared_address(row))                                                                            \
                 : "memory");                                                                                          \
  }
PTX_LDMATRIX_X2(ldmatrix_x2, "")
PTX_LDMATRIX_X2(ldmatrix_x2_trans, ".trans")
#undef PTX_LDMATRIX_X2

__device__ __forceinline__ void cp_async_16(void* shared, const void* global, bool pred = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global), "r"(pred ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most N of this thread's groups are still on their way.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

// Waits for all of this thread's copies, those not yet in a group included.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

}  // namespace ptx
#endif
