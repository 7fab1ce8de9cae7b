// The matrix products of linear layers through cuBLASLt, row-major, with the algorithm of each shape chosen by timing.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/engine/fused/cuda_handles.h"
#include "lockstep/kernels/cuda/types.h"
#include "lockstep/plan/fused_limits.h"

namespace lockstep::engine::cuda {

using kernels::cuda::Bf16;

// A pair of events around what is enqueued between start and stop.
class Stopwatch {
 public:
  Stopwatch();
  void start(cudaStream_t stream);
  void stop(cudaStream_t stream);
  float milliseconds() const;  // waits

 private:
  Event begin_, end_;
};

enum class ElementType { kBf16, kFloat, kE4m3, kE5m2 };

// An operand; `inverse_scale` (device, one float) is what 8-bit values are multiplied with.
struct Operand {
  const void* data = nullptr;
  ElementType type = ElementType::kBf16;
  const float* inverse_scale = nullptr;
};

// One thread, one stream at a time. Calls enqueue and return, except that the first call of a shape times candidates on
// the real operands (the output is written several times, so with `accumulate` its value is then meaningless; run once
// and discard) and waits. Nothing may be captured on the stream during that first call.
class Gemm {
 public:
  explicit Gemm(int candidates = 8);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  static constexpr std::size_t kWorkspaceBytes = plan::fused::kGemmWorkspaceBytes;
  void set_workspace(void* workspace) { workspace_ = workspace; }

  // y [rows, out] = x [rows, in] * w [out, in]^T, plus `residual` [rows, out] where given (it may be y).
  void forward(Operand x, Operand w, Bf16* y, const Bf16* residual, std::int64_t rows, std::int64_t in,
               std::int64_t out, cudaStream_t stream);
  // dx [rows, in] = dy [rows, out] * w [out, in].
  void data_gradient(const Bf16* dy, const Bf16* w, Bf16* dx, std::int64_t rows, std::int64_t in, std::int64_t out,
                     cudaStream_t stream);
  // The same with 8-bit operands; w_transposed is [in, out].
  void data_gradient_fp8(Operand dy, Operand w_transposed, Bf16* dx, std::int64_t rows, std::int64_t in,
                         std::int64_t out, cudaStream_t stream);
  // dw [out, in] (+)= dy [rows, out]^T * x [rows, in]; dw is bf16 or float.
  void weight_gradient(const Bf16* dy, const Bf16* x, void* dw, ElementType dw_type, bool accumulate, std::int64_t rows,
                       std::int64_t in, std::int64_t out, cudaStream_t stream);

  // A table of algorithms by shape, made by an earlier run with the same library on the same kind of device; shapes in
  // it are not timed again. A table of another library or device is not used: false.
  bool use_table(const std::string& text);
  std::string table() const;
  // Other choices made by timing travel in the same table: null where nothing is known of `what`.
  const std::string* noted(const std::string& what) const;
  void note(const std::string& what, const std::string& choice) { table_[what] = choice; }

  // Choosing in place: a GPU under its power limit settles at clocks that depend on all that runs, so the fastest in a
  // short test need not be the fastest inside a step. For each k the caller says begin_trial(k), runs a step that is
  // not captured, and says end_trial(), which waits; settle_trials() then takes the best of each shape.
  void begin_trial(int k);
  void end_trial(cudaStream_t stream);
  void settle_trials();

  struct Choice {
    std::string shape;
    int candidates = 0, chosen = 0;  // chosen: place in the library's own ranking
    float first_ms = 0, best_ms = 0;
  };
  std::vector<Choice> choices() const;

 private:
  // Column-major, as the library sees it: d [m, n] = op(a) [m, k] * op(b) [k, n] + beta * c.
  struct Call {
    bool transpose_a = false, transpose_b = false;
    std::int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0;
    Operand a, b;
    const void* c = nullptr;
    void* d = nullptr;
    ElementType d_type = ElementType::kBf16;
    float beta = 0;
    bool fast_accumulation = false;
  };
  using Key = std::tuple<bool, bool, std::int64_t, std::int64_t, std::int64_t, int, int, int, bool, bool>;
  struct Plan;

  void run(const Call& call, cudaStream_t stream);
  Plan& plan_of(const Call& call, cudaStream_t stream);
  void choose(Plan& plan, const Call& call, cudaStream_t stream);
  bool take_from_table(Plan& plan);
  std::vector<cublasLtMatmulAlgo_t> find_candidates(Plan& plan) const;
  cublasStatus_t launch(Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Call& call, cudaStream_t stream);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  int candidates_;
  int trial_ = -1;  // candidate on trial; -1: none
  struct Trial {
    Plan* plan;
    Stopwatch watch;
  };
  std::vector<Trial> trials_;
  std::map<std::string, std::string> table_;  // shape -> the algorithm's 64 bytes in hexadecimal; and notes
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace lockstep::engine::cuda
