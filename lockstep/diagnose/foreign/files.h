// Diagnosis of what other programs wrote: profiler traces, flight-recorder dumps, logs. What a file is, is told by its
// content, not by its name; gzip is read as it is.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/diagnose/diagnosis.h"

namespace lockstep::diagnose {

enum class FileKind { kUnknown = 0, kKineto, kNsight, kNcclLog, kFlightRecorder, kKernelLog, kOperations };
constexpr auto names_of(FileKind) {
  return enum_names<FileKind::kOperations>("unknown", "kineto", "nsight", "nccl_log", "flight_recorder", "kernel_log",
                                           "operations");
}

// By the first bytes, of text by its first lines. Throws UserError when it cannot be opened or unpacked.
FileKind kind_of(const std::filesystem::path& path);

// Files, and folders of which every file that is recognised is read (the folders in them too). All profiles together
// are one job; dumps of one folder are one job. Throws UserError, one line: a file that is not there (exit 4), that is
// not of a kind above, or that is damaged (exit 2).
Diagnosis diagnose_files(const std::vector<std::filesystem::path>& paths);

}  // namespace lockstep::diagnose
