#include "fuzz_one.h"
#include "lockstep/diagnose/foreign/flight_recorder.h"
#include "lockstep/diagnose/foreign/pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  return fuzz::fuzz_one(data, size, [](std::string_view bytes) {
    const nlohmann::json document = diagnose::read_pickle(bytes, "dump_1");
    const std::vector<diagnose::RankDump> dumps = {diagnose::read_flight_recorder(document, "dump_0"),
                                                   diagnose::read_flight_recorder(document, "dump_1")};
    diagnose::Diagnosis diagnosis;
    diagnosis.findings = diagnose::hang_findings(dumps);
    diagnose::settle(diagnosis);
    diagnose::to_json(diagnosis).dump();
  });
}
