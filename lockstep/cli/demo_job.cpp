#include "lockstep/cli/demo_job.h"

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/spec/presets.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {

std::string write_demo_job() {
  const spec::EmbeddedSpec* demo = spec::find_embedded(spec::embedded_jobs(), "gpt-bytes-demo");
  LOCKSTEP_ASSERT(demo != nullptr, "the demo job is part of every build");
  const std::filesystem::path folder = telemetry::home_directory() / "jobs";
  make_folders(folder);
  const std::filesystem::path path = folder / "gpt-bytes-demo.yaml";
  write_file_atomically(path, demo->text);
  return path.string();
}

}  // namespace lockstep::cli
