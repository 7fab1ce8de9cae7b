#include "lockstep/telemetry/xid.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::telemetry {
namespace {

constexpr const char* kCode =
    "look for the bug in the program with compute-sanitizer; another GPU helps only by chance";
constexpr const char* kReset = "reset the GPU (nvidia-smi --gpu-reset) when no process uses it, or reboot the node";
constexpr const char* kReboot = "reboot the node; when it comes again, have the GPU or its slot replaced";
constexpr const char* kReplace = "have the GPU replaced";
constexpr const char* kLinks = "reset all GPUs of the node; when it comes again, have the NVLink parts replaced";
constexpr const char* kOnce = "nothing, unless it comes again and again";

constexpr Severity kApp = Severity::kApplication;
constexpr Severity kBad = Severity::kFatal;
constexpr Severity kWarn = Severity::kWarning;
constexpr Severity kInfo = Severity::kInfo;

}  // namespace

// By NVIDIA's catalogue of Xid errors (docs.nvidia.com/deploy/xid-errors): "restart app" is an application error,
// "reset GPU", "restart node" and the NVLink work flows are faults of the hardware.
const std::vector<XidMeaning>& known_xids() {
  static const std::vector<XidMeaning> kTable = {
      {8, kApp, "the GPU stopped processing", kCode},
      {11, kApp, "an invalid or corrupted stream of commands", kCode},
      {13, kApp, "an exception in a kernel (an access out of bounds, an illegal instruction)", kCode},
      {31, kApp, "a page fault in GPU memory (an illegal address)", kCode},
      {32, kApp, "an invalid or corrupted stream of commands", kCode},
      {38, kWarn, "an error of the driver's firmware", kOnce},
      {43, kApp, "the GPU stopped processing for one process", kCode},
      {44, kBad, "a fault while the GPU changed contexts", kReset},
      {45, kApp, "the driver cleaned up after an earlier error", "see the line before it"},
      {46, kBad, "the GPU stopped processing", kReset},
      {48, kBad, "an uncorrectable (double-bit) ECC error", kReset},
      {61, kBad, "the GPU's microcontroller warned", kReset},
      {62, kBad, "the GPU's microcontroller halted", kReset},
      {63, kInfo, "a bad memory row or page was recorded and will be replaced at the next reset", kReset},
      {64, kBad, "a bad memory row or page could not be recorded", kReplace},
      {66, kApp, "an illegal access by the driver", kCode},
      {67, kApp, "an illegal access by the driver", kCode},
      {68, kApp, "an exception of the video decoder", kCode},
      {69, kApp, "an error of the graphics engine's class", kCode},
      {74, kBad, "an NVLink error", kLinks},
      {79, kBad, "the GPU has fallen off the bus", kReboot},
      {80, kApp, "corrupted data sent to the GPU", kCode},
      {92, kWarn, "a high rate of corrected ECC errors", "have the GPU looked at when the run is over"},
      {94, kApp, "an uncorrectable memory error, contained to one process",
       "nothing now; reset the GPU when the run is over"},
      {95, kBad, "an uncorrectable memory error that was not contained", kReset},
      {109, kBad, "changing contexts took too long", kReset},
      {110, kBad, "a security fault of the GPU", kReboot},
      {119, kBad, "the GPU's system processor (GSP) does not answer", kReset},
      {120, kBad, "an error of the GPU's system processor (GSP)", kReset},
      {121, kInfo, "a corrected error of the chip-to-chip link", kOnce},
      {122, kWarn, "reading the GPU's flash memory failed", kOnce},
      {123, kWarn, "writing the GPU's flash memory failed", kOnce},
      {137, kApp, "a peer's access over NVLink was refused", kCode},
      {140, kBad, "an ECC error that was not recovered from", kReset},
      {143, kBad, "the GPU could not be initialised", kReboot},
      {144, kBad, "an NVLink error (switch, adapter)", kLinks},
      {145, kBad, "an NVLink error (link layer)", kLinks},
      {146, kBad, "an NVLink error (transport layer)", kLinks},
      {147, kBad, "an NVLink error (transaction layer)", kLinks},
      {148, kBad, "an NVLink error (network layer)", kLinks},
      {149, kBad, "an NVLink error (link)", kLinks},
      {150, kBad, "an NVLink error (module)", kLinks},
      {154, kBad, "the driver asks for a recovery of the GPU", kReset},
      {155, kBad, "an NVLink went down", kLinks},
      {156, kInfo, "a part of the GPU was retired and will not be used after the next reset", kReset},
      {157, kBad, "a bad part of the GPU could not be retired", kReplace},
      {158, kBad, "a fatal time-out of the GPU", kReset},
  };
  return kTable;
}

XidMeaning meaning_of_xid(int code) {
  const auto found = std::ranges::find(known_xids(), code, &XidMeaning::code);
  if (found != known_xids().end()) return *found;
  return {code, kWarn, "not in the table", "see docs.nvidia.com/deploy/xid-errors"};
}

std::string pci_place(const std::string& text) {
  std::string place = to_lower(text.rfind("PCI:", 0) == 0 ? text.substr(4) : text);
  if (const std::size_t function = place.find('.'); function != std::string::npos) place.erase(function);
  const std::size_t colon = place.find(':');
  if (colon != std::string::npos && colon > 4) place.erase(0, colon - 4);
  return place;
}

NodeFinding xid_finding(int code, const std::string& pci, int pid, const std::string& details) {
  XidMeaning meaning = meaning_of_xid(code);
  // The driver says which recovery it asks for; none is good news.
  if (code == 154 && details.find("(None)", details.rfind(" to ")) != std::string::npos) meaning.severity = kInfo;
  NodeFinding finding{meaning.severity, "gpu", fmt::format("xid {} {}", code, pci), "", meaning.fix, pid};
  finding.what = fmt::format("Xid {} of GPU {}: {}", code, pci, meaning.meaning);
  if (!details.empty()) finding.what += fmt::format(" ({})", printable(details, 120));
  return finding;
}

}  // namespace lockstep::telemetry
