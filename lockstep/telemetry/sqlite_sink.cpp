#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {
namespace {

// Short, because the recorder tries again by itself and must be able to close in time.
constexpr double kBusySeconds = 0.5;

class SqliteSink : public Sink {
 public:
  SqliteSink(const std::filesystem::path& path, std::string run)
      : run_(std::move(run)), store_(RunStore::open(path, true, kBusySeconds)) {}

  void write(std::span<const Record> batch) override { store_.write(run_, batch); }

 private:
  std::string run_;
  RunStore store_;
};

}  // namespace

bool has_sqlite() { return true; }

std::unique_ptr<Recorder> make_sqlite_recorder(const std::filesystem::path& store, const std::string& run_id,
                                               QueueOptions options) {
  return make_queued_recorder([store, run_id] { return std::make_unique<SqliteSink>(store, run_id); }, options);
}

}  // namespace lockstep::telemetry
