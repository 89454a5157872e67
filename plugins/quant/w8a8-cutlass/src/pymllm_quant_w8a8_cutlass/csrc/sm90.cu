// Hopper: wgmma fed by TMA, with the scales, the bias and the residual in the epilogue's visitor tree.
//
// Of a tile: W8A8_M, W8A8_N: rows of x and of w; W8A8_CLUSTER: programs, along m, that share w; W8A8_PINGPONG: 1 if the
// two consumer groups take turns with a tile each, 0 if they share one.
//
// Launched dependently, as the Triton kernels around it are: it starts while the kernel ahead still runs, and waits for
// that one's end before it reads anything.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1
#include "w8a8.h"

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

namespace {

using namespace cute;
namespace fusion = cutlass::epilogue::fusion;
using Tensor = cutlass::arch::OpClassTensorOp;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;

constexpr auto kNearest = cutlass::FloatRoundStyle::round_to_nearest;
constexpr int kAlignInteger = 16;
constexpr int kAlignElement = 8;
// Neighbouring tiles are worked on together, so that their operands are found in the second-level cache.
constexpr int kSwizzle = 8;

using Tile = Shape<Int<W8A8_M>, Int<W8A8_N>, _128>;
using Cluster = Shape<Int<W8A8_CLUSTER>, _1, _1>;
using MainloopSchedule = conditional_t<W8A8_PINGPONG, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                                       cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
using EpilogueSchedule = conditional_t<W8A8_PINGPONG, cutlass::epilogue::TmaWarpSpecialized,
                                       cutlass::epilogue::TmaWarpSpecializedCooperative>;

using XScale = fusion::Sm90ColBroadcast<0, Tile, float, float, Stride<_1, _0, _0>>;
using WScale = fusion::Sm90RowBroadcast<0, Tile, float, float, Stride<_0, _1, _0>>;
using Bias = fusion::Sm90RowBroadcast<0, Tile, Element, float, Stride<_0, _1, _0>>;
using Times = fusion::Sm90Compute<cutlass::multiplies, float, float, kNearest>;
template <class To>
using Plus = fusion::Sm90Compute<cutlass::plus, To, float, kNearest>;

using Scaled = fusion::Sm90EVT<Times, WScale, fusion::Sm90EVT<Times, XScale, fusion::Sm90AccFetch>>;
using Biased = fusion::Sm90EVT<Plus<conditional_t<kResidual, float, Element>>, Bias, Scaled>;
using Added = fusion::Sm90EVT<Plus<Element>, fusion::Sm90SrcFetch<Element>, Biased>;
using Tree = conditional_t<kResidual, Added, Biased>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, Tensor, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, int32_t, float,
    conditional_t<kResidual, Element, void>, Row, kAlignElement, Element, Row, kAlignElement, EpilogueSchedule,
    Tree>::CollectiveOp;
using Stages = cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
    sizeof(typename Epilogue::SharedStorage))>;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, Tensor, int8_t, Row, kAlignInteger, int8_t, Column, kAlignInteger, int32_t, Tile, Cluster,
    Stages, MainloopSchedule>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

// The strides of a matrix whose rows lie one after another.
template <class Strides>
Strides rows_of(int64_t length) {
  Strides strides{};
  get<0>(strides) = length;
  return strides;
}

template <class Type>
typename Type::Arguments tree(Problem const& problem) {
  typename Scaled::Arguments scaled{{problem.w_scale}, {{problem.x_scale}, {}, {}}, {}};
  typename Biased::Arguments biased{{problem.bias}, scaled, {}};
  if constexpr (cute::is_same_v<Type, Added>) {
    return {{}, biased, {}};
  } else {
    return biased;
  }
}

typename Gemm::Arguments arguments(Problem const& problem, int processors) {
  typename Gemm::Arguments found{};
  found.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  found.problem_shape = {problem.m, problem.n, problem.k, 1};
  found.mainloop = {problem.x, rows_of<typename Kernel::StrideA>(problem.k), problem.w,
                    rows_of<typename Kernel::StrideB>(problem.k)};
  found.epilogue.thread = tree<Tree>(problem);
  found.epilogue.ptr_C = kResidual ? problem.residual : nullptr;
  found.epilogue.dC = rows_of<typename Kernel::StrideC>(problem.n);
  found.epilogue.ptr_D = problem.out;
  found.epilogue.dD = rows_of<typename Kernel::StrideD>(problem.n);
  found.hw_info.sm_count = processors;
  found.scheduler.max_swizzle_size = kSwizzle;
  return found;
}

}  // namespace

int64_t w8a8_workspace(Problem const* problem, int processors) {
  auto asked = arguments(*problem, processors);
  if (Gemm::can_implement(asked) != cutlass::Status::kSuccess) return -1;
  return static_cast<int64_t>(Gemm::get_workspace_size(asked));
}

int w8a8_product(Problem const* problem, void* workspace, int processors, void* stream) {
  Gemm gemm;
  constexpr bool kDependent = true;
  return static_cast<int>(
      gemm(arguments(*problem, processors), workspace, static_cast<cudaStream_t>(stream), nullptr, kDependent));
}
