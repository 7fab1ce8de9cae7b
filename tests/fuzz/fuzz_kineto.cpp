#include "fuzz_one.h"
#include "lockstep/diagnose/foreign/diff.h"
#include "lockstep/diagnose/foreign/kineto.h"
#include "lockstep/diagnose/foreign/trace_findings.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  return fuzz::fuzz_one(data, size, [](std::string_view text) {
    const auto source = diagnose::memory_source(text);
    const std::vector<diagnose::Trace> traces(2, diagnose::read_kineto(*source, "trace.json"));
    diagnose::Diagnosis diagnosis;
    diagnosis.findings = diagnose::trace_findings(traces);
    diagnose::settle(diagnosis);
    diagnose::to_json(diagnosis).dump();
    diagnose::to_json(diagnose::diff_traces(traces, traces)).dump();
  });
}
