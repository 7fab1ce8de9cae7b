// A SpanBatch as one value of the store: compact, independent of the machine, safe to read from a damaged file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lockstep/telemetry/span.h"

namespace lockstep::telemetry {

// Only what the spans use of the names is kept. `rank`, `step` and `time` are not part of it.
std::string encode_spans(const SpanBatch& batch);
// Throws UserError (bad input) for anything that encode_spans() did not write.
void decode_spans(std::string_view data, SpanBatch& batch);

// The same as {"names": [...], "spans": [[kind, lane, begin_us, us, name, group, bytes, sequence, peer, micro,
// stage]]}; kind and lane as words, the last seven left out from the end where they are at their default.
nlohmann::json spans_to_json(const SpanBatch& batch);
void spans_from_json(const nlohmann::json& value, SpanBatch& batch);

}  // namespace lockstep::telemetry
