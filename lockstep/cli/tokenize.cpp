// `lockstep tokenize INPUT... --tokenizer FILE --output FOLDER`: text to token shards that training maps.
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/cli/signals.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {
namespace {

struct TokenizeOptions {
  std::vector<std::string> inputs;
  std::string tokenizer, output, field = "text", on_bad = "refuse", shard_size = "64MiB";
  int workers = 0;
  bool json = false;
};

constexpr double kLeastShard = 64 << 10;
constexpr double kMostShard = double{4} * (1 << 30);

std::uint64_t shard_bytes_of(const std::string& text) {
  const double bytes = parse_bytes(text, {"--shard-size"});
  if (bytes >= kLeastShard && bytes <= kMostShard) return static_cast<std::uint64_t>(bytes);
  throw bad_input("--shard-size is " + text, "use 64KiB to 4GiB");
}

// One line that is painted over on a terminal; nothing elsewhere, where lines stay.
void show_progress(const nlohmann::json& message) {
  if (isatty(STDERR_FILENO) == 0) return;
  const double total = message.value("total_bytes", 1.0);
  fmt::print(stderr, "\r{:3.0f}%  {} of {}, {} tokens, {} of {} shards ",
             100.0 * message.value("bytes", 0.0) / (total > 0 ? total : 1.0), format_bytes(message.value("bytes", 0.0)),
             format_bytes(total), message.value("tokens", std::int64_t{0}), message.value("shards", 0),
             message.value("total_shards", 0));
  if (message.value("shards", 0) == message.value("total_shards", 0)) fmt::print(stderr, "\n");
}

void show_result(const nlohmann::json& result) {
  for (const nlohmann::json& bad : result.at("bad")) fmt::print(stderr, "skipped: {}\n", bad.get<std::string>());
  const double seconds = result.value("seconds", 0.0);
  fmt::print("{} tokens of {} documents in {} shards", result.value("tokens", std::int64_t{0}),
             result.value("documents", std::int64_t{0}), result.value("shards", 0));
  if (result.value("kept", 0) > 0) fmt::print(", {} of them kept from before", result.value("kept", 0));
  fmt::print("\n{} of text in {}, vocabulary {}\n", format_bytes(result.value("bytes", 0.0)), format_seconds(seconds),
             result.value("vocab_size", 0));
  if (const auto skipped = result.value("skipped", std::int64_t{0}); skipped > 0) {
    fmt::print("{} records or files were left out (--on-bad skip)\n", skipped);
  }
  const auto tokens = static_cast<double>(result.value("tokens", std::int64_t{0}));
  if (const double unknown = 100.0 * static_cast<double>(result.value("unknown", std::int64_t{0})); unknown > tokens) {
    fmt::print("{:.1f}% of the tokens are the one for unknown words: is this the tokenizer for this text?\n",
               unknown / tokens);
  }
  fmt::print("Next: lockstep train JOB.yaml data.kind=tokens data.path={}\n", result.value("output", ""));
}

int run_tokenize(const TokenizeOptions& options) {
  const nlohmann::json request{{"inputs", options.inputs},
                               {"tokenizer", options.tokenizer},
                               {"output", options.output},
                               {"field", options.field},
                               {"on_bad", options.on_bad},
                               {"workers", options.workers},
                               {"shard_bytes", shard_bytes_of(options.shard_size)}};
  prepare_compute(1);
  const EngineLibrary engine;
  count_stop_signals(SecondSignal::kExits);
  nlohmann::json result;
  std::string error;
  EngineCallbacks callbacks;
  callbacks.on_message = [&](const nlohmann::json& message) {
    const std::string type = message.value("type", "");
    if (type == "tokenize") show_progress(message);
    if (type == "result") result = message;
    if (type == "error" && error.empty()) error = message.value("message", "");
  };
  callbacks.stop_requested = [] { return stop_signals() > 0 ? 1 : 0; };
  const int exit_code = engine.call("tokenize", request, callbacks);
  if (exit_code == static_cast<int>(ExitCode::kInterrupted)) {
    fmt::print(stderr, "stopped; run the same command again to go on\n");
    return exit_code;
  }
  if (result.is_null()) throw UserError(static_cast<ExitCode>(exit_code == 0 ? 1 : exit_code), error, "");
  result.erase("type");
  if (options.json) {
    fmt::print("{}\n", result.dump());
  } else {
    show_result(result);
  }
  return exit_code;
}

}  // namespace

void add_tokenize(CLI::App& app, Outcome& outcome) {
  CLI::App* verb = app.add_subcommand("tokenize", "Turns text into token shards that training maps");
  auto options = std::make_shared<TokenizeOptions>();
  verb->add_option("input", options->inputs, "Files or folders: plain text, .jsonl, .csv, .tsv, .parquet")->required();
  verb->add_option("--tokenizer", options->tokenizer, "tokenizer.json, a folder with one, or `bytes`")->required();
  verb->add_option("-o,--output", options->output, "Folder to write; an interrupted one is continued")->required();
  verb->add_option("--field", options->field, "Field or column of the text in JSONL, CSV and Parquet")
      ->capture_default_str();
  verb->add_option("--on-bad", options->on_bad, "Records that are wrong: refuse, or skip and count")
      ->check(CLI::IsMember({"refuse", "skip"}))
      ->capture_default_str();
  verb->add_option("--workers", options->workers, "Threads; 0: one per core")->check(CLI::Range(0, 1024));
  verb->add_option("--shard-size", options->shard_size, "Text in one shard")->capture_default_str();
  verb->add_flag("--json", options->json, "JSON on stdout");
  verb->callback([options, &outcome] {
    outcome.json = options->json;
    outcome.exit_code = run_tokenize(*options);
  });
  set_examples(*verb,
               "  lockstep tokenize corpus.txt --tokenizer llama3/tokenizer.json --output tokens\n"
               "  lockstep tokenize part-*.jsonl --field content --tokenizer gpt2 --output tokens --on-bad skip");
}

}  // namespace lockstep::cli
