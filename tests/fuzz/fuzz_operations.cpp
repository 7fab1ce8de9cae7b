#include "fuzz_one.h"
#include "lockstep/diagnose/foreign/operations_csv.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  return fuzz::fuzz_one(data, size, [](std::string_view text) {
    diagnose::Diagnosis diagnosis;
    diagnosis.findings =
        diagnose::straggler_findings(diagnose::straggler_figures(diagnose::read_operations(text, "fuzz.csv")));
    diagnose::settle(diagnosis);
    diagnose::to_json(diagnosis).dump();
  });
}
