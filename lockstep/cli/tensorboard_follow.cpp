#include "lockstep/cli/tensorboard_follow.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/report/export/tensorboard.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {

void TensorBoardFollower::start(const std::string& run) {
  if (!thread_.joinable()) thread_ = std::thread([this, run] { work(run); });
}

void TensorBoardFollower::finish() {
  ended_ = true;
  if (thread_.joinable()) thread_.join();
}

void TensorBoardFollower::work(const std::string& run) {
  constexpr auto kOnceIn = std::chrono::milliseconds(1000), kLook = std::chrono::milliseconds(50);
  std::unique_ptr<telemetry::RunStore> store;
  std::optional<report::TensorBoardExport> exported;
  for (bool last = false; !last;) {
    last = ended_;  // read before what is written: the last round sees everything
    try {
      if (!store) store = telemetry::open_run_store(telemetry::home_directory());
      if (!exported) {
        if (const auto row = store->find(run)) exported.emplace(folder_, *row, report::ExportSelection{});
      }
      if (exported) exported->update(*store);
    } catch (const std::exception& error) {
      telemetry::warn(fmt::format("--tensorboard stops: {}", error.what()));
      return;
    }
    for (auto waited = kLook; waited < kOnceIn && !ended_; waited += kLook) std::this_thread::sleep_for(kLook);
  }
}

}  // namespace lockstep::cli
