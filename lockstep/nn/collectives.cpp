#include "lockstep/nn/collectives.h"

#include <torch/autograd.h>

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/nn/tensor_comm.h"

namespace lockstep::nn {
namespace {

using comm::Communicator;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool alone(const Communicator& group) { return !group.valid() || group.size() == 1; }

// What backward needs of a collective. An autograd function keeps IValues only; this rides along as a custom one.
struct Call : torch::CustomClassHolder {
  Communicator group;
  const char* site = "";
  std::vector<std::int64_t> send, receive;
};

c10::IValue keep(const Communicator& group, const char* site, std::vector<std::int64_t> send = {},
                 std::vector<std::int64_t> receive = {}) {
  auto call = c10::make_intrusive<Call>();
  call->group = group;
  call->site = site;
  call->send = std::move(send);
  call->receive = std::move(receive);
  return c10::IValue::make_capsule(std::move(call));
}

Call& kept(AutogradContext* ctx) { return static_cast<Call&>(*ctx->saved_data["call"].toCapsule()); }

comm::OpOptions at_site(const char* site) {
  comm::OpOptions options;
  options.site = site;
  return options;
}

// A copy that owns its memory: the result of an autograd function may not be its input.
Tensor summed(const Tensor& x, Communicator& group, const char* site) {
  Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(buffer_of(sum), comm::ReduceOp::kSum, at_site(site)).wait();
  return sum;
}

// [batch, rows, ...] of every rank -> [batch, ranks x rows, ...].
Tensor gathered(const Tensor& x, Communicator& group, const char* site) {
  const Tensor own = x.contiguous();
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  Tensor all = torch::empty(sizes, x.options());  // [ranks, batch, rows, ...]
  group.all_gather(buffer_of(own), buffer_of(all), at_site(site)).wait();
  return all.transpose(0, 1).flatten(1, 2);
}

// [batch, ranks x rows, ...] -> the sum's rows of this rank.
Tensor scattered(const Tensor& x, Communicator& group, const char* site) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  LOCKSTEP_ASSERT(sizes[1] % group.size() == 0, "tp divides the rows of sequence parallel");
  sizes[1] /= group.size();
  Tensor own = torch::empty(sizes, x.options());
  std::vector<std::int64_t> split = sizes;
  split.insert(split.begin() + 1, group.size());
  const Tensor by_rank = x.reshape(split).transpose(0, 1).contiguous();  // [ranks, batch, rows, ...]
  group.reduce_scatter(buffer_of(by_rank), buffer_of(own), comm::ReduceOp::kSum, at_site(site)).wait();
  return own;
}

Tensor own_rows(const Tensor& x, const Communicator& group) {
  const std::int64_t rows = x.size(1) / group.size();
  return x.narrow(1, group.rank() * rows, rows).contiguous();
}

Tensor exchanged(const Tensor& x, const std::vector<std::int64_t>& send, const std::vector<std::int64_t>& receive,
                 Communicator& group, const char* site) {
  const Tensor rows = x.contiguous();
  std::vector<std::int64_t> sizes = x.sizes().vec();
  const std::int64_t width = std::accumulate(sizes.begin() + 1, sizes.end(), std::int64_t{1}, std::multiplies<>());
  sizes[0] = std::accumulate(receive.begin(), receive.end(), std::int64_t{0});
  Tensor result = torch::empty(sizes, x.options());
  const auto elements = [width](std::vector<std::int64_t> counts) {
    for (std::int64_t& count : counts) count *= width;
    return counts;
  };
  group.all_to_all(buffer_of(rows), elements(send), buffer_of(result), elements(receive), at_site(site)).wait();
  return result;
}

// Forward and backward of each function; Dir says which of the two exchanges happens where.
class EnterRegion : public torch::autograd::Function<EnterRegion> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, c10::IValue call) {
    ctx->saved_data["call"] = std::move(call);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = kept(ctx);
    return {summed(grads[0], call.group, call.site), Tensor()};
  }
};

class LeaveRegion : public torch::autograd::Function<LeaveRegion> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, c10::IValue call) {
    ctx->saved_data["call"] = std::move(call);
    return summed(x, kept(ctx).group, kept(ctx).site);
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], Tensor()}; }
};

class SumInside : public torch::autograd::Function<SumInside> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, c10::IValue call) {
    ctx->saved_data["call"] = std::move(call);
    return summed(x, kept(ctx).group, kept(ctx).site);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = kept(ctx);
    return {summed(grads[0], call.group, call.site), Tensor()};
  }
};

class GatherRows : public torch::autograd::Function<GatherRows> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, c10::IValue call) {
    ctx->saved_data["call"] = std::move(call);
    return gathered(x, kept(ctx).group, kept(ctx).site);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = kept(ctx);
    return {scattered(grads[0], call.group, call.site), Tensor()};
  }
};

class ScatterRows : public torch::autograd::Function<ScatterRows> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, c10::IValue call) {
    ctx->saved_data["call"] = std::move(call);
    return scattered(x, kept(ctx).group, kept(ctx).site);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = kept(ctx);
    return {gathered(grads[0], call.group, call.site), Tensor()};
  }
};

class CollectRows : public torch::autograd::Function<CollectRows> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, c10::IValue call) {
    ctx->saved_data["call"] = std::move(call);
    return gathered(x, kept(ctx).group, kept(ctx).site);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {own_rows(grads[0], kept(ctx).group), Tensor()};
  }
};

class ExchangeRows : public torch::autograd::Function<ExchangeRows> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, c10::IValue call) {
    ctx->saved_data["call"] = std::move(call);
    Call& c = kept(ctx);
    return exchanged(x, c.send, c.receive, c.group, c.site);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& c = kept(ctx);
    return {exchanged(grads[0], c.receive, c.send, c.group, c.site), Tensor()};
  }
};

class ReceiveFromPrevious : public torch::autograd::Function<ReceiveFromPrevious> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& anchor, std::vector<std::int64_t> sizes, c10::IValue call) {
    ctx->saved_data["call"] = std::move(call);
    ctx->saved_data["anchor"] = anchor.sizes();
    Call& c = kept(ctx);
    if (c.group.rank() == 0) return torch::zeros(sizes, anchor.options());
    Tensor x = torch::empty(sizes, anchor.options());
    c.group.recv(buffer_of(x), c.group.rank() - 1, at_site(c.site)).wait();
    return x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& c = kept(ctx);
    if (c.group.rank() > 0) {
      const Tensor gradient = grads[0].contiguous();
      c.group.send(buffer_of(gradient), c.group.rank() - 1, at_site(c.site)).wait();
    }
    return {torch::zeros(ctx->saved_data["anchor"].toIntVector(), grads[0].options()), Tensor(), Tensor()};
  }
};

class SendToNext : public torch::autograd::Function<SendToNext> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& carrier, c10::IValue call) {
    ctx->saved_data["call"] = std::move(call);
    ctx->saved_data["sizes"] = x.sizes();
    Call& c = kept(ctx);
    const Tensor value = x.contiguous();
    c.group.send(buffer_of(value), c.group.rank() + 1, at_site(c.site)).wait();
    return carrier.view_as(carrier);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& c = kept(ctx);
    Tensor gradient = torch::empty(ctx->saved_data["sizes"].toIntVector(), grads[0].options());
    c.group.recv(buffer_of(gradient), c.group.rank() + 1, at_site(c.site)).wait();
    return {gradient, grads[0], Tensor()};
  }
};

}  // namespace

Tensor enter_tensor_region(const Tensor& x, const Communicator& group, const char* site) {
  return alone(group) ? x : EnterRegion::apply(x, keep(group, site));
}

Tensor leave_tensor_region(const Tensor& x, const Communicator& group, const char* site) {
  return alone(group) ? x : LeaveRegion::apply(x, keep(group, site));
}

Tensor sum_inside_region(const Tensor& x, const Communicator& group, const char* site) {
  return alone(group) ? x : SumInside::apply(x, keep(group, site));
}

Tensor gather_rows(const Tensor& x, const Communicator& group, const char* site) {
  return alone(group) ? x : GatherRows::apply(x, keep(group, site));
}

Tensor scatter_rows(const Tensor& x, const Communicator& group, const char* site) {
  return alone(group) ? x : ScatterRows::apply(x, keep(group, site));
}

Tensor collect_rows(const Tensor& x, const Communicator& group, const char* site) {
  return alone(group) ? x : CollectRows::apply(x, keep(group, site));
}

Tensor exchange_rows(const Tensor& x, const std::vector<std::int64_t>& send, const std::vector<std::int64_t>& receive,
                     const Communicator& group, const char* site) {
  return alone(group) ? x : ExchangeRows::apply(x, keep(group, site, send, receive));
}

Tensor receive_from_previous(torch::IntArrayRef sizes, const Tensor& anchor, const Communicator& group,
                             const char* site) {
  if (alone(group)) return torch::zeros(sizes, anchor.options());
  return ReceiveFromPrevious::apply(anchor, sizes.vec(), keep(group, site));
}

Tensor send_to_next(const Tensor& x, const Tensor& carrier, const Communicator& group, const char* site) {
  if (alone(group) || group.rank() == group.size() - 1) return carrier;
  return SendToNext::apply(x, carrier, keep(group, site));
}

}  // namespace lockstep::nn
