#include "lockstep/planner/proxy/differences.h"

#include <fmt/format.h>

#include "lockstep/base/units.h"

namespace lockstep::planner {
namespace {

class List {
 public:
  void add(const char* what, std::string target, std::string proxy, const char* why) {
    if (target == proxy) return;
    differences_.push_back({what, std::move(target), std::move(proxy), why});
  }
  void add(const char* what, std::int64_t target, std::int64_t proxy, const char* why) {
    add(what, std::to_string(target), std::to_string(proxy), why);
  }
  std::vector<Difference> take() { return std::move(differences_); }

 private:
  std::vector<Difference> differences_;
};

void compare_models(const spec::Model& target, const spec::Model& proxy, List& list) {
  const auto count = [](const spec::Model& model) {
    return format_count(static_cast<double>(spec::parameter_count(model)));
  };
  const auto heads = [](const spec::Model& model) {
    return fmt::format("{} of {}, {} of keys and values", model.heads, model.head_dim, model.kv_heads);
  };
  const char* const shape = "one factor for every width, the depth and the sequence";
  list.add("parameters", count(target), count(proxy), "what fits this machine and the time");
  list.add("layers", target.layers, proxy.layers, shape);
  list.add("hidden", target.hidden, proxy.hidden, shape);
  list.add("heads", heads(target), heads(proxy), "of the same size while at least four are left");
  list.add("mlp", target.ffn_hidden, proxy.ffn_hidden, shape);
  list.add("vocabulary", target.vocab, proxy.vocab, "the head keeps its share of the FLOPs, down to 256 entries");
  list.add("image size", target.image_size, proxy.image_size, "the structure stays");
}

}  // namespace

std::vector<Difference> differences(const spec::Job& job, const plan::Candidate& planned, const Proxy& proxy) {
  List list;
  compare_models(job.model, proxy.job.model, list);
  const spec::Batch& batch = proxy.job.batch;
  list.add("sequence", planned.batch.sequence_length, batch.sequence_length, "as the hidden size");
  list.add("devices", job.cluster.name, proxy.job.cluster.name, "what is here");
  plan::Layout target = planned.layout, own = proxy.layout;
  target.precision = own.precision = spec::Precision::kFp32;  // has a line of its own
  list.add("layout", plan::to_string(target), plan::to_string(own), "two ways of each kind that the ranks allow");
  list.add("micro-batch", planned.batch.micro, batch.micro, "what fits this machine and the time");
  list.add("accumulation", planned.batch.accumulation, batch.accumulation, "enough for a pipeline to fill");
  list.add("precision", spec::to_string(planned.layout.precision), spec::to_string(proxy.job.precision),
           "processors train in fp32");
  list.add("data", spec::to_string(job.data.kind), "generated", "a proxy needs shapes, not the job's data");
  if (!job.weights.empty()) list.add("weights", "pretrained", "random", "they do not fit another size");
  list.add("between steps", "evaluation, checkpoints, snapshots", "nothing", "only steps are predicted and compared");
  return list.take();
}

}  // namespace lockstep::planner
