// Curves as values of the store: points of one series, their summaries, and the values of one step. Compact and exact,
// independent of the machine, safe to read from a damaged file: readers throw UserError (bad input) for anything that
// was not written here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/telemetry/byte_codec.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {

std::int64_t to_milliseconds(double seconds);
inline double to_seconds(std::int64_t milliseconds) { return static_cast<double>(milliseconds) / 1000.0; }

// By step. Every bit of the values is kept, times to the millisecond.
std::string encode_points(std::span<const Point> points);
std::vector<Point> decode_points(std::string_view data);

// By step. `exact`: every bit, else values are rounded to 32-bit floats.
std::string encode_buckets(std::span<const Bucket> buckets, bool exact);
std::vector<Bucket> decode_buckets(std::string_view data);

// What one step recorded: numbers of names and values.
std::string encode_values(std::span<const std::pair<std::int64_t, double>> values);
template <class Take>
void for_each_value(std::string_view data, const Take& take) {
  ByteReader reader(data, "metrics");
  while (reader.left() > 0) {
    const auto name = static_cast<std::int64_t>(reader.number());
    take(name, reader.real(0.0));
  }
}

}  // namespace lockstep::telemetry
