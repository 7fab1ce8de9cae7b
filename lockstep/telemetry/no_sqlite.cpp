// Chosen by CMake where SQLite is not installed.
#include "lockstep/base/error.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/study_store.h"

namespace lockstep::telemetry {
namespace {

UserError no_sqlite() {
  return environment_error(
      "this build of lockstep has no SQLite",
      "read the JSON lines under runs/ on a machine whose build has it, or install SQLite's headers "
      "and build again");
}

}  // namespace

struct RunStore::Impl {};

bool has_sqlite() { return false; }
std::unique_ptr<Recorder> make_sqlite_recorder(const std::filesystem::path&, const std::string&, QueueOptions) {
  throw no_sqlite();
}

std::unique_ptr<StudyStore> make_sqlite_study_store(const std::filesystem::path&, bool) { throw no_sqlite(); }

RunStore RunStore::open(const std::filesystem::path&, bool, double) { throw no_sqlite(); }
RunStore::RunStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunStore::RunStore(RunStore&&) noexcept = default;
RunStore& RunStore::operator=(RunStore&&) noexcept = default;
RunStore::~RunStore() = default;

// No RunStore can be made, so nobody gets here; the linker wants them.
void RunStore::write(const std::string&, std::span<const Record>) { throw no_sqlite(); }
std::vector<RunRow> RunStore::runs(std::size_t) const { throw no_sqlite(); }
std::optional<RunRow> RunStore::find(const std::string&) const { throw no_sqlite(); }
nlohmann::json RunStore::plan(const std::string&) const { throw no_sqlite(); }
std::vector<std::string> RunStore::metric_names(const std::string&) const { throw no_sqlite(); }
std::vector<Point> RunStore::series(const std::string&, const std::string&, int, std::size_t) const {
  throw no_sqlite();
}
std::vector<RankSummary> RunStore::per_rank(const std::string&, const std::string&, std::int64_t) const {
  throw no_sqlite();
}
std::vector<Event> RunStore::events(const std::string&, Level) const { throw no_sqlite(); }
std::vector<SpanSummary> RunStore::spans(const std::string&) const { throw no_sqlite(); }
RunStore::Import RunStore::import_json_lines(const std::filesystem::path&) { throw no_sqlite(); }
std::string RunStore::integrity() const { throw no_sqlite(); }

}  // namespace lockstep::telemetry
