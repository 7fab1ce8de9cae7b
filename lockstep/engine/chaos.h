// Chaos in one rank's process: the points of a run at which faults that were asked for (elastic/chaos.h) happen. A run
// without any has no such object.
//
// Lives as long as the process, over the generations of its run. The agent hears of an event before it happens.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "lockstep/checkpoint/file_layer.h"
#include "lockstep/elastic/chaos.h"
#include "lockstep/engine/run_context.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::engine {

struct TrainingState;

class Chaos {
 public:
  // `host` must outlive the object.
  explicit Chaos(const Host& host);
  ~Chaos();

  // The events of this rank that are left when a generation begins.
  void enter(const std::vector<elastic::ChaosEvent>& events, int generation);

  // Slows down what `log` hears of. The log must not be used after the object.
  void slow_down(telemetry::SpanLog& log);

  void joining();                          // before it meets the others
  void recovering();                       // the state is being taken over
  void before_step(TrainingState& state);  // of step `state.step` + 1
  // Whether the gradient of the step that follows before_step() is to be spoiled.
  bool spoils_gradient() const { return spoils_; }
  void after_step(double step_seconds);
  // An exchange with other ranks begins; from any thread.
  void operation_begins();
  void saved(const std::filesystem::path& checkpoint);
  // What checkpoints are written through.
  const checkpoint::FileLayer& files() const;

 private:
  class Files;
  using Event = elastic::ChaosEvent;

  // Takes the next event of this place out of the list and tells the agent; nothing when none is due.
  std::optional<Event> due(elastic::ChaosPlace place, std::int64_t call);
  std::optional<Event> due_of_kind(elastic::ChaosKind kind);
  void tell(const Event& event);
  void end_process(const Event& event);
  void happen(const Event& event, TrainingState& state);
  void file_call();                                    // any
  void write_call(const std::filesystem::path& path);  // of data
  static void sever();
  static void flip(TrainingState& state);
  void slow(const Event& event);
  void disturb(const telemetry::SpanMark& mark, double seconds) const;

  const Host& host_;
  int generation_ = 1;
  std::unique_ptr<Files> files_;
  std::mutex mutex_;
  std::vector<Event> events_;
  std::set<int> told_;
  std::atomic<std::int64_t> step_{0};  // that is being done; 0: none yet in this generation
  std::atomic<std::int64_t> operations_{0}, file_calls_{0};
  bool spoils_ = false;
  // Read on any thread while the rank's own sets them.
  struct Slowness {
    std::atomic<double> until{0.0}, factor{1.0}, delay_seconds{0.0}, seconds_per_byte{0.0};
    double more_seconds(double seconds, std::int64_t bytes) const;
  };
  std::array<Slowness, elastic::kChaosPhases> slow_phases_;
  Slowness slow_link_;
  double leak_bytes_ = 0.0, leaks_until_ = 0.0;
  std::vector<torch::Tensor> leaked_;
  std::atomic<double> full_until_{0.0};
};

}  // namespace lockstep::engine
