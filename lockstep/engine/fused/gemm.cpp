#include "lockstep/engine/fused/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "lockstep/kernels/cuda/check.h"

namespace lockstep::engine::cuda {
namespace {

void check_blas(cublasStatus_t status, const char* call, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(fmt::format("[gemm] {} at line {}: {}", call, line, cublasLtGetStatusString(status)));
}
#define LOCKSTEP_BLAS(call) check_blas((call), #call, __LINE__)

cudaDataType_t type_of(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return CUDA_R_16BF;
    case ElementType::kFloat:
      return CUDA_R_32F;
    case ElementType::kE4m3:
      return CUDA_R_8F_E4M3;
    case ElementType::kE5m2:
      return CUDA_R_8F_E5M2;
  }
  return CUDA_R_16BF;
}
constexpr float kNever = 1e30f;  // milliseconds of what did not run
bool is_fp8(ElementType type) { return type == ElementType::kE4m3 || type == ElementType::kE5m2; }

}  // namespace

Stopwatch::Stopwatch() : begin_(make_event()), end_(make_event()) {}
void Stopwatch::start(cudaStream_t stream) { LOCKSTEP_CUDA(cudaEventRecord(begin_.get(), stream)); }
void Stopwatch::stop(cudaStream_t stream) { LOCKSTEP_CUDA(cudaEventRecord(end_.get(), stream)); }
float Stopwatch::milliseconds() const {
  float ms = 0;
  LOCKSTEP_CUDA(cudaEventSynchronize(end_.get()));
  LOCKSTEP_CUDA(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
  return ms;
}

struct Gemm::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  std::vector<cublasLtMatmulAlgo_t> candidates;
  std::vector<float> trial_ms;  // by candidate, summed over trials
  std::vector<int> trial_runs;
  Choice choice;

  explicit Plan(const Call& call) {
    LOCKSTEP_BLAS(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t op_a = call.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = call.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, op_a);
    set(CUBLASLT_MATMUL_DESC_TRANSB, op_b);
    if (is_fp8(call.a.type)) {
      const std::int8_t fast = call.fast_accumulation ? 1 : 0;
      set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
      set_scales(call);
    }
    const auto rows_a = call.transpose_a ? call.k : call.m, cols_a = call.transpose_a ? call.m : call.k;
    const auto rows_b = call.transpose_b ? call.n : call.k, cols_b = call.transpose_b ? call.k : call.n;
    LOCKSTEP_BLAS(cublasLtMatrixLayoutCreate(&a, type_of(call.a.type), rows_a, cols_a, call.lda));
    LOCKSTEP_BLAS(cublasLtMatrixLayoutCreate(&b, type_of(call.b.type), rows_b, cols_b, call.ldb));
    LOCKSTEP_BLAS(cublasLtMatrixLayoutCreate(&d, type_of(call.d_type), call.m, call.n, call.m));
  }
  ~Plan() {
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatmulDescDestroy(operation);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  void set_scales(const Call& call) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.a.inverse_scale);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.b.inverse_scale);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    LOCKSTEP_BLAS(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
  }
};

Gemm::Gemm(int candidates) : candidates_(candidates) { LOCKSTEP_BLAS(cublasLtCreate(&handle_)); }
Gemm::~Gemm() {
  plans_.clear();
  cublasLtDestroy(handle_);
}

cublasStatus_t Gemm::launch(Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Call& call, cudaStream_t stream) {
  if (is_fp8(call.a.type)) plan.set_scales(call);
  const float alpha = 1;
  const void* const c = call.beta == 0 ? call.d : call.c;
  return cublasLtMatmul(handle_, plan.operation, &alpha, call.a.data, plan.a, call.b.data, plan.b, &call.beta, c,
                        plan.d, call.d, plan.d, &algorithm, workspace_, kWorkspaceBytes, stream);
}

std::vector<cublasLtMatmulAlgo_t> Gemm::find_candidates(Plan& plan) const {
  cublasLtMatmulPreference_t preference = nullptr;
  LOCKSTEP_BLAS(cublasLtMatmulPreferenceCreate(&preference));
  const std::size_t limit = kWorkspaceBytes;
  LOCKSTEP_BLAS(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
  std::vector<cublasLtMatmulHeuristicResult_t> found(candidates_);
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                                               preference, candidates_, found.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  std::vector<cublasLtMatmulAlgo_t> all;
  for (int i = 0; i < count; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS) all.push_back(found[i].algo);
  if (all.empty())
    throw std::runtime_error(
        fmt::format("[gemm] no algorithm for {}: {}", plan.choice.shape, cublasLtGetStatusString(status)));
  return all;
}

void Gemm::choose(Plan& plan, const Call& call, cudaStream_t stream) {
  if (take_from_table(plan)) return;
  plan.candidates = find_candidates(plan);
  const auto& found = plan.candidates;
  const auto count = static_cast<int>(found.size());
  plan.algorithm = found[0];
  plan.choice.candidates = count;
  if (count == 1) return;
  // Every candidate runs once to be loaded, then in two rounds over all, so that a drift of the clocks meets them
  // alike.
  std::vector<float> best(count, kNever);
  Stopwatch watch;
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < count; ++i) {
      watch.start(stream);
      if (launch(plan, found[i], call, stream) != CUBLAS_STATUS_SUCCESS) continue;
      watch.stop(stream);
      const float ms = watch.milliseconds();
      if (round > 0) best[i] = std::min(best[i], ms);
    }
  const int chosen = static_cast<int>(std::min_element(best.begin(), best.end()) - best.begin());
  if (best[chosen] == kNever)
    throw std::runtime_error(fmt::format("[gemm] none of {} algorithms ran for {}: {}", count, plan.choice.shape,
                                         cublasLtGetStatusString(launch(plan, found[0], call, stream))));
  plan.algorithm = found[chosen];
  plan.choice.chosen = chosen;
  plan.choice.first_ms = best[0];
  plan.choice.best_ms = best[chosen];
}

void Gemm::begin_trial(int k) {
  trial_ = k;
  for (const auto& [key, plan] : plans_) {
    if (plan->candidates.empty()) continue;  // from a table: settled
    plan->trial_ms.resize(plan->candidates.size());
    plan->trial_runs.resize(plan->candidates.size());
    plan->algorithm = plan->candidates[k % plan->candidates.size()];
  }
}

void Gemm::end_trial(cudaStream_t stream) {
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
  for (const Trial& trial : trials_) {
    const std::size_t k = trial_ % trial.plan->candidates.size();
    trial.plan->trial_ms[k] += trial.watch.milliseconds();
    ++trial.plan->trial_runs[k];
  }
  trials_.clear();
  trial_ = -1;
}

void Gemm::settle_trials() {
  for (const auto& [key, plan] : plans_) {
    float best = kNever;
    for (std::size_t k = 0; k < plan->trial_ms.size(); ++k) {
      if (plan->trial_runs[k] == 0) continue;
      const float mean = plan->trial_ms[k] / static_cast<float>(plan->trial_runs[k]);
      if (k == 0) plan->choice.first_ms = mean;
      if (mean >= best) continue;
      best = plan->choice.best_ms = mean;
      plan->choice.chosen = static_cast<int>(k);
      plan->algorithm = plan->candidates[k];
    }
    // What the trials' steps did not run (a product that a fused kernel stands for) goes back to its first choice.
    if (best == kNever && !plan->candidates.empty()) plan->algorithm = plan->candidates[plan->choice.chosen];
  }
}

namespace {
std::string device_name() {
  int device = 0;
  cudaDeviceProp properties{};
  LOCKSTEP_CUDA(cudaGetDevice(&device));
  LOCKSTEP_CUDA(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}
std::string to_hex(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const auto word : algorithm.data) text += fmt::format("{:016x}", static_cast<std::uint64_t>(word));
  return text;
}
}  // namespace

bool Gemm::use_table(const std::string& text) {
  const auto table = nlohmann::json::parse(text, nullptr, false);
  const nlohmann::json ours{{"cublaslt", cublasLtGetVersion()}, {"device", device_name()}};
  if (!table.is_object()) return false;
  for (const auto& [key, value] : ours.items())
    if (!table.contains(key) || table[key] != value) return false;
  const auto algorithms = table.find("algorithms");
  if (algorithms == table.end() || !algorithms->is_object()) return false;
  decltype(table_) read;
  for (const auto& [shape, algorithm] : algorithms->items()) {
    if (!algorithm.is_string()) return false;
    read[shape] = algorithm.get<std::string>();
  }
  table_ = std::move(read);
  return true;
}

std::string Gemm::table() const {
  nlohmann::json algorithms = table_;
  for (const auto& [key, plan] : plans_) algorithms[plan->choice.shape] = to_hex(plan->algorithm);
  const nlohmann::json table{{"cublaslt", cublasLtGetVersion()}, {"device", device_name()}, {"algorithms", algorithms}};
  return table.dump(1) + "\n";
}

const std::string* Gemm::noted(const std::string& what) const {
  const auto found = table_.find(what);
  return found == table_.end() ? nullptr : &found->second;
}

bool Gemm::take_from_table(Plan& plan) {
  const auto found = table_.find(plan.choice.shape);
  if (found == table_.end() || found->second.size() != 16 * std::size(plan.algorithm.data)) return false;
  if (found->second.find_first_not_of("0123456789abcdef") != std::string::npos) return false;
  cublasLtMatmulAlgo_t algorithm{};
  for (std::size_t i = 0; i < std::size(algorithm.data); ++i)
    algorithm.data[i] = std::stoull(found->second.substr(16 * i, 16), nullptr, 16);
  cublasLtMatmulHeuristicResult_t result{};
  if (cublasLtMatmulAlgoCheck(handle_, plan.operation, plan.a, plan.b, plan.d, plan.d, &algorithm, &result) !=
          CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > kWorkspaceBytes)
    return false;
  plan.algorithm = algorithm;
  return true;
}

Gemm::Plan& Gemm::plan_of(const Call& call, cudaStream_t stream) {
  const Key key{call.transpose_a,
                call.transpose_b,
                call.m,
                call.n,
                call.k,
                static_cast<int>(call.a.type),
                static_cast<int>(call.b.type),
                static_cast<int>(call.d_type),
                call.beta != 0,
                call.fast_accumulation};
  auto& plan = plans_[key];
  if (plan == nullptr) {
    plan = std::make_unique<Plan>(call);
    plan->choice.shape = fmt::format("{}{} {}x{}x{}{}{}{}", call.transpose_a ? 'T' : 'N', call.transpose_b ? 'T' : 'N',
                                     call.m, call.n, call.k,
                                     !is_fp8(call.a.type)                ? ""
                                     : call.b.type == ElementType::kE5m2 ? " e4m3 e5m2"
                                                                         : " e4m3",
                                     call.d_type == ElementType::kFloat ? " to fp32" : "", call.beta != 0 ? " +" : "");
    choose(*plan, call, stream);
  }
  return *plan;
}

void Gemm::run(const Call& call, cudaStream_t stream) {
  Plan& plan = plan_of(call, stream);
  const bool timed = trial_ >= 0 && !plan.candidates.empty();
  if (timed) {
    trials_.push_back({&plan, Stopwatch()});
    trials_.back().watch.start(stream);
  }
  const cublasStatus_t status = launch(plan, plan.algorithm, call, stream);
  if (timed && status != CUBLAS_STATUS_SUCCESS) {  // not every candidate can run: the first stands in, untimed
    trials_.pop_back();
    check_blas(launch(plan, plan.candidates[0], call, stream), plan.choice.shape.c_str(), __LINE__);
    return;
  }
  check_blas(status, plan.choice.shape.c_str(), __LINE__);
  if (timed) trials_.back().watch.stop(stream);
}

std::vector<Gemm::Choice> Gemm::choices() const {
  std::vector<Choice> all;
  for (const auto& [key, plan] : plans_) all.push_back(plan->choice);
  return all;
}

// A row-major matrix is its transpose in column-major eyes, so operands change places.
void Gemm::forward(Operand x, Operand w, Bf16* y, const Bf16* residual, std::int64_t rows, std::int64_t in,
                   std::int64_t out, cudaStream_t stream) {
  Call call{.transpose_a = true, .m = out, .n = rows, .k = in, .lda = in, .ldb = in, .a = w, .b = x};
  call.c = residual;
  call.d = y;
  call.beta = residual != nullptr ? 1.0f : 0.0f;
  call.fast_accumulation = is_fp8(x.type);
  run(call, stream);
}

void Gemm::data_gradient(const Bf16* dy, const Bf16* w, Bf16* dx, std::int64_t rows, std::int64_t in, std::int64_t out,
                         cudaStream_t stream) {
  Call call{.m = in, .n = rows, .k = out, .lda = in, .ldb = out, .a = {w}, .b = {dy}};
  call.d = dx;
  run(call, stream);
}

void Gemm::data_gradient_fp8(Operand dy, Operand w_transposed, Bf16* dx, std::int64_t rows, std::int64_t in,
                             std::int64_t out, cudaStream_t stream) {
  Call call{.transpose_a = true, .m = in, .n = rows, .k = out, .lda = out, .ldb = out, .a = w_transposed, .b = dy};
  call.d = dx;
  call.fast_accumulation = true;
  run(call, stream);
}

void Gemm::weight_gradient(const Bf16* dy, const Bf16* x, void* dw, ElementType dw_type, bool accumulate,
                           std::int64_t rows, std::int64_t in, std::int64_t out, cudaStream_t stream) {
  Call call{.transpose_b = true, .m = in, .n = out, .k = rows, .lda = in, .ldb = out, .a = {x}, .b = {dy}};
  call.c = call.d = dw;
  call.d_type = dw_type;
  call.beta = accumulate ? 1.0f : 0.0f;
  run(call, stream);
}

}  // namespace lockstep::engine::cuda
