#include "lockstep/engine/gather_records.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/last_lines.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::engine {
namespace {

constexpr std::int64_t kMostBytes = 8 << 20;  // of one rank
constexpr double kFlushSeconds = 10.0;

void report_loss(RunContext& context, const std::string& text) {
  if (context.rank() != 0) return;
  context.recorder->event({.level = telemetry::Level::kWarning, .kind = "records", .rank = 0, .message = text});
  context.host.note("warning: " + text);
}

void gather(RunContext& context, const std::filesystem::path& own_home) {
  comm::Communicator& world = context.world;
  const std::string& run = context.request.run_id;
  const int ranks = world.size();
  telemetry::LastLines mine;
  if (context.rank() != 0) {
    mine = telemetry::last_lines(telemetry::lines_file(own_home, run, context.rank()), kMostBytes);
    // Readers know spans anywhere.
    mine.text += telemetry::last_lines(telemetry::spans_file(own_home, run, context.rank()), kMostBytes).text;
  }

  // Of every rank: how much it has, and whether that is all.
  const std::int64_t told[2] = {static_cast<std::int64_t>(mine.text.size()), mine.cut};
  std::vector<std::int64_t> sizes(std::size_t{2} * ranks);
  world.all_gather({told, 2, comm::DType::kI64}, {sizes.data(), 2 * ranks, comm::DType::kI64}).wait();

  std::vector<std::int64_t> wanted(static_cast<std::size_t>(ranks), 0);
  for (int rank = 1; rank < ranks && context.rank() == 0; ++rank)
    wanted[rank] = sizes[std::size_t{2} * rank] > 0 && !exists(telemetry::lines_file(context.request.home, run, rank));
  world.broadcast({wanted.data(), ranks, comm::DType::kI64}, 0).wait();

  int cut = 0;
  for (int rank = 1; rank < ranks; ++rank) {
    if (wanted[rank] == 0) continue;
    const std::int64_t bytes = sizes[std::size_t{2} * rank];
    cut += static_cast<int>(sizes[std::size_t{2} * rank + 1]);
    if (context.rank() == rank) world.send({mine.text.data(), bytes, comm::DType::kU8}, 0).wait();
    if (context.rank() != 0) continue;
    std::string text(static_cast<std::size_t>(bytes), '\0');
    world.recv({text.data(), bytes, comm::DType::kU8}, rank).wait();
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
