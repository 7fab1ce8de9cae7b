// Exact attention in blocks of query rows, with lse kept and probabilities computed again in backward (Dao et al.,
// FlashAttention, 2022), cut down to what a CPU needs: a block of scores fits the cache, products are BLAS calls on the
// caller's strided memory, and blocks above the diagonal are never computed.
#include "lockstep/nn/attention.h"

#include <ATen/Dispatch.h>
#include <torch/autograd.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/kernels/attention_rows.h"
#include "lockstep/kernels/parallel_blocks.h"
#include "lockstep/nn/torch_compat.h"

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
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kQueryRows = 64;  // rows of one block; measured against 32 and 128

// A head of a [batch, seq, heads, head_dim] tensor: seq rows, `stride` elements apart.
template <typename T>
struct HeadRows {
  T* data;
  std::int64_t stride;
};

template <typename T>
HeadRows<T> head_rows(const Tensor& t, std::int64_t batch, std::int64_t head) {
  return {t.data_ptr<T>() + batch * t.stride(0) + head * t.stride(2), t.stride(1)};
}

// Strided matrices: any strides whose last dim is dense (one head alone may have any stride over heads).
Tensor dense_last(const Tensor& t) { return t.stride(3) == 1 && t.stride(1) >= t.size(3) ? t : t.contiguous(); }

#ifdef LOCKSTEP_HAS_GEMM
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

struct Problem {
  std::int64_t batch, seq, heads, kv_heads, dim;
  double scale;
  AttentionDropout dropout;

  std::int64_t group() const { return heads / kv_heads; }
};

std::size_t block_size(const Problem& p) { return static_cast<std::size_t>(kQueryRows * p.seq); }

// Multiplies rows [first, first + rows) of one head's probabilities (or their gradient) by the dropout mask.
template <typename T>
void apply_dropout(T* block, std::int64_t rows, std::int64_t cols, std::int64_t first, std::int64_t batch,
                   std::int64_t head, const Problem& p) {
  const std::int64_t row_elements = (p.seq + 3) / 4 * 4;  // rows of the mask begin at multiples of 4
  std::vector<T> mask(static_cast<std::size_t>(cols));
  for (std::int64_t i = 0; i < rows; ++i) {
    dropout_row(mask.data(), cols, (head * p.seq + first + i) * row_elements, batch, p.dropout.probability,
                p.dropout.site);
    for (std::int64_t c = 0; c < cols; ++c) block[i * cols + c] *= mask[c];
  }
}

template <typename T>
void forward_head(const Problem& p, std::int64_t batch, std::int64_t head, const Tensor& q, const Tensor& k,
                  const Tensor& v, Tensor& out, T* lse) {
  const auto query = head_rows<T>(q, batch, head);
  const auto key = head_rows<T>(k, batch, head / p.group());
  const auto value = head_rows<T>(v, batch, head / p.group());
  const auto result = head_rows<T>(out, batch, head);
  const auto scores = std::make_unique_for_overwrite<T[]>(block_size(p));
  for (std::int64_t first = 0; first < p.seq; first += kQueryRows) {
    const std::int64_t rows = std::min(kQueryRows, p.seq - first);
    const std::int64_t cols = first + rows;  // keys that the last row of the block sees
    gemm<T>('N', 'T', rows, cols, p.dim, static_cast<T>(p.scale), query.data + first * query.stride, query.stride,
            key.data, key.stride, T(0), scores.get(), cols);
    kernels::causal_softmax_rows(scores.get(), lse + first, rows, cols, first + 1);
    if (p.dropout.probability > 0) apply_dropout(scores.get(), rows, cols, first, batch, head, p);
    gemm<T>('N', 'N', rows, p.dim, cols, T(1), scores.get(), cols, value.data, value.stride, T(0),
            result.data + first * result.stride, result.stride);
  }
}

// Adds one query head's share to dk and dv; `first_in_group` writes instead of adding, so nothing is cleared first.
template <typename T>
void backward_head(const Problem& p, std::int64_t batch, std::int64_t head, const variable_list& saved,
                   const Tensor& dout, Tensor& dq, Tensor& dk, Tensor& dv) {
  const std::int64_t kv_head = head / p.group();
  const bool first_in_group = head % p.group() == 0;
  const auto query = head_rows<T>(saved[0], batch, head), dquery = head_rows<T>(dq, batch, head);
  const auto key = head_rows<T>(saved[1], batch, kv_head), dkey = head_rows<T>(dk, batch, kv_head);
  const auto value = head_rows<T>(saved[2], batch, kv_head), dvalue = head_rows<T>(dv, batch, kv_head);
  const auto out = head_rows<T>(saved[3], batch, head), dresult = head_rows<T>(dout, batch, head);
  const T* lse = saved[4].data_ptr<T>() + (batch * p.heads + head) * p.seq;
  const auto scratch = std::make_unique_for_overwrite<T[]>(2 * block_size(p));
  T* prob = scratch.get();
  T* grad = prob + block_size(p);
  T delta[kQueryRows];
  // From the last block, which reaches every key, to the first.
  for (std::int64_t first = (p.seq - 1) / kQueryRows * kQueryRows; first >= 0; first -= kQueryRows) {
    const std::int64_t rows = std::min(kQueryRows, p.seq - first);
    const std::int64_t cols = first + rows;
    const T beta = first_in_group && cols == p.seq ? T(0) : T(1);
    const T* block_q = query.data + first * query.stride;
    const T* block_dout = dresult.data + first * dresult.stride;
    gemm<T>('N', 'T', rows, cols, p.dim, static_cast<T>(p.scale), block_q, query.stride, key.data, key.stride, T(0),
            prob, cols);
    kernels::causal_probability_rows(prob, lse + first, rows, cols, first + 1);
    gemm<T>('N', 'T', rows, cols, p.dim, T(1), block_dout, dresult.stride, value.data, value.stride, T(0), grad, cols);
    kernels::row_dots(block_dout, dresult.stride, out.data + first * out.stride, out.stride, delta, rows, p.dim);
    if (p.dropout.probability > 0) {
      // dS needs P itself, dV needs P with the mask: dS first, then the mask goes onto P.
      apply_dropout(grad, rows, cols, first, batch, head, p);
      kernels::softmax_backward_rows(prob, grad, delta, static_cast<T>(p.scale), rows, cols);
      apply_dropout(prob, rows, cols, first, batch, head, p);
    } else {
      kernels::softmax_backward_rows(prob, grad, delta, static_cast<T>(p.scale), rows, cols);
    }
    gemm<T>('T', 'N', cols, p.dim, rows, T(1), prob, cols, block_dout, dresult.stride, beta, dvalue.data,
            dvalue.stride);
    gemm<T>('N', 'N', rows, p.dim, cols, T(1), grad, cols, key.data, key.stride, T(0),
            dquery.data + first * dquery.stride, dquery.stride);
    gemm<T>('T', 'N', cols, p.dim, rows, T(1), grad, cols, block_q, query.stride, beta, dkey.data, dkey.stride);
  }
}

Problem problem_of(const Tensor& q, const Tensor& k, const AttentionDropout& dropout) {
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), 1.0 / std::sqrt(static_cast<double>(q.size(3))),
          dropout};
}

struct ForwardResult {
  Tensor out;  // [batch, seq, heads, head_dim]
  Tensor lse;  // [batch, heads, seq]
};

ForwardResult attention_forward(const Problem& p, const Tensor& q, const Tensor& k, const Tensor& v) {
  ForwardResult result{torch::empty({p.batch, p.seq, p.heads, p.dim}, q.options()),
                       torch::empty({p.batch, p.heads, p.seq}, q.options())};
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), "causal_attention", [&] {
    scalar_t* lse = result.lse.data_ptr<scalar_t>();
    kernels::parallel_blocks(p.batch * p.heads, [&](std::int64_t i) {
      forward_head<scalar_t>(p, i / p.heads, i % p.heads, q, k, v, result.out, lse + i * p.seq);
    });
  });
  return result;
}

// saved: q, k, v, out, lse. One task is a key head and all its query heads, so sums have one owner and a fixed order.
void attention_backward(const Problem& p, const variable_list& saved, const Tensor& dout, Tensor& dq, Tensor& dk,
                        Tensor& dv) {
  AT_DISPATCH_FLOATING_TYPES(dout.scalar_type(), "causal_attention_backward", [&] {
    kernels::parallel_blocks(p.batch * p.kv_heads, [&](std::int64_t i) {
      for (std::int64_t g = 0; g < p.group(); ++g) {
        backward_head<scalar_t>(p, i / p.kv_heads, i % p.kv_heads * p.group() + g, saved, dout, dq, dk, dv);
      }
    });
  });
}

void keep_dropout(AutogradContext* ctx, const AttentionDropout& dropout) {
  ctx->saved_data["probability"] = dropout.probability;
  ctx->saved_data["seed"] = static_cast<std::int64_t>(dropout.site.seed);
  ctx->saved_data["step"] = dropout.site.step;
  ctx->saved_data["first_index"] = dropout.site.first_index;
  ctx->saved_data["layer"] = static_cast<std::int64_t>(dropout.site.layer);
}

AttentionDropout kept_dropout(AutogradContext* ctx) {
  return {ctx->saved_data["probability"].toDouble(),
          {static_cast<std::uint64_t>(ctx->saved_data["seed"].toInt()), ctx->saved_data["step"].toInt(),
           ctx->saved_data["first_index"].toInt(), static_cast<std::uint32_t>(ctx->saved_data["layer"].toInt())}};
}

class CausalAttention : public torch::autograd::Function<CausalAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& q_any, const Tensor& k_any, const Tensor& v_any,
                        const AttentionDropout& dropout) {
    const Tensor q = dense_last(q_any), k = dense_last(k_any), v = dense_last(v_any);
    ForwardResult result = attention_forward(problem_of(q, k, dropout), q, k, v);
    keep_dropout(ctx, dropout);
    ctx->save_for_backward({q, k, v, result.out, result.lse});
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    Tensor dq = torch::empty(saved[0].sizes(), saved[0].options());
    Tensor dk = torch::empty(saved[1].sizes(), saved[1].options());
    Tensor dv = torch::empty(saved[2].sizes(), saved[2].options());
    attention_backward(problem_of(saved[0], saved[1], kept_dropout(ctx)), saved, dense_last(grads[0]), dq, dk, dv);
    return {dq, dk, dv, Tensor()};
  }
};

class PackedCausalAttention : public torch::autograd::Function<PackedCausalAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& qkv_any, std::int64_t heads,
                        const AttentionDropout& dropout) {
    const Tensor qkv = qkv_any.contiguous();
    const auto parts = split(qkv, heads);
    ForwardResult result = attention_forward(problem_of(parts[0], parts[1], dropout), parts[0], parts[1], parts[2]);
    Tensor out = result.out.view({qkv.size(0), qkv.size(1), qkv.size(2) / 3});
    keep_dropout(ctx, dropout);
    ctx->saved_data["heads"] = heads;
    ctx->save_for_backward({qkv, out, result.lse});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::int64_t heads = ctx->saved_data["heads"].toInt();
    Tensor dqkv = torch::empty(saved[0].sizes(), saved[0].options());
    auto parts = split(saved[0], heads);
    auto dparts = split(dqkv, heads);
    const auto per_head = parts[0].sizes();
    const Tensor dout = grads[0].contiguous().view(per_head);
    attention_backward(problem_of(parts[0], parts[1], kept_dropout(ctx)),
                       {parts[0], parts[1], parts[2], saved[1].view(per_head), saved[2]}, dout, dparts[0], dparts[1],
                       dparts[2]);
    return {dqkv, Tensor(), Tensor()};
  }

 private:
  // Views [batch, seq, heads, head_dim] of q, k and v.
  static std::vector<Tensor> split(const Tensor& qkv, std::int64_t heads) {
    return qkv.view({qkv.size(0), qkv.size(1), 3, heads, -1}).unbind(2);
  }
};
#endif  // LOCKSTEP_HAS_GEMM

bool has_own_kernel(const Tensor& q) {
#ifdef LOCKSTEP_HAS_GEMM
  return q.is_cpu() && (q.scalar_type() == torch::kFloat || q.scalar_type() == torch::kDouble);
#else
  return false;
#endif
}

// [batch, seq, kv_heads, dim] -> [batch, heads, seq, dim].
Tensor heads_first(const Tensor& t, std::int64_t group) {
  const Tensor first = t.transpose(1, 2);
  return group == 1 ? first : first.repeat_interleave(group, 1);
}

// Any device, with dropout: keeps the probabilities.
Tensor textbook_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionDropout& dropout) {
  const std::int64_t seq = q.size(2);
  const auto mask = torch::ones({seq, seq}, q.options().dtype(torch::kBool)).triu_(1);
  auto scores = at::matmul(q * (1.0 / std::sqrt(static_cast<double>(q.size(3)))), k.transpose(2, 3));
  scores = scores.masked_fill(mask, -std::numeric_limits<float>::infinity());
  const std::int64_t row_elements = (seq + 3) / 4 * 4;  // the same elements as apply_dropout()
  const auto multipliers =
      dropout_multipliers({q.size(0), q.size(1), seq, row_elements}, q.options(), dropout.probability, dropout.site)
          .slice(3, 0, seq);
  return at::matmul(at::softmax(scores, -1) * multipliers, v);
}

}  // namespace

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionDropout& dropout) {
  LOCKSTEP_ASSERT(q.dim() == 4 && k.sizes() == v.sizes() && q.size(2) % k.size(2) == 0, "shapes of attention");
  if (q.numel() == 0) return torch::zeros_like(q);
#ifdef LOCKSTEP_HAS_GEMM
  if (has_own_kernel(q)) return CausalAttention::apply(q, k, v, dropout);
#endif
  // 1.13 has no flash attention for bf16 on the CPU; the fp32 kernel is quicker than the textbook's passes.
  if (q.is_cpu() && !LOCKSTEP_TORCH_AT_LEAST(2, 1) && q.scalar_type() != torch::kFloat &&
      has_own_kernel(q.to(torch::kFloat))) {
    return causal_attention(q.to(torch::kFloat), k.to(torch::kFloat), v.to(torch::kFloat), dropout).to(q.scalar_type());
  }
  const std::int64_t group = q.size(2) / k.size(2);
  const Tensor qh = heads_first(q, 1), kh = heads_first(k, group), vh = heads_first(v, group);
  const Tensor out =
      dropout.probability > 0 ? textbook_attention(qh, kh, vh, dropout) : compat::causal_sdpa(qh, kh, vh);
  return out.transpose(1, 2).contiguous();
}

Tensor causal_attention_packed(const Tensor& qkv, std::int64_t heads, const AttentionDropout& dropout) {
#ifdef LOCKSTEP_HAS_GEMM
  if (has_own_kernel(qkv) && qkv.numel() > 0) return PackedCausalAttention::apply(qkv, heads, dropout);
#endif
  const auto parts = qkv.view({qkv.size(0), qkv.size(1), 3, heads, -1}).unbind(2);
  return causal_attention(parts[0], parts[1], parts[2], dropout).reshape({qkv.size(0), qkv.size(1), -1});
}

}  // namespace lockstep::nn
