#include <map>

#include "lockstep/tune/study/study.h"

namespace lockstep::tune {
namespace {

class MemoryJournal : public Journal {
 public:
  std::vector<Trial> trials() const override { return trials_; }
  // Of trials that were stopped: they began, lived for a while, and did not end.
  double interrupted_gpu_seconds() const override {
    double sum = 0;
    for (const auto& [number, gpu_seconds] : running_) sum += gpu_seconds;
    return sum + interrupted_;
  }
  void begin(const Trial& trial) override {
    interrupted_ += running_[trial.number];
    running_[trial.number] = 0;
  }
  void alive(const Trial& trial, double) override { running_[trial.number] = trial.gpu_seconds; }
  void end(const Trial& trial) override {
    running_.erase(trial.number);
    trials_.push_back(trial);
  }
  void conclude(const nlohmann::json&) override {}

 private:
  std::vector<Trial> trials_;
  double interrupted_ = 0;
  std::map<std::int64_t, double> running_;  // GPU seconds by number
};

}  // namespace

std::unique_ptr<Journal> make_memory_journal() { return std::make_unique<MemoryJournal>(); }

}  // namespace lockstep::tune
