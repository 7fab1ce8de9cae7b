// What the numbers mean that NVIDIA's driver writes into the kernel log ("Xid"), and what is to be done about them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/telemetry/node_finding.h"

namespace lockstep::telemetry {

struct XidMeaning {
  int code = 0;
  Severity severity = Severity::kWarning;  // kInfo, kWarning, kApplication or kFatal
  const char* meaning = "";
  const char* fix = "";
};

const std::vector<XidMeaning>& known_xids();

// One that is not in the table is a warning.
XidMeaning meaning_of_xid(int code);

// "0000:9b:00" of "PCI:0000:9b:00", "00000000:9B:00.0" and "0000:9b:00.0": one spelling for the log and the library.
std::string pci_place(const std::string& text);

// A finding for Xid `code` of the GPU at `pci`; `details` is what the driver adds.
NodeFinding xid_finding(int code, const std::string& pci, int pid, const std::string& details);

}  // namespace lockstep::telemetry
