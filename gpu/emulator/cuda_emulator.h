// Force-included before an unmodified CUDA C++ source: makes it a C++17 source in which every CUDA thread is a fiber.
// Types and conversions of half, bfloat16 and vectors are NVIDIA's own, from the host side of its headers.
#pragma once
#define ORACLES_EMULATED 1
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __managed__
#undef __launch_bounds__
#undef __grid_constant__
#undef __forceinline__
#undef __noinline__
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
// __shared__ stays a bare word here: building.py turns it into storage once all macros are expanded.

#include "runtime.h"

#define threadIdx (::emu::current->thread_index)
#define blockIdx (::emu::launch.block_index)
#define blockDim (::emu::launch.block)
#define gridDim (::emu::launch.grid)
#define warpSize 32

#include "atomics.h"
#include "collectives.h"
#include "entry.h"
#include "intrinsics.h"
