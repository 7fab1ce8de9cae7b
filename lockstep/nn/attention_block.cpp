// On the CPU: blocks of query rows whose scores fit the cache, products as BLAS calls on the caller's strided memory,
// and blocks above the diagonal never computed. Elsewhere: the same formulas in ATen operations.
#include "lockstep/nn/attention_block.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/kernels/attention_rows.h"
#include "lockstep/kernels/parallel_blocks.h"

#ifdef LOCKSTEP_HAS_GEMM
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void dgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
}
#endif

namespace lockstep::nn {
namespace {

using torch::Tensor;

struct Problem {
  std::int64_t batch, queries, keys, heads, kv_heads, dim;
  double scale;
  const AttentionBlock& block;

  std::int64_t group() const { return heads / kv_heads; }

  // First element of the dropout mask of (head, query row); a row of the mask begins at a multiple of 4 elements.
  std::int64_t mask_row(std::int64_t head, std::int64_t row) const {
    const std::int64_t row_elements = (block.sequence + 3) / 4 * 4;
    const std::int64_t number = (block.dropout.first_head + head) * block.sequence + block.first_query + row;
    return number * row_elements + block.first_key;
  }
};

Problem problem_of(const BlockTensors& in, const AttentionBlock& block) {
  LOCKSTEP_ASSERT(!block.causal || in.q.size(1) == in.k.size(1), "a causal block is square");
  return {in.q.size(0),
          in.q.size(1),
          in.k.size(1),
          in.q.size(2),
          in.k.size(2),
          in.q.size(3),
          1.0 / std::sqrt(static_cast<double>(in.q.size(3))),
          block};
}

#ifdef LOCKSTEP_HAS_GEMM
constexpr std::int64_t kQueryRows = 64;  // rows of scores at a time; measured against 32 and 128

// A head of a [batch, rows, heads, head_dim] tensor: its rows, `stride` elements apart.
template <typename T>
struct HeadRows {
  T* data;
  std::int64_t stride;
};

template <typename T>
HeadRows<T> head_rows(const Tensor& t, std::int64_t batch, std::int64_t head) {
  return {t.data_ptr<T>() + batch * t.stride(0) + head * t.stride(2), t.stride(1)};
}

template <typename T>
void clear_rows(HeadRows<T> rows, std::int64_t begin, std::int64_t end, std::int64_t dim) {
  for (std::int64_t i = begin; i < end; ++i) std::fill_n(rows.data + i * rows.stride, dim, T(0));
}

void column_major_gemm(char ta, char tb, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                       int ldb, float beta, float* c, int ldc) {
  sgemm_(&ta, &tb, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc);
}
void column_major_gemm(char ta, char tb, int m, int n, int k, double alpha, const double* a, int lda, const double* b,
                       int ldb, double beta, double* c, int ldc) {
  dgemm_(&ta, &tb, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc);
}

// Row-major C[m, n] = alpha op(A) op(B) + beta C, by the column-major routine on the transposed problem.
template <typename T>
void gemm(char trans_a, char trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
          std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  column_major_gemm(trans_b, trans_a, static_cast<int>(n), static_cast<int>(m), static_cast<int>(k), alpha, b,
                    static_cast<int>(ldb), a, static_cast<int>(lda), beta, c, static_cast<int>(ldc));
}

// The keys that rows [first, first + rows) of a sample see: `cols` at most, from `first_col` on. Counted from there,
// the first row sees [first_begin, first_valid), and each row begins and ends one later than the one before.
struct Seen {
  std::int64_t first_col, cols, first_begin, first_valid;
};

std::int64_t existing_keys(const Problem& p, std::int64_t batch) {
  if (!p.block.lengths.defined()) return p.keys;
  return std::clamp<std::int64_t>(p.block.lengths.data_ptr<std::int64_t>()[batch], 0, p.keys);
}

Seen seen_keys(const Problem& p, std::int64_t existing, std::int64_t first, std::int64_t rows) {
  const std::int64_t end = p.block.causal ? std::min(first + rows, existing) : existing;
  const std::int64_t valid = p.block.causal ? first + 1 : existing;
  if (p.block.window == 0) return {0, end, 0, valid};
  const std::int64_t begin = p.block.first_query + first - p.block.first_key - p.block.window + 1;
  const std::int64_t first_col = std::max<std::int64_t>(0, begin);
  return {first_col, std::max<std::int64_t>(0, end - first_col), begin - first_col, valid - first_col};
}

std::size_t block_size(const Problem& p) { return static_cast<std::size_t>(kQueryRows * p.keys); }

// Multiplies rows [first, first + rows) of one head's probabilities (or their gradient) by the dropout mask.
template <typename T>
void apply_dropout(T* block, std::int64_t rows, const Seen& seen, std::int64_t first, std::int64_t batch,
                   std::int64_t head, const Problem& p) {
  const std::int64_t cols = seen.cols;
  std::vector<T> mask(static_cast<std::size_t>(cols));
  for (std::int64_t i = 0; i < rows; ++i) {
    dropout_row(mask.data(), cols, p.mask_row(head, first + i) + seen.first_col, batch, p.block.dropout.probability,
                p.block.dropout.site);
    for (std::int64_t c = 0; c < cols; ++c) block[i * cols + c] *= mask[c];
  }
}

template <typename T>
void forward_head(const Problem& p, std::int64_t batch, std::int64_t head, const BlockTensors& in, Tensor& out,
                  T* lse) {
  const auto query = head_rows<T>(in.q, batch, head);
  const auto key = head_rows<T>(in.k, batch, head / p.group());
  const auto value = head_rows<T>(in.v, batch, head / p.group());
  const auto result = head_rows<T>(out, batch, head);
  const std::int64_t existing = existing_keys(p, batch);
  if (existing == 0) {
    clear_rows(result, 0, p.queries, p.dim);
    std::fill_n(lse, p.queries, -std::numeric_limits<T>::infinity());
    return;
  }
  const auto scores = std::make_unique_for_overwrite<T[]>(block_size(p));
  for (std::int64_t first = 0; first < p.queries; first += kQueryRows) {
    const std::int64_t rows = std::min(kQueryRows, p.queries - first);
    const Seen seen = seen_keys(p, existing, first, rows);
    if (seen.cols == 0) {
      clear_rows(result, first, first + rows, p.dim);
      std::fill_n(lse + first, rows, -std::numeric_limits<T>::infinity());
      continue;
    }
    gemm<T>('N', 'T', rows, seen.cols, p.dim, static_cast<T>(p.scale), query.data + first * query.stride, query.stride,
            key.data + seen.first_col * key.stride, key.stride, T(0), scores.get(), seen.cols);
    if (p.block.softcap > 0) kernels::cap_scores(scores.get(), rows * seen.cols, static_cast<T>(p.block.softcap));
    if (p.block.window > 0) {
      kernels::window_softmax_rows(scores.get(), lse + first, rows, seen.cols, seen.first_begin, seen.first_valid);
    } else {
      kernels::causal_softmax_rows(scores.get(), lse + first, rows, seen.cols, seen.first_valid);
    }
    if (p.block.dropout.probability > 0) apply_dropout(scores.get(), rows, seen, first, batch, head, p);
    gemm<T>('N', 'N', rows, p.dim, seen.cols, T(1), scores.get(), seen.cols, value.data + seen.first_col * value.stride,
            value.stride, T(0), result.data + first * result.stride, result.stride);
  }
}

// What backward reads and writes.
struct BackwardTensors {
  const BlockTensors& in;
  const BlockResult& result;
  const Tensor& dout;
  BlockTensors& gradients;
  bool add;
};

// Scratch of one task, block_size() each; `capped` only where scores are capped.
template <typename T>
struct ScoreBlocks {
  T *prob, *grad, *capped;
};

// Probabilities and gradients of the scores of rows [first, first + rows); `prob` ends with the dropout mask on it.
template <typename T>
void backward_scores(const Problem& p, const BackwardTensors& t, std::int64_t batch, std::int64_t head,
                     std::int64_t first, std::int64_t rows, const Seen& seen, const ScoreBlocks<T>& blocks) {
  const auto query = head_rows<T>(t.in.q, batch, head), key = head_rows<T>(t.in.k, batch, head / p.group());
  const auto value = head_rows<T>(t.in.v, batch, head / p.group());
  const auto out = head_rows<T>(t.result.out, batch, head), dout = head_rows<T>(t.dout, batch, head);
  const T* lse = t.result.lse.data_ptr<T>() + batch * t.result.lse.stride(0) + head * t.result.lse.stride(1);
  const std::int64_t cols = seen.cols;
  const auto scale = static_cast<T>(p.scale), cap = static_cast<T>(p.block.softcap);
  T delta[kQueryRows];
  gemm<T>('N', 'T', rows, cols, p.dim, scale, query.data + first * query.stride, query.stride,
          key.data + seen.first_col * key.stride, key.stride, T(0), blocks.prob, cols);
  if (cap > 0) {
    kernels::cap_scores(blocks.prob, rows * cols, cap);
    std::copy_n(blocks.prob, rows * cols, blocks.capped);
  }
  if (p.block.window > 0) {
    kernels::window_probability_rows(blocks.prob, lse + first, rows, cols, seen.first_begin, seen.first_valid);
  } else {
    kernels::causal_probability_rows(blocks.prob, lse + first, rows, cols, seen.first_valid);
  }
  gemm<T>('N', 'T', rows, cols, p.dim, T(1), dout.data + first * dout.stride, dout.stride,
          value.data + seen.first_col * value.stride, value.stride, T(0), blocks.grad, cols);
  kernels::row_dots(dout.data + first * dout.stride, dout.stride, out.data + first * out.stride, out.stride, delta,
                    rows, p.dim);
  // dS needs P itself, dV needs P with the mask: dS first, then the mask goes onto P.
  if (p.block.dropout.probability > 0) apply_dropout(blocks.grad, rows, seen, first, batch, head, p);
  kernels::softmax_backward_rows(blocks.prob, blocks.grad, delta, scale, rows, cols);
  if (cap > 0) kernels::cap_backward(blocks.capped, blocks.grad, rows * cols, cap);
  if (p.block.dropout.probability > 0) apply_dropout(blocks.prob, rows, seen, first, batch, head, p);
}

// Adds one query head's share to dk and dv. The first head of a group writes: its last rows reach every key, so nothing
// is cleared first, unless there is a window.
template <typename T>
void backward_head(const Problem& p, const BackwardTensors& t, std::int64_t batch, std::int64_t head) {
  const std::int64_t kv_head = head / p.group();
  const auto query = head_rows<T>(t.in.q, batch, head), dquery = head_rows<T>(t.gradients.q, batch, head);
  const auto key = head_rows<T>(t.in.k, batch, kv_head), dkey = head_rows<T>(t.gradients.k, batch, kv_head);
  const auto dvalue = head_rows<T>(t.gradients.v, batch, kv_head), dout = head_rows<T>(t.dout, batch, head);
  const std::int64_t existing = existing_keys(p, batch);
  const bool clears = !t.add && head % p.group() == 0, writes = clears && p.block.window == 0;
  if (clears) {
    clear_rows(dkey, writes ? existing : 0, p.keys, p.dim);
    clear_rows(dvalue, writes ? existing : 0, p.keys, p.dim);
  }
  if (existing == 0) {
    if (!t.add) clear_rows(dquery, 0, p.queries, p.dim);
    return;
  }
  const auto scratch = std::make_unique_for_overwrite<T[]>((p.block.softcap > 0 ? 3 : 2) * block_size(p));
  const ScoreBlocks<T> blocks{scratch.get(), scratch.get() + block_size(p), scratch.get() + 2 * block_size(p)};
  const std::int64_t last = (p.queries - 1) / kQueryRows * kQueryRows;
  for (std::int64_t first = last; first >= 0; first -= kQueryRows) {
    const std::int64_t rows = std::min(kQueryRows, p.queries - first);
    const Seen seen = seen_keys(p, existing, first, rows);
    const std::int64_t cols = seen.cols;
    if (cols == 0) {
      if (!t.add) clear_rows(dquery, first, first + rows, p.dim);
      continue;
    }
    backward_scores(p, t, batch, head, first, rows, seen, blocks);
    const T keep = writes && first == last ? T(0) : T(1);
    gemm<T>('T', 'N', cols, p.dim, rows, T(1), blocks.prob, cols, dout.data + first * dout.stride, dout.stride, keep,
            dvalue.data + seen.first_col * dvalue.stride, dvalue.stride);
    gemm<T>('N', 'N', rows, p.dim, cols, T(1), blocks.grad, cols, key.data + seen.first_col * key.stride, key.stride,
            t.add ? T(1) : T(0), dquery.data + first * dquery.stride, dquery.stride);
    gemm<T>('T', 'N', cols, p.dim, rows, T(1), blocks.grad, cols, query.data + first * query.stride, query.stride, keep,
            dkey.data + seen.first_col * dkey.stride, dkey.stride);
  }
}

void forward_by_kernel(const Problem& p, const BlockTensors& in, BlockResult& result) {
  AT_DISPATCH_FLOATING_TYPES(in.q.scalar_type(), "attention", [&] {
    scalar_t* lse = result.lse.data_ptr<scalar_t>();
    kernels::parallel_blocks(p.batch * p.heads, [&](std::int64_t i) {
      forward_head<scalar_t>(p, i / p.heads, i % p.heads, in, result.out, lse + i * p.queries);
    });
  });
}

// One task is a key head and all its query heads, so sums have one owner and a fixed order.
void backward_by_kernel(const Problem& p, const BackwardTensors& t) {
  AT_DISPATCH_FLOATING_TYPES(t.in.q.scalar_type(), "attention_backward", [&] {
    kernels::parallel_blocks(p.batch * p.kv_heads, [&](std::int64_t i) {
      for (std::int64_t g = 0; g < p.group(); ++g) {
        backward_head<scalar_t>(p, t, i / p.kv_heads, i % p.kv_heads * p.group() + g);
      }
    });
  });
}
#endif  // LOCKSTEP_HAS_GEMM

// Rows of queries at a time, so that the scores of one time stay below 256 MiB in fp32.
std::int64_t rows_at_a_time(const Problem& p) {
  return std::max<std::int64_t>(1, (std::int64_t{1} << 26) / std::max<std::int64_t>(1, p.batch * p.heads * p.keys));
}

// Multipliers of the probabilities of rows [first, first + rows): [batch, heads, rows, keys].
Tensor dropout_of_rows(const Problem& p, std::int64_t first, std::int64_t rows, torch::TensorOptions wide) {
  Tensor mask = torch::empty({p.batch, p.heads, rows, p.keys}, wide.device(torch::kCPU));
  const AttentionDropout& dropout = p.block.dropout;
  AT_DISPATCH_FLOATING_TYPES(mask.scalar_type(), "attention_dropout", [&] {
    scalar_t* data = mask.data_ptr<scalar_t>();
    kernels::parallel_blocks(p.batch * p.heads * rows, [&](std::int64_t i) {
      const std::int64_t row = i % rows, head = i / rows % p.heads, batch = i / rows / p.heads;
      dropout_row(data + i * p.keys, p.keys, p.mask_row(head, first + row), batch, dropout.probability, dropout.site);
    });
  });
  return mask.to(wide.device());
}

// Scores of q [batch, heads, rows, dim] in the wide type, capped.
Tensor scores_of(const Problem& p, const Tensor& q, const Tensor& k, torch::ScalarType wide) {
  Tensor scores = at::matmul(q * p.scale, k.transpose(2, 3)).to(wide);
  return p.block.softcap > 0 ? scores.div_(p.block.softcap).tanh_().mul_(p.block.softcap) : scores;
}

// The same with -inf where a key is not seen.
Tensor seen_scores(const Problem& p, const Tensor& scores, std::int64_t first) {
  const Tensor hidden = hidden_keys(p.block, first, scores.size(2), p.keys, scores.device());
  return hidden.defined() ? scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()) : scores;
}

// exp(scores - lse), and 0 in rows that see nothing, where both are -inf.
Tensor probabilities_of(const Tensor& scores, const Tensor& lse) {
  const Tensor finite = lse.masked_fill(lse == -std::numeric_limits<double>::infinity(), 0.0);
  return at::exp(scores - finite.unsqueeze(-1));
}

void forward_by_aten(const Problem& p, const BlockTensors& in, BlockResult& result) {
  const Tensor q = heads_first(in.q, 1), k = heads_first(in.k, p.group()), v = heads_first(in.v, p.group());
  for (std::int64_t first = 0; first < p.queries; first += rows_at_a_time(p)) {
    const std::int64_t rows = std::min(rows_at_a_time(p), p.queries - first);
    const Tensor scores = seen_scores(p, scores_of(p, q.narrow(2, first, rows), k, result.out.scalar_type()), first);
    const Tensor lse = at::logsumexp(scores, {-1});
    Tensor prob = probabilities_of(scores, lse);
    if (p.block.dropout.probability > 0) prob *= dropout_of_rows(p, first, rows, prob.options());
    result.out.narrow(1, first, rows).copy_(at::matmul(prob.to(v.scalar_type()), v).transpose(1, 2));
    result.lse.narrow(2, first, rows).copy_(lse);
  }
}

// Writes or adds a gradient [batch, heads, rows, dim], summed over the query heads of each key head.
void put_gradient(const Tensor& gradient, const Tensor& value, std::int64_t group, bool add) {
  const auto s = value.sizes();
  const Tensor summed = group == 1 ? value : value.view({s[0], s[1] / group, group, s[2], s[3]}).sum(2);
  if (add) {
    gradient.add_(summed.transpose(1, 2));
  } else {
    gradient.copy_(summed.transpose(1, 2));
  }
}

void backward_by_aten(const Problem& p, const BlockTensors& in, const BlockResult& result, const Tensor& dout_rows,
                      BlockTensors& gradients, bool add) {
  const auto type = in.q.scalar_type(), wide = wide_type(in.q);
  const Tensor q = heads_first(in.q, 1), k = heads_first(in.k, p.group()), v = heads_first(in.v, p.group());
  const Tensor dout = heads_first(dout_rows, 1), out = heads_first(result.out, 1).to(wide);
  Tensor dk = torch::zeros(k.sizes(), k.options().dtype(wide)), dv = torch::zeros_like(dk);
  for (std::int64_t first = 0; first < p.queries; first += rows_at_a_time(p)) {
    const std::int64_t rows = std::min(rows_at_a_time(p), p.queries - first);
    const Tensor some_q = q.narrow(2, first, rows), some_dout = dout.narrow(2, first, rows);
    const Tensor scores = scores_of(p, some_q, k, wide);
    Tensor prob = probabilities_of(seen_scores(p, scores, first), result.lse.narrow(2, first, rows));
    Tensor grad = at::matmul(some_dout.to(type), v.transpose(2, 3)).to(wide);
    const Tensor delta = (some_dout.to(wide) * out.narrow(2, first, rows)).sum({-1}, /*keepdim=*/true);
    Tensor kept = prob;  // what v was multiplied by
    if (p.block.dropout.probability > 0) {
      const Tensor multipliers = dropout_of_rows(p, first, rows, prob.options());
      grad *= multipliers;
      kept = prob * multipliers;
    }
    grad = prob * (grad - delta) * p.scale;
    if (p.block.softcap > 0) grad *= 1.0 - (scores / p.block.softcap).square();
    grad = grad.to(type);
    dv += at::matmul(kept.to(type).transpose(2, 3), some_dout.to(type));
    dk += at::matmul(grad.transpose(2, 3), some_q);
    put_gradient(gradients.q.narrow(1, first, rows), at::matmul(grad, k), 1, add);
  }
  put_gradient(gradients.k, dk, p.group(), add);
  put_gradient(gradients.v, dv, p.group(), add);
}

// The CPU's kernel computes in fp32 or fp64: halves are widened, which is quicker than products of halves there.
#ifdef LOCKSTEP_HAS_GEMM
bool takes_kernel(const Tensor& q) { return q.is_cpu(); }
Tensor for_kernel(const Tensor& t) { return dense_last(t.to(wide_type(t))); }
#else
bool takes_kernel(const Tensor&) { return false; }
#endif

}  // namespace

Tensor heads_first(const Tensor& t, std::int64_t group) {
  const Tensor first = t.transpose(1, 2);
  return group == 1 ? first : first.repeat_interleave(group, 1);
}

torch::ScalarType wide_type(const Tensor& t) {
  return t.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

bool has_attention_kernel(const Tensor& q) { return takes_kernel(q) && wide_type(q) == q.scalar_type(); }

Tensor dense_last(const Tensor& t) { return t.stride(3) == 1 && t.stride(1) >= t.size(3) ? t : t.contiguous(); }

Tensor hidden_keys(const AttentionBlock& block, std::int64_t first, std::int64_t rows, std::int64_t keys,
                   torch::Device device) {
  const auto integers = torch::dtype(torch::kLong).device(device);
  const Tensor key = torch::arange(keys, integers);
  Tensor hidden;
  const Tensor query = torch::arange(first, first + rows, integers).unsqueeze(1);
  if (block.causal) hidden = key > query;
  if (block.window > 0) {
    const Tensor passed = query + (block.first_query - block.first_key) - key >= block.window;
    hidden = hidden.defined() ? hidden | passed : passed;
  }
  if (block.lengths.defined()) {
    const Tensor beyond = key >= block.lengths.view({-1, 1, 1, 1});  // [batch, 1, 1, keys]
    hidden = hidden.defined() ? hidden | beyond : beyond;
  }
  return hidden;
}

BlockResult attention_block_forward(const BlockTensors& in, const AttentionBlock& block) {
  const Problem p = problem_of(in, block);
  const auto wide = in.q.options().dtype(wide_type(in.q));
  BlockResult result{torch::empty({p.batch, p.queries, p.heads, p.dim}, wide),
                     torch::empty({p.batch, p.heads, p.queries}, wide)};
#ifdef LOCKSTEP_HAS_GEMM
  if (takes_kernel(in.q)) {
    forward_by_kernel(p, {for_kernel(in.q), for_kernel(in.k), for_kernel(in.v)}, result);
    return result;
  }
#endif
  forward_by_aten(p, in, result);
  return result;
}

void attention_block_backward(const BlockTensors& in, const BlockResult& result, const Tensor& dout,
                              const AttentionBlock& block, BlockTensors& gradients, bool add) {
  const Problem p = problem_of(in, block);
#ifdef LOCKSTEP_HAS_GEMM
  if (takes_kernel(in.q)) {
    const BlockTensors widened{for_kernel(in.q), for_kernel(in.k), for_kernel(in.v)};
    const BlockResult whole{for_kernel(result.out), result.lse};
    const Tensor wide_dout = for_kernel(dout);
    backward_by_kernel(p, {widened, whole, wide_dout, gradients, add});
    return;
  }
#endif
  backward_by_aten(p, in, result, dout, gradients, add);
}

}  // namespace lockstep::nn
