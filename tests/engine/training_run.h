// A small Llama job on text made here, trained through the Trainer in this process, with what it told and saved.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/local.h"
#include "lockstep/engine/trainer.h"
#include "lockstep/nn/device_thread.h"

namespace lockstep::engine {

// A folder of its own, gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-engine-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Words in an order that a model can learn a little of.
inline std::string made_text(std::size_t bytes) {
  static const char* const kWords[] = {"lock ", "step ", "rank ", "plan ", "train ", "loss ", "the ", "and\n"};
  std::string text;
  for (std::uint64_t i = 1, state = 1; text.size() < bytes; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += kWords[(state >> 60) % 8];
    if (i % 3 == 0) text += kWords[i % 8];
  }
  return text;
}

struct TrainingRun {
  std::vector<double> losses;  // of every step
  std::vector<nlohmann::json> evaluations;
  std::vector<std::string> notes;
  nlohmann::json summary;
};

class TrainingRuns {
 public:
  explicit TrainingRuns(torch::Device device = torch::kCPU) : device_(device) {
    std::ofstream(text()) << made_text(40000);
  }

  std::string text() const { return (folder_.path() / "text.txt").string(); }
  std::filesystem::path folder(const std::string& name) const { return folder_.path() / name; }

  spec::Job job(const std::string& more = {}, const std::string& model = {}) const {
    const std::string usual =
        "{arch: llama, name: small, layers: 2, hidden: 64, heads: 4, ffn_hidden: 128, vocab: 256, max_sequence: 64}";
    return spec::parse_job(
        fmt::format("model: {}\ncluster: {}\ndata: {{kind: text, path: {}, tokenizer: bytes}}\n"
                    "optimizer: {{kind: adamw, learning_rate: 2e-3, schedule: cosine, warmup_steps: 2, "
                    "betas: [0.9, 0.95], weight_decay: 0.1, clip_norm: 1.0}}\n"
                    "precision: bf16\nseed: 5\n{}",
                    model.empty() ? usual : model, device_.is_cpu() ? "1x1xcpu" : "1x1xH200", text(),
                    more.empty() ? "batch: {micro: 4, sequence_length: 64}\nsteps: 6\n" : more),
        "test");
  }

  // `checkpoints`: name of a folder; "" saves nothing. `stop_after`: asks to stop once so many steps were told.
  struct Options {
    DeviceStepMaker make_step;
    std::string checkpoints;
    std::string resume_from;
    int stop_after = 0;
    plan::Recompute recompute = plan::Recompute::kNone;
    const checkpoint::FileLayer* files = nullptr;
    std::function<void(const std::string&)> on_note = {};
  };
  TrainingRun run(const spec::Job& job, const Options& options) {
    TrainingRun run;
    struct Listener {
      TrainingRun& run;
      int stop_after;
      const std::function<void(const std::string&)>& on_note;
    } listener{run, options.stop_after, options.on_note};
    LockstepEngineHost host{
        &listener,
        [](void* context, const char* text) {
          const auto* who = static_cast<Listener*>(context);
          TrainingRun& told = who->run;
          const nlohmann::json message = nlohmann::json::parse(text);
          if (message.at("type") == "note") told.notes.push_back(message.at("text"));
          if (message.at("type") == "note" && who->on_note) who->on_note(told.notes.back());
          if (message.at("type") == "step") told.losses.push_back(message.at("loss"));
          if (message.at("type") == "evaluation") told.evaluations.push_back(message);
        },
        [](void* context) {
          const auto* who = static_cast<Listener*>(context);
          return who->stop_after > 0 && static_cast<int>(who->run.losses.size()) >= who->stop_after ? 1 : 0;
        }};
    const nn::DeviceThread thread(device_);
    comm::LocalWorld world(1, comm::milliseconds{300'000});
    elastic::RankRequest request;
    request.run_id = "test";
    request.options.report_steps = true;
    if (!options.checkpoints.empty()) request.checkpoint_directory = folder(options.checkpoints).string();
    request.resume_from = options.resume_from;
    plan::Layout layout;
    layout.precision = job.precision;
    layout.recompute = options.recompute;
    RunContext context{request, job, plan::run_of(job, layout), world.communicator(0), nullptr, Host(&host), device_};
    if (options.make_step) context.make_device_step = options.make_step;
    if (options.files != nullptr) context.files = options.files;
    Trainer trainer(context);
    run.summary = trainer.run();
    return run;
  }

  std::string checkpoint(const std::string& name, std::int64_t step) const {
    for (const checkpoint::CheckpointInfo& info : checkpoint::list_checkpoints(folder(name)))
      if (info.step == step) return info.path.string();
    return {};
  }
  checkpoint::CheckpointContents contents(const std::string& name, std::int64_t step) const {
    return checkpoint::CheckpointReader::open(checkpoint(name, step)).read(0);
  }

 private:
  TemporaryFolder folder_;
  torch::Device device_;
};

// The layout of one rank.
inline plan::Layout one_rank(const spec::Job& job) {
  plan::Layout layout;
  layout.precision = job.precision;
  return layout;
}

// Whether two checkpoints hold the same numbers under the same names.
inline std::string difference(const checkpoint::CheckpointContents& a, const checkpoint::CheckpointContents& b) {
  const auto compare = [](const parallel::TensorMap& x, const parallel::TensorMap& y) -> std::string {
    for (const auto& [name, value] : x) {
      const auto other = y.find(name);
      if (other == y.end()) return name + " is missing";
      if (!torch::equal(value.cpu(), other->second.cpu())) return name + " differs";
    }
    return x.size() == y.size() ? "" : "one has more tensors";
  };
  const std::string models = compare(a.model, b.model);
  if (!models.empty()) return models;
  if (a.facts.loader != b.facts.loader) {
    return "loader: " + a.facts.loader.dump() + " and " + b.facts.loader.dump();
  }
  return compare(a.optimizer, b.optimizer);
}

}  // namespace lockstep::engine
