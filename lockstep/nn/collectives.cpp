#include "lockstep/nn/collectives.h"

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/nn/autograd.h"
#include "lockstep/nn/tensor_comm.h"

namespace lockstep::nn {
namespace {

using comm::Communicator;

bool alone(const Communicator& group) { return !group.valid() || group.size() == 1; }

// What forward and backward of a collective need beside their tensor.
struct Call {
  Communicator group;
  const char* site = "";
  std::vector<std::int64_t> send = {}, receive = {};

  comm::OpOptions options() const { return comm::at_site(site); }
};

Tensor viewed(const Tensor& x, Call&) { return x.view_as(x); }
Tensor unchanged(const Tensor& x, Call&) { return x; }

// A copy that owns its memory: the result of an autograd function may not be its input.
Tensor summed(const Tensor& x, Call& call) {
  Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  call.group.all_reduce(buffer_of(sum), comm::ReduceOp::kSum, call.options()).wait();
  return sum;
}

// [batch, rows, ...] of every rank -> [batch, ranks x rows, ...].
Tensor gathered(const Tensor& x, Call& call) {
  const Tensor own = x.contiguous();
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), call.group.size());
  Tensor all = torch::empty(sizes, x.options());  // [ranks, batch, rows, ...]
  call.group.all_gather(buffer_of(own), buffer_of(all), call.options()).wait();
  return all.transpose(0, 1).flatten(1, 2);
}

// [batch, ranks x rows, ...] -> the sum's rows of this rank.
Tensor scattered(const Tensor& x, Call& call) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  LOCKSTEP_ASSERT(sizes[1] % call.group.size() == 0, "tp divides the rows of sequence parallel");
  sizes[1] /= call.group.size();
  Tensor own = torch::empty(sizes, x.options());
  std::vector<std::int64_t> split = sizes;
  split.insert(split.begin() + 1, call.group.size());
  const Tensor by_rank = x.reshape(split).transpose(0, 1).contiguous();  // [ranks, batch, rows, ...]
  call.group.reduce_scatter(buffer_of(by_rank), buffer_of(own), comm::ReduceOp::kSum, call.options()).wait();
  return own;
}

Tensor own_rows(const Tensor& x, Call& call) {
  const std::int64_t rows = x.size(1) / call.group.size();
  return x.narrow(1, call.group.rank() * rows, rows).contiguous();
}

Tensor exchanged(const Tensor& x, const std::vector<std::int64_t>& send, const std::vector<std::int64_t>& receive,
                 Call& call) {
  const Tensor rows = x.contiguous();
  std::vector<std::int64_t> sizes = x.sizes().vec();
  const std::int64_t width = std::accumulate(sizes.begin() + 1, sizes.end(), std::int64_t{1}, std::multiplies<>());
  sizes[0] = std::accumulate(receive.begin(), receive.end(), std::int64_t{0});
  Tensor result = torch::empty(sizes, x.options());
  const auto elements = [width](std::vector<std::int64_t> counts) {
    for (std::int64_t& count : counts) count *= width;
    return counts;
  };
  call.group.all_to_all(buffer_of(rows), elements(send), buffer_of(result), elements(receive), call.options()).wait();
  return result;
}
Tensor sent(const Tensor& x, Call& call) { return exchanged(x, call.send, call.receive, call); }
Tensor sent_back(const Tensor& x, Call& call) { return exchanged(x, call.receive, call.send, call); }

template <auto kForward, auto kBackward>
class Collective : public torch::autograd::Function<Collective<kForward, kBackward>> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Call& call) {
    keep(ctx, call);
    return kForward(x, kept<Call>(ctx));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {kBackward(grads[0], kept<Call>(ctx)), Tensor()};
  }
};

template <auto kForward, auto kBackward>
Tensor collective(const Tensor& x, const Call& call) {
  return alone(call.group) ? x : Collective<kForward, kBackward>::apply(x, call);
}

class ReceiveFromPrevious : public torch::autograd::Function<ReceiveFromPrevious> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& anchor, std::vector<std::int64_t> sizes, const Call& call) {
    keep(ctx, call);
    ctx->saved_data["anchor"] = anchor.sizes();
    Call& c = kept<Call>(ctx);
    if (c.group.rank() == 0) return torch::zeros(sizes, anchor.options());
    Tensor x = torch::empty(sizes, anchor.options());
    c.group.recv(buffer_of(x), c.group.rank() - 1, c.options()).wait();
    return x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& c = kept<Call>(ctx);
    if (c.group.rank() > 0) {
      const Tensor gradient = grads[0].contiguous();
      c.group.send(buffer_of(gradient), c.group.rank() - 1, c.options()).wait();
    }
    return {torch::zeros(ctx->saved_data["anchor"].toIntVector(), grads[0].options()), Tensor(), Tensor()};
  }
};

class SendToNext : public torch::autograd::Function<SendToNext> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& carrier, const Call& call) {
    keep(ctx, call);
    ctx->saved_data["sizes"] = x.sizes();
    Call& c = kept<Call>(ctx);
    const Tensor value = x.contiguous();
    c.group.send(buffer_of(value), c.group.rank() + 1, c.options()).wait();
    return carrier.view_as(carrier);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& c = kept<Call>(ctx);
    Tensor gradient = torch::empty(ctx->saved_data["sizes"].toIntVector(), grads[0].options());
    c.group.recv(buffer_of(gradient), c.group.rank() + 1, c.options()).wait();
    return {gradient, grads[0], Tensor()};
  }
};

}  // namespace

Tensor enter_tensor_region(const Tensor& x, const Communicator& group, const char* site) {
  return collective<viewed, summed>(x, {group, site});
}

Tensor leave_tensor_region(const Tensor& x, const Communicator& group, const char* site) {
  return collective<summed, unchanged>(x, {group, site});
}

Tensor sum_inside_region(const Tensor& x, const Communicator& group, const char* site) {
  return collective<summed, summed>(x, {group, site});
}

Tensor gather_rows(const Tensor& x, const Communicator& group, const char* site) {
  return collective<gathered, scattered>(x, {group, site});
}

Tensor scatter_rows(const Tensor& x, const Communicator& group, const char* site) {
  return collective<scattered, gathered>(x, {group, site});
}

Tensor collect_rows(const Tensor& x, const Communicator& group, const char* site) {
  return collective<gathered, own_rows>(x, {group, site});
}

Tensor exchange_rows(const Tensor& x, const std::vector<std::int64_t>& send, const std::vector<std::int64_t>& receive,
                     const Communicator& group, const char* site) {
  return collective<sent, sent_back>(x, {group, site, send, receive});
}

Tensor receive_from_previous(torch::IntArrayRef sizes, const Tensor& anchor, const Communicator& group,
                             const char* site) {
  if (alone(group)) return torch::zeros(sizes, anchor.options());
  return ReceiveFromPrevious::apply(anchor, sizes.vec(), Call{group, site});
}

Tensor send_to_next(const Tensor& x, const Tensor& carrier, const Communicator& group, const char* site) {
  if (alone(group) || group.rank() == group.size() - 1) return carrier;
  return SendToNext::apply(x, carrier, Call{group, site});
}

}  // namespace lockstep::nn
