// Prometheus' text format as other exporters write it.
#include "fuzz_one.h"
#include "lockstep/serve/dcgm.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return lockstep::fuzz::fuzz_one(data, size, [](std::string_view text) {
    lockstep::serve::gpus_of_dcgm(lockstep::serve::parse_exposition(text));
  });
}
