// Ampere, Orin and Ada: mma fed by asynchronous copies, with the scales, the bias and the residual in the visitor tree.
//
// Of a tile: W8A8_M, W8A8_N, W8A8_K: rows of x and of w, and terms at a time, of a program; W8A8_WARP_M, W8A8_WARP_N: of
// a warp; W8A8_STAGES: tiles of operands in flight.
#include "w8a8.h"

#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/default_gemm_universal_with_visitor.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"

// It needs what the headers above include.
#include "cutlass/epilogue/threadblock/fusion/visitors.hpp"

namespace {

using namespace cute;
namespace threadblock = cutlass::epilogue::threadblock;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;

constexpr auto kNearest = cutlass::FloatRoundStyle::round_to_nearest;
constexpr auto kNone = cutlass::ComplexTransform::kNone;
constexpr int kAlignInteger = 16;
constexpr int kAlignElement = 8;

using Tile = cutlass::gemm::GemmShape<W8A8_M, W8A8_N, W8A8_K>;
using Warp = cutlass::gemm::GemmShape<W8A8_WARP_M, W8A8_WARP_N, W8A8_K>;
using Instruction = cutlass::gemm::GemmShape<16, 8, 32>;
// Neighbouring tiles are worked on together, so that their operands are found in the second-level cache.
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>;

using Threads = threadblock::OutputTileThreadLayout<Tile, Warp, Element, kAlignElement>;
using Matrix = Stride<int64_t, _1, _0>;
using XScale = threadblock::VisitorColBroadcast<Threads, float, Stride<_1, _0, _0>>;
using WScale = threadblock::VisitorRowBroadcast<Threads, float, Stride<_0, _1, _0>>;
using Bias = threadblock::VisitorRowBroadcast<Threads, Element, Stride<_0, _1, _0>>;
using Residual = threadblock::VisitorAuxLoad<Threads, Element, Matrix>;
using Out = threadblock::VisitorAuxStore<Threads, Element, kNearest, Matrix>;
using Times = threadblock::VisitorCompute<cutlass::multiplies, float, float, kNearest>;
using Plus = threadblock::VisitorCompute<cutlass::plus, float, float, kNearest>;

using Scaled = threadblock::Sm80EVT<Times, WScale, threadblock::Sm80EVT<Times, XScale, threadblock::VisitorAccFetch>>;
using Biased = threadblock::Sm80EVT<Plus, Bias, Scaled>;
using Added = threadblock::Sm80EVT<Plus, Residual, Biased>;
using Tree = threadblock::Sm80EVT<Out, std::conditional_t<kResidual, Added, Biased>>;

using Kernel = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
    int8_t, Row, kNone, kAlignInteger, int8_t, Column, kNone, kAlignInteger, Element, Row, kAlignElement, int32_t, float,
    cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, Tile, Warp, Instruction, Tree, Swizzle, W8A8_STAGES,
    cutlass::arch::OpMultiplyAddSaturate>::GemmKernel;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

template <class Type>
typename Type::Arguments tree(Problem const& problem) {
  Matrix const rows{problem.n, _1{}, _0{}};
  typename Scaled::Arguments scaled{{problem.w_scale}, {{problem.x_scale}, {}, {}}, {}};
  typename Biased::Arguments biased{{problem.bias}, scaled, {}};
  typename Out::Arguments out{problem.out, rows};
  if constexpr (cute::is_same_v<Type, threadblock::Sm80EVT<Out, Added>>) {
    typename Residual::Arguments residual{const_cast<Element*>(problem.residual), Element(0), rows};
    return {{residual, biased, {}}, out};
  } else {
    return {biased, out};
  }
}

typename Gemm::Arguments arguments(Problem const& problem) {
  return {cutlass::gemm::GemmUniversalMode::kGemm,
          {problem.m, problem.n, problem.k},
          1,
          tree<Tree>(problem),
          problem.x,
          problem.w,
          nullptr,
          nullptr,
          0,
          0,
          0,
          0,
          problem.k,
          problem.k,
          0,
          0};
}

}  // namespace

int64_t w8a8_workspace(Problem const* problem, int) {
  auto asked = arguments(*problem);
  if (Gemm::can_implement(asked) != cutlass::Status::kSuccess) return -1;
  return static_cast<int64_t>(Gemm::get_workspace_size(asked));
}

int w8a8_product(Problem const* problem, void* workspace, int, void* stream) {
  Gemm gemm;
  return static_cast<int>(gemm(arguments(*problem), workspace, static_cast<cudaStream_t>(stream)));
}
