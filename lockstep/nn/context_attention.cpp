#include "lockstep/nn/context_attention.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/attention_block.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/tensor_comm.h"

namespace lockstep::nn {
namespace {

using comm::Communicator;

// A message to the next rank of a ring and one from the previous rank, in flight. Destroyed in flight (an error), it
// waits for both, so that nothing writes to freed memory.
class Shift {
 public:
  Shift() = default;
  Shift(const Shift&) = delete;
  Shift& operator=(const Shift&) = delete;
  ~Shift() {
    for (comm::Work* work : {&send_, &receive_}) {
      try {
        work->wait();
      } catch (const std::exception&) {  // who began the shift has its own error
      }
    }
  }

  void begin(Communicator& group, const Tensor& message, const char* site) {
    sent_ = message;
    received_ = torch::empty_like(message);
    const int ranks = group.size(), next = (group.rank() + 1) % ranks, previous = (group.rank() + ranks - 1) % ranks;
    // Backends that execute in call order need one rank of the ring to receive first.
    const bool sends_first = group.rank() % 2 == 0;
    if (sends_first) send_ = group.send(buffer_of(sent_), next, comm::at_site(site));
    receive_ = group.recv(buffer_of(received_), previous, comm::at_site(site));
    if (!sends_first) send_ = group.send(buffer_of(sent_), next, comm::at_site(site));
  }

  // Blocks; the previous rank's message.
  Tensor finish() {
    std::exchange(receive_, {}).wait();
    std::exchange(send_, {}).wait();
    sent_ = Tensor();
    return std::exchange(received_, Tensor());
  }

 private:
  Tensor sent_, received_;
  comm::Work send_, receive_;
};

// What a ring needs to know in forward and backward.
struct Ring {
  Communicator group;
  bool causal = true;
  bool balanced = true;
  Tensor lengths;
  AttentionDropout dropout;
  std::int64_t window = 0;
  double softcap = 0.0;
  std::int64_t rows = 0;  // of one rank

  int ranks() const { return group.size(); }
  int owner_at(int step) const { return (group.rank() + ranks() - step) % ranks(); }
  std::int64_t piece_rows() const { return balanced ? rows / 2 : rows; }

  // Numbers of the pieces that a rank holds, in the order of its rows.
  std::vector<std::int64_t> pieces_of(int rank) const {
    if (!balanced) return {rank};
    return {rank, 2 * ranks() - 1 - rank};
  }

  AttentionBlock block(std::int64_t query_piece, std::int64_t key_piece) const {
    AttentionBlock block;
    block.causal = causal && query_piece == key_piece;
    block.first_query = query_piece * piece_rows();
    block.first_key = key_piece * piece_rows();
    block.sequence = rows * ranks();
    block.dropout = dropout;
    block.window = window;
    block.softcap = softcap;
    if (lengths.defined()) block.lengths = (lengths - block.first_key).clamp(0, piece_rows());
    return block;
  }

  // Calls body(first row of the queries, first row of the keys, block) for every pair of this rank's pieces and the
  // owner's in which something is seen.
  template <typename Body>
  void for_each_block(int owner, const Body& body) const {
    const auto queries = pieces_of(group.rank()), keys = pieces_of(owner);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      for (std::size_t j = 0; j < keys.size(); ++j) {
        if (causal && keys[j] > queries[i]) continue;
        // The first query and the last key are the nearest.
        if (window > 0 && (queries[i] - keys[j] - 1) * piece_rows() + 1 >= window) continue;
        body(static_cast<std::int64_t>(i) * piece_rows(), static_cast<std::int64_t>(j) * piece_rows(),
             block(queries[i], keys[j]));
      }
    }
  }
};

// Adds the result over more keys: both are averages weighted by exp(lse).
void merge(BlockResult& whole, const BlockResult& part) {
  const double nothing = -std::numeric_limits<double>::infinity();
  const Tensor lse = at::logaddexp(whole.lse, part.lse);
  const Tensor finite = lse.masked_fill(lse == nothing, 0.0);  // rows that see nothing yet keep 0
  const auto weight = [&](const Tensor& l) { return at::exp(l - finite).transpose(1, 2).unsqueeze(-1); };
  whole.out.mul_(weight(whole.lse)).add_(part.out * weight(part.lse));
  whole.lse.copy_(lse);
}

BlockResult rows_of(const BlockResult& result, std::int64_t first, std::int64_t rows) {
  return {result.out.narrow(1, first, rows), result.lse.narrow(2, first, rows)};
}

// Queries of some rows; keys and values, both in one tensor [2, ...], of others.
BlockTensors rows_of(const Tensor& q, std::int64_t first_query, const Tensor& kv, std::int64_t first_key,
                     std::int64_t rows) {
  const Tensor keys = kv.narrow(2, first_key, rows);
  return {q.narrow(1, first_query, rows), keys[0], keys[1]};
}

BlockResult ring_forward(Ring& ring, const Tensor& q, const Tensor& own) {
  const auto wide = q.options().dtype(wide_type(q));
  BlockResult result{torch::zeros(q.sizes(), wide),
                     torch::full({q.size(0), q.size(2), q.size(1)}, -std::numeric_limits<double>::infinity(), wide)};
  Tensor held = own;
  for (int step = 0; step < ring.ranks(); ++step) {
    Shift keys;
    const bool travels = step + 1 < ring.ranks();
    if (travels) keys.begin(ring.group, held, "cp: ring keys");
    const std::int64_t rows = ring.piece_rows();
    ring.for_each_block(ring.owner_at(step), [&](std::int64_t query, std::int64_t key, const AttentionBlock& block) {
      BlockResult whole = rows_of(result, query, rows);
      merge(whole, attention_block_forward(rows_of(q, query, held, key, rows), block));
    });
    if (travels) held = keys.finish();
  }
  return result;
}

// dq, and the gradient of `own`.
std::pair<Tensor, Tensor> ring_backward(Ring& ring, const Tensor& q, const Tensor& own, const BlockResult& result,
                                        const Tensor& dout) {
  const auto wide = q.options().dtype(wide_type(q));
  Tensor dq = torch::zeros(q.sizes(), wide), down;
  Tensor held = own;
  Shift sums;  // of gradients: of the keys that arrive here in the next step
  for (int step = 0; step < ring.ranks(); ++step) {
    Shift keys;
    const bool travels = step + 1 < ring.ranks();
    if (travels) keys.begin(ring.group, held, "cp: ring keys again");
    Tensor share = torch::zeros(held.sizes(), wide);
    const std::int64_t rows = ring.piece_rows();
    ring.for_each_block(ring.owner_at(step), [&](std::int64_t query, std::int64_t key, const AttentionBlock& block) {
      BlockTensors gradients = rows_of(dq, query, share, key, rows);
      attention_block_backward(rows_of(q, query, held, key, rows), rows_of(result, query, rows),
                               dout.narrow(1, query, rows), block, gradients, /*add=*/true);
    });
    if (step == 0) down = share;
    if (step > 1) share += sums.finish();
    if (step > 0) sums.begin(ring.group, share.to(own.scalar_type()), "cp: ring gradients");
    if (travels) held = keys.finish();
  }
  down += sums.finish();
  return {dq, down};
}

class RingAttention : public torch::autograd::Function<RingAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& q_any, const Tensor& k, const Tensor& v, const Ring& ring) {
    const Tensor q = dense_last(q_any), own = at::stack({k, v});
    keep(ctx, ring);
    const BlockResult result = ring_forward(kept<Ring>(ctx), q, own);
    const Tensor out = result.out.to(q.scalar_type());
    ctx->save_for_backward({q, own, out, result.lse});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    Ring& ring = kept<Ring>(ctx);
    const auto [dq, down] = ring_backward(ring, saved[0], saved[1], {saved[2], saved[3]}, dense_last(grads[0]));
    const auto type = saved[0].scalar_type();
    return {dq.to(type), down[0].to(type), down[1].to(type), Tensor()};
  }
};

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  Ring ring;
  ring.group = options.partition->cp;
  ring.causal = options.causal;
  ring.balanced = options.balanced;
  if (options.lengths.defined()) ring.lengths = options.lengths.contiguous();
  ring.dropout = {options.dropout, options.site, options.first_head};
  ring.window = options.window;
  ring.softcap = options.softcap;
  ring.rows = q.size(1);
  LOCKSTEP_ASSERT(!ring.balanced || ring.rows % 2 == 0, "a balanced ring has two pieces on every rank");
  return RingAttention::apply(q, k, v, ring);
}

// What an exchange of heads for rows needs in backward.
struct Exchange {
  Communicator group;
  const char* site = "";
  const char* site_again = "";
};

Tensor all_to_all(Communicator& group, const Tensor& sent, const char* site) {
  Tensor received = torch::empty_like(sent);
  group.all_to_all(buffer_of(sent), buffer_of(received), comm::at_site(site)).wait();
  return received;
}

// parts [ranks, batch, rows, heads, head_dim], part i for rank i, of this rank's rows -> all rows of this rank's part,
// [batch, ranks x rows, heads, head_dim].
Tensor parts_to_rows(Communicator& group, const Tensor& parts, const char* site) {
  return all_to_all(group, parts.contiguous(), site).transpose(0, 1).flatten(1, 2);
}

// The other way round.
Tensor rows_to_parts(Communicator& group, const Tensor& rows, const char* site) {
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes[1] /= group.size();
  sizes.insert(sizes.begin() + 1, group.size());
  return all_to_all(group, rows.reshape(sizes).transpose(0, 1).contiguous(), site);
}

template <auto kForward, auto kBackward>
class ExchangeHeads : public torch::autograd::Function<ExchangeHeads<kForward, kBackward>> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Exchange& exchange) {
    keep(ctx, exchange);
    return kForward(kept<Exchange>(ctx).group, x, exchange.site);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Exchange& exchange = kept<Exchange>(ctx);
    return {kBackward(exchange.group, grads[0], exchange.site_again), Tensor()};
  }
};
using HeadsOut = ExchangeHeads<parts_to_rows, rows_to_parts>;
using HeadsHome = ExchangeHeads<rows_to_parts, parts_to_rows>;

// [batch, rows, heads, head_dim] -> [ranks, batch, rows, heads / ranks, head_dim], a view.
Tensor by_rank(const Tensor& t, std::int64_t ranks) {
  const auto s = t.sizes();
  return t.reshape({s[0], s[1], ranks, s[2] / ranks, s[3]}).permute({2, 0, 1, 3, 4});
}

// Every head `times` in a row.
Tensor repeat_heads(const Tensor& t, std::int64_t times) {
  if (times == 1) return t;
  const auto s = t.sizes();
  return t.unsqueeze(3).expand({s[0], s[1], s[2], times, s[3]}).flatten(2, 3);
}

// How often key heads are repeated so that every rank gets as many.
std::int64_t key_repeats(std::int64_t heads, std::int64_t kv_heads, std::int64_t ranks) {
  const bool divides = heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0);
  if (!divides) {
    throw bad_input("all-to-all over cp = " + std::to_string(ranks) + " cannot divide " + std::to_string(heads) +
                        " query heads and " + std::to_string(kv_heads) + " key heads",
                    "use the ring, or a cp that divides the heads of a tensor-parallel rank");
  }
  return kv_heads % ranks == 0 ? 1 : ranks / kv_heads;
}

Tensor all_to_all_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  const Communicator& group = options.partition->cp;
  const std::int64_t ranks = group.size(), heads = q.size(2) / ranks;
  const std::int64_t repeats = key_repeats(q.size(2), k.size(2), ranks);
  const Tensor parts = at::cat(
      {by_rank(q, ranks), by_rank(repeat_heads(k, repeats), ranks), by_rank(repeat_heads(v, repeats), ranks)}, 3);
  const Tensor qkv = HeadsOut::apply(parts, Exchange{group, "cp: heads out", "cp: heads out again"});
  AttentionOptions whole = options;
  whole.partition = nullptr;
  whole.first_head += group.rank() * heads;
  const Tensor out = self_attention_packed(qkv, k.size(2) * repeats / ranks, whole);
  const Tensor home = HeadsHome::apply(out, Exchange{group, "cp: heads home", "cp: heads home again"});
  return home.permute({1, 2, 0, 3, 4}).flatten(2, 3);  // [ranks, batch, rows, ...] -> [batch, rows, ranks x ...]
}

}  // namespace

Tensor context_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  if (options.partition->context_exchange == plan::ContextExchange::kRing) return ring_attention(q, k, v, options);
  return all_to_all_attention(q, k, v, options);
}

}  // namespace lockstep::nn
