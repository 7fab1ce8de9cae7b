#include "lockstep/engine/checkpoint_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/saver.h"
#include "lockstep/comm/local.h"
#include "lockstep/engine/peft.h"
#include "lockstep/engine/pretrained.h"
#include "lockstep/engine/run_checkpoints.h"
#include "lockstep/engine/sharded_executor.h"
#include "lockstep/engine/trained_model.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

spec::Job job_of(const checkpoint::CheckpointFacts& facts) { return spec::parse_job(facts.job_yaml, "checkpoint"); }

json inspect(const fs::path& path) {
  const auto reader = checkpoint::CheckpointReader::open(path);
  const checkpoint::CheckpointInfo& info = reader.info();
  const checkpoint::CheckpointFacts facts = reader.facts(0);
  json ranks = json::array();
  for (int rank = 0; rank < (info.format > 1 ? info.world : 1); ++rank) {
    ranks.push_back({{"rank", rank}, {"pieces", 0}, {"model_bytes", 0}, {"optimizer_bytes", 0}});
  }
  for (const auto& piece : reader.pieces()) {
    json& row = ranks.at(static_cast<std::size_t>(piece.rank));
    row["pieces"] = row["pieces"].get<int>() + 1;
    json& bytes = row[std::string(to_string(piece.kind)) + "_bytes"];
    bytes = bytes.get<std::uint64_t>() + piece.bytes;
  }
  std::uint64_t blocks = 0;
  for (const auto& [name, file] : reader.manifest().at("files").items()) blocks += file.at("blocks").size();
  return {{"schema", "lockstep.checkpoint_info/1"},
          {"path", path.string()},
          {"step", info.step},
          {"format", info.format},
          {"world", info.world},
          {"layout", facts.extra.value("layout", "")},
          {"run", facts.extra.value("run", "")},
          {"created_at", info.created_at},
          {"bytes", info.bytes},
          {"files", reader.manifest().at("files").size()},
          {"blocks", blocks},
          {"tensors", reader.names(checkpoint::TensorKind::kModel).size()},
          {"optimizer_tensors", reader.names(checkpoint::TensorKind::kOptimizer).size()},
          {"loader", facts.loader},
          {"pinned", checkpoint::is_pinned(path)},
          {"ranks", std::move(ranks)}};
}

json verify(const fs::path& path) {
  const Stopwatch watch;
  checkpoint::CheckpointInfo info;
  json damage = json::array();
  for (const checkpoint::Damage& found : checkpoint::verify_checkpoint(path, &info)) {
    damage.push_back({{"file", found.file},
                      {"offset", found.offset},
                      {"bytes", found.bytes},
                      {"problem", found.problem},
                      {"text", found.to_string()}});
  }
  const bool sound = damage.empty();
  return {{"schema", "lockstep.checkpoint_verify/1"},
          {"path", path.string()},
          {"sound", sound},
          {"step", info.step},
          {"bytes", info.bytes},
          {"seconds", watch.seconds()},
          {"damage", std::move(damage)},
          {"exit_code", sound ? 0 : static_cast<int>(ExitCode::kAnswerIsNo)}};
}

// One rank of the new layout: takes its part of the old checkpoint and saves it.
void rewrite_rank(const fs::path& path, const spec::Job& job, const plan::Run& run, comm::Communicator world,
                  const checkpoint::SaverOptions& options) {
  nn::compat::set_compute_threads(1);
  const auto reader = checkpoint::CheckpointReader::open(path);
  reader.prefer(world.rank());
  checkpoint::CheckpointPart part{reader.facts(world.rank()), {}};
  const bool same_ranks = reader.info().world == world.size();
  const checkpoint::TensorMap own = reader.rank_tensors(world.rank());
  ShardedExecutor executor(job, run, world);
  executor.restore({part.facts, reader, own}, same_ranks);
  executor.save(part);
  for (const auto& [name, tensor] : own) {
    const bool there = std::any_of(part.pieces.begin(), part.pieces.end(), [&](const checkpoint::TensorPiece& piece) {
      return piece.kind == checkpoint::TensorKind::kRank && piece.name == name;
    });
    if (!there) part.pieces.push_back(checkpoint::whole_piece(checkpoint::TensorKind::kRank, name, tensor));
  }
  part.facts.extra["layout"] = plan::to_string(run.layout);
  part.facts.extra["world"] = world.size();
  save_checkpoint(part, options, [&](const checkpoint::SaveProgress& said) { return sum_progress(world, said); });
}

void rewrite_for_layout(const fs::path& path, const std::string& layout_text, const fs::path& output) {
  spec::Job job = job_of(checkpoint::CheckpointReader::open(path).facts(0));
  job.cluster = {};  // the ranks are here, however many the job's cluster has
  job.weights.clear();
  plan::Layout layout = plan::parse_layout(layout_text);
  layout.precision = job.precision;
  const plan::Run run = plan::run_of(job, layout);
  const int ranks = static_cast<int>(layout.world());
  comm::LocalWorld world(ranks, comm::milliseconds{600'000});
  checkpoint::SaverOptions options;
  options.directory = output;
  options.world = ranks;
  options.session = checkpoint::new_session();
  std::mutex mutex;
  std::exception_ptr problem;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank, own = options]() mutable {
      own.rank = rank;
      try {
        rewrite_rank(path, job, run, world.communicator(rank), own);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!problem) problem = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (problem) std::rethrow_exception(problem);
}

void refuse_unless_empty(const fs::path& output) {
  if (output.empty()) throw bad_input("reshard and export write a new folder", "name it with --output");
  std::error_code ignored;
  if (!fs::exists(output, ignored) || (fs::is_directory(output, ignored) && fs::is_empty(output, ignored))) return;
  throw bad_input("it is there already and not an empty folder", "choose another folder or remove this one",
                  {output.string()});
}

json reshard(const fs::path& path, const json& request) {
  const fs::path output = request.value("output", "");
  const std::string layout = request.value("layout", "");
  const bool whole = request.value("whole", false);
  if (whole == !layout.empty()) throw bad_input("reshard needs a goal", "give --layout TEXT or --whole");
  refuse_unless_empty(output);
  if (whole) {
    checkpoint::CheckpointContents contents = checkpoint::CheckpointReader::open(path).read(0);
    contents.facts.extra["layout"] = "dp=1";
    contents.facts.extra["world"] = 1;
    save_checkpoint(part_of(contents), {.directory = output});
  } else {
    rewrite_for_layout(path, layout, output);
  }
  const checkpoint::CheckpointInfo made = checkpoint::list_checkpoints(output).at(0);
  return {{"schema", "lockstep.checkpoint_reshard/1"},
          {"path", made.path.string()},
          {"step", made.step},
          {"world", made.world},
          {"bytes", made.bytes}};
}

json export_weights(const fs::path& path, const json& request) {
  const std::string output = request.value("output", "");
  refuse_unless_empty(output);
  const auto reader = checkpoint::CheckpointReader::open(path);
  const spec::Job job = job_of(reader.facts(0));
  parallel::TensorMap weights;
  for (const std::string& name : reader.names(checkpoint::TensorKind::kModel)) {
    weights[name] = reader.read_whole(checkpoint::TensorKind::kModel, name);
  }
  if (request.value("adapter", false)) {
    if (job.lora.rank == 0) throw bad_input("the checkpoint has no adapters", "omit --adapter", {path.string()});
    const std::string base = is_adapter_folder(job.weights) ? base_of_adapter(job.weights) : job.weights;
    export_adapter(weights, job.model, job.lora, base, output);
  } else {
    if (job.lora.rank > 0) merge_adapters(weights, job.model, job.lora);
    export_weights_of(weights, job.model, output, job.data.tokenizer == "bytes" ? "" : job.data.tokenizer);
  }
  return {{"schema", "lockstep.checkpoint_export/1"},
          {"path", output},
          {"step", reader.info().step},
          {"tensors", weights.size()}};
}

json answer_to(const json& request) {
  const std::string action = request.at("action");
  const fs::path path = checkpoint_at(request.at("path").get<std::string>());
  return action == "inspect"  ? inspect(path)
         : action == "verify" ? verify(path)
         : action == "export" ? export_weights(path, request)
                              : reshard(path, request);
}

}  // namespace

int run_checkpoint_tool(const json& request, const Host& host) {
  return run_tool(host, [&] { return answer_to(request); });
}

}  // namespace lockstep::engine
