// The C interface of a built library: the product of 8-bit integers, of one tile shape, output type and architecture.
//
//   out[m, n] = (sum over k of x[m, k] w[n, k]) * x_scale[m] * w_scale[n] + bias[n] + residual[m, n]
//
// x: int8 [m, k]; w: int8 [n, k]; x_scale: float [m]; w_scale: float [n]; bias: [n] or null; bias, residual and out are
// of the output type. All are contiguous and begin at multiples of 16 bytes; k is a multiple of 16 and n of 8.
// Built with W8A8_HALF: 1 for float16, 0 for bfloat16; W8A8_RESIDUAL: 1 if there is a residual [m, n], which may be out,
// 0 if it is not read; and what the tile of the architecture's file takes.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "cutlass/cutlass.h"
#include "cutlass/numeric_types.h"

using Element = std::conditional_t<W8A8_HALF, cutlass::half_t, cutlass::bfloat16_t>;
constexpr bool kResidual = W8A8_RESIDUAL;

struct Problem {
  int8_t const* x;
  float const* x_scale;
  int8_t const* w;
  float const* w_scale;
  Element const* bias;
  Element const* residual;
  Element* out;
  int m, n, k;
};

extern "C" {
// Bytes of workspace that a product needs, or less than 0 where the tile cannot serve it.
int64_t w8a8_workspace(Problem const* problem, int processors);
// 0, or the number of a cutlass::Status. stream: a cudaStream_t.
int w8a8_product(Problem const* problem, void* workspace, int processors, void* stream);
char const* w8a8_status(int status) { return cutlass::cutlassGetStatusString(static_cast<cutlass::Status>(status)); }
}
