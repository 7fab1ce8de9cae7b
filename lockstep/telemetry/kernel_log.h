// The kernel log: new lines as they come, and what they say about the health of the node.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/telemetry/node_finding.h"

namespace lockstep::telemetry {

struct KernelLine {
  std::string text;          // without the time and the level
  double age_seconds = 0.0;  // when it was read; 0 in a file, whose clock is not known
};

// Reads /dev/kmsg, or a file that holds the lines of one or of `dmesg`. Never blocks.
class KernelLog {
 public:
  explicit KernelLog(const std::string& path);

  // Why it cannot be read; "" when it can.
  const std::string& problem() const { return problem_; }
  // What came since the last call; at first everything that is there.
  std::vector<KernelLine> read();

 private:
  std::vector<KernelLine> read_records();
  std::vector<KernelLine> read_file_lines();

  UniqueFd fd_;
  bool device_ = false;
  std::string problem_;
  std::string partial_;  // of a line in a file
};

// The text of "6,3964,206764307,-;text", "[Sun Feb 23 16:24:18 2025] text", "[  206.764307] text"; nothing for a
// record that a program wrote and for its continuation lines.
std::optional<KernelLine> parse_kernel_line(std::string_view line);

// What a line says, if it is of interest: Xid and SXid lines, processes killed for want of memory, memory that is
// broken, file systems that became read-only, disks that fail.
std::optional<NodeFinding> finding_in(const std::string& text);

}  // namespace lockstep::telemetry
