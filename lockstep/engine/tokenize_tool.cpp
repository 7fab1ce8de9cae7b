#include "lockstep/engine/tokenize_tool.h"

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/data/token_folder.h"

namespace lockstep::engine {
namespace {

using nlohmann::json;

data::TokenizeRequest request_of(const json& request) {
  data::TokenizeRequest asked;
  for (const json& input : request.at("inputs")) asked.inputs.emplace_back(input.get<std::string>());
  asked.tokenizer = request.at("tokenizer").get<std::string>();
  asked.output = request.at("output").get<std::string>();
  asked.corpus.field = request.at("field").get<std::string>();
  asked.corpus.on_bad =
      value_named<spec::OnBad>(request.at("on_bad").get<std::string>()).value_or(spec::OnBad::kRefuse);
  asked.corpus.unit_bytes = request.at("shard_bytes").get<std::uint64_t>();
  asked.workers = request.at("workers").get<int>();
  return asked;
}

int tokenize(const json& request, const Host& host) {
  const Stopwatch watch;
  data::TokenizeRequest asked = request_of(request);
  asked.on_progress = [&](const data::TokenizeProgress& progress) {
    host.send({{"type", "tokenize"},
               {"bytes", progress.bytes},
               {"total_bytes", progress.total_bytes},
               {"tokens", progress.tokens},
               {"shards", progress.shards},
               {"total_shards", progress.total_shards}});
    return !host.stop_requested();
  };
  const data::TokenizeResult result = data::tokenize_corpus(asked);
  if (!result.finished) return static_cast<int>(ExitCode::kInterrupted);
  host.send({{"type", "result"},
             {"schema", "lockstep.tokenize_result/1"},
             {"output", asked.output.string()},
             {"tokens", result.tokens},
             {"documents", result.documents},
             {"skipped", result.skipped},
             {"unknown", result.unknown},
             {"bad", result.bad},
             {"vocab_size", result.vocab_size},
             {"bytes", result.bytes},
             {"shards", result.shards},
             {"kept", result.kept},
             {"seconds", watch.seconds()}});
  return 0;
}

}  // namespace

int run_tokenize_tool(const json& request, const Host& host) {
  try {
    return tokenize(request, host);
  } catch (const UserError& error) {
    const int code = static_cast<int>(error.code());
    host.send({{"type", "error"}, {"rank", -1}, {"kind", "user"}, {"exit_code", code}, {"message", error.what()}});
    return code;
  }
}

}  // namespace lockstep::engine
