#include "fuzz_one.h"
#include "lockstep/diagnose/foreign/kernel_logs.h"
#include "lockstep/diagnose/foreign/nccl_log.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  return fuzz::fuzz_one(data, size, [](std::string_view text) {
    diagnose::Diagnosis diagnosis;
    diagnosis.findings = diagnose::nccl_findings(diagnose::read_nccl_log(text));
    for (diagnose::Finding& finding : diagnose::kernel_log_findings(text))
      diagnosis.findings.push_back(std::move(finding));
    diagnose::settle(diagnosis);
    diagnose::to_json(diagnosis).dump();
  });
}
