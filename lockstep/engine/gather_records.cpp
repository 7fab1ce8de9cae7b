#include "lockstep/engine/gather_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::engine {
namespace {

constexpr std::int64_t kMostBytes = 8 << 20;  // of one rank
constexpr std::int64_t kMostSpanBytes = kMostBytes / 2;
constexpr std::int64_t kReadBytes = 64 << 20;  // looked at for them, from the end
constexpr double kFlushSeconds = 10.0;

struct Records {
  std::string text;
  bool cut = false;  // earlier lines were left out
};

// Texts inside a line have their quotes escaped.
bool is_of_spans(std::string_view line) { return line.find(R"("type":"spans")") != std::string_view::npos; }

// The last lines of the file, as many as may travel; nothing when there is no file. Spans are most of it, and the least
// missed: they get the room that metrics and events leave, and at least half of it.
Records last_lines(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::int64_t size = file.tellg();
  std::string text(static_cast<std::size_t>(std::min(size, kReadBytes)), '\0');
  file.seekg(size - static_cast<std::int64_t>(text.size()));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (size > kReadBytes) text.erase(0, text.find('\n') + 1);
  if (size <= kMostBytes) return {std::move(text), false};
  std::vector<std::string_view> kept;
  std::int64_t spans = 0, others = 0;
  for (std::string_view rest = text; !rest.empty();) {  // from the end
    const std::size_t before = rest.size() < 2 ? std::string_view::npos : rest.rfind('\n', rest.size() - 2);
    const std::string_view line = before == std::string_view::npos ? rest : rest.substr(before + 1);
    rest.remove_suffix(line.size());
    const bool is_span = is_of_spans(line);
    const auto bytes = static_cast<std::int64_t>(line.size());
    if (spans + others + bytes > kMostBytes || (is_span && spans + bytes > kMostSpanBytes)) continue;
    (is_span ? spans : others) += bytes;
    kept.push_back(line);
  }
  Records records{"", true};
  for (auto line = kept.rbegin(); line != kept.rend(); ++line) records.text += *line;
  return records;
}

void report_loss(RunContext& context, const std::string& text) {
  if (context.rank() != 0) return;
  context.recorder->event({.level = telemetry::Level::kWarning, .kind = "records", .rank = 0, .message = text});
  context.host.note("warning: " + text);
}

void gather(RunContext& context, const std::filesystem::path& own_home) {
  comm::Communicator& world = context.world;
  const std::string& run = context.request.run_id;
  const int ranks = world.size();
  Records mine;
  if (context.rank() != 0) {
    mine = last_lines(telemetry::lines_file(own_home, run, context.rank()));
    mine.text += last_lines(telemetry::spans_file(own_home, run, context.rank())).text;  // readers know them anywhere
  }

  // Of every rank: how much it has, and whether that is all.
  const std::int64_t told[2] = {static_cast<std::int64_t>(mine.text.size()), mine.cut};
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(2 * ranks));
  world.all_gather({told, 2, comm::DType::kI64}, {sizes.data(), 2 * ranks, comm::DType::kI64}).wait();

  std::vector<std::int64_t> wanted(static_cast<std::size_t>(ranks), 0);
  for (int rank = 1; rank < ranks && context.rank() == 0; ++rank)
    wanted[rank] = sizes[2 * rank] > 0 && !exists(telemetry::lines_file(context.request.home, run, rank));
  world.broadcast({wanted.data(), ranks, comm::DType::kI64}, 0).wait();

  int cut = 0;
  for (int rank = 1; rank < ranks; ++rank) {
    if (wanted[rank] == 0) continue;
    cut += static_cast<int>(sizes[2 * rank + 1]);
    if (context.rank() == rank) world.send({mine.text.data(), sizes[2 * rank], comm::DType::kU8}, 0).wait();
    if (context.rank() != 0) continue;
    std::string text(static_cast<std::size_t>(sizes[2 * rank]), '\0');
    world.recv({text.data(), sizes[2 * rank], comm::DType::kU8}, rank).wait();
    write_file_atomically(telemetry::lines_file(context.request.home, run, rank), text);
  }
  if (cut > 0) {
    report_loss(context, fmt::format("of {} ranks only the last {} MiB of their records are here; the rest is in "
                                     "runs/{} on their nodes",
                                     cut, kMostBytes >> 20, run));
  }
  world.barrier().wait();  // nobody closes a connection while a peer still needs it
}

}  // namespace

void gather_records(RunContext& context, const std::filesystem::path& own_home) {
  try {
    if (!context.recorder->flush(kFlushSeconds) && context.rank() != 0)
      context.host.note("warning: the last records of this rank are not on disk yet");
    gather(context, own_home);
  } catch (const std::exception& error) {
    report_loss(context, fmt::format("records of other nodes were not gathered: {}", error.what()));
  }
}

}  // namespace lockstep::engine
