// `lockstep checkpoint inspect|verify|reshard|export`: looks at a checkpoint, checks it, writes it anew.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/base/counted.h"
#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/trained.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {
namespace {

struct CheckpointOptions {
  std::string path, output, layout;
  bool whole = false, adapter = false, json = false;
};

void show_info(const nlohmann::json& info) {
  fmt::print("{}\n", info.value("path", ""));
  fmt::print("  step      {}\n", info.value("step", std::int64_t{0}));
  fmt::print("  saved     {} by {}, format {}{}\n", utc_timestamp(info.value("created_at", 0.0)),
             counted(info.value("world", 1), "rank"), info.value("format", 0),
             info.value("pinned", false) ? ", pinned" : "");
  if (const std::string layout = info.value("layout", ""); !layout.empty()) fmt::print("  layout    {}\n", layout);
  fmt::print("  tensors   {} of the model, {} of the optimizer\n", info.value("tensors", 0),
             info.value("optimizer_tensors", 0));
  fmt::print("  size      {} in {} files, CRC-32C of {} blocks (not read; see `checkpoint verify`)\n",
             format_bytes(info.value("bytes", 0.0)), info.value("files", 0), info.value("blocks", 0));
  fmt::print("  rank      pieces   model       optimizer\n");
  for (const nlohmann::json& rank : info.at("ranks")) {
    fmt::print("  {:<9} {:<8} {:<11} {}\n", rank.value("rank", 0), rank.value("pieces", 0),
               format_bytes(rank.value("model_bytes", 0.0)), format_bytes(rank.value("optimizer_bytes", 0.0)));
  }
}

void show_verdict(const nlohmann::json& verdict) {
  if (verdict.value("sound", false)) {
    fmt::print("{} is sound: {} read in {}\n", verdict.value("path", ""), format_bytes(verdict.value("bytes", 0.0)),
               format_seconds(verdict.value("seconds", 0.0)));
    return;
  }
  fmt::print("{} is damaged:\n", verdict.value("path", ""));
  for (const nlohmann::json& damage : verdict.at("damage")) fmt::print("  {}\n", damage.value("text", ""));
}

void show(const std::string& action, const nlohmann::json& result) {
  if (action == "inspect") return show_info(result);
  if (action == "verify") return show_verdict(result);
  fmt::print("wrote {} (step {})\n", result.value("path", ""), result.value("step", std::int64_t{0}));
}

int run_checkpoint(const std::string& action, const CheckpointOptions& options) {
  const ToolAnswer answer = call_tool("checkpoint",
                                      {{"action", action},
                                       {"path", options.path},
                                       {"output", options.output},
                                       {"layout", options.layout},
                                       {"whole", options.whole},
                                       {"adapter", options.adapter}},
                                      /*threads=*/1);
  if (options.json) {
    fmt::print("{}\n", answer.result.dump());
  } else {
    show(action, answer.result);
  }
  return answer.exit_code;
}

}  // namespace

void add_checkpoint(CLI::App& app, Outcome& outcome) {
  CLI::App* verb = app.add_subcommand("checkpoint", "Looks at checkpoints, checks them, writes them for other layouts");
  verb->require_subcommand(1);
  const auto add = [&](const std::string& action, const std::string& what, bool writes) {
    auto options = std::make_shared<CheckpointOptions>();
    CLI::App* part = verb->add_subcommand(action, what);
    part->add_option("path", options->path, "A step-* folder, or a folder of them: the newest is taken")->required();
    if (writes) part->add_option("--output", options->output, "New folder to write")->required();
    if (action == "reshard") {
      part->add_option("--layout", options->layout, "Layout to write for: tp=2,pp=2");
      part->add_flag("--whole", options->whole, "Whole tensors in one rank's file");
    }
    if (action == "export") {
      part->add_flag("--adapter", options->adapter, "Only the LoRA adapters, in PEFT's format");
    }
    part->add_flag("--json", options->json, "JSON on stdout");
    part->callback([options, action, &outcome] {
      outcome.json = options->json;
      outcome.exit_code = run_checkpoint(action, *options);
    });
  };
  add("inspect", "Prints step, layout, sizes and the pieces of every rank", false);
  add("verify", "Reads every byte and names what is damaged (exit code 3)", false);
  add("reshard", "Writes it for another layout, or as whole tensors", true);
  add("export", "Writes the weights as a folder that transformers (of CNNs: torchvision) loads", true);
  set_examples(*verb,
               "  lockstep checkpoint inspect checkpoints\n"
               "  lockstep checkpoint verify checkpoints/step-00000120\n"
               "  lockstep checkpoint reshard checkpoints --layout tp=2,pp=2 --output resharded\n"
               "  lockstep checkpoint export checkpoints --output model\n"
               "  lockstep checkpoint export checkpoints --adapter --output adapter");
}

}  // namespace lockstep::cli
