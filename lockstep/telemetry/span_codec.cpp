#include "lockstep/telemetry/span_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/byte_codec.h"

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

constexpr char kVersion = 1;
constexpr double kTicksPerSecond = 1e7;  // a tenth of a microsecond

std::int64_t ticks(float seconds) {
  return std::isfinite(seconds) ? std::llround(static_cast<double>(seconds) * kTicksPerSecond) : 0;
}

float seconds(std::int64_t ticks) { return static_cast<float>(static_cast<double>(ticks) / kTicksPerSecond); }

// The names that are used, numbered anew.
struct UsedNames {
  explicit UsedNames(const SpanBatch& batch) : batch_(batch), number_(batch.names ? batch.names->size() : 0, -1) {}

  std::int32_t operator()(std::int32_t name) {
    if (name < 0 || static_cast<std::size_t>(name) >= number_.size()) return -1;
    if (number_[name] < 0) {
      number_[name] = static_cast<std::int32_t>(used.size());
      used.push_back((*batch_.names)[name]);
    }
    return number_[name];
  }

  std::vector<std::string> used;

 private:
  const SpanBatch& batch_;
  std::vector<std::int32_t> number_;
};

template <class Enum>
Enum next_word(ByteReader& reader) {
  const std::uint64_t value = reader.number();
  if (value >= names_of(Enum{}).size()) reader.damaged();
  return static_cast<Enum>(value);
}

// What JSON leaves out at the end of a row, as it stands in a row.
constexpr std::array<std::int64_t, 7> kDefaults = {-1, -1, 0, -1, -1, -1, -1};

std::array<std::int64_t, 7> rest_of(const Span& span, UsedNames& names) {
  return {names(span.name), names(span.group), span.bytes, span.sequence, span.peer, span.micro, span.stage};
}

template <class Enum>
Enum named(const json& word) {
  const auto value = value_named<Enum>(word.get_ref<const std::string&>());
  if (!value) throw bad_input("unknown word '" + printable(word.get<std::string>()) + "' in a span");
  return *value;
}

template <class Integer>
Integer in_range(std::int64_t value) {
  if (!std::in_range<Integer>(value)) throw bad_input("a number of a span is out of range");
  return static_cast<Integer>(value);
}

}  // namespace

std::string encode_spans(const SpanBatch& batch) {
  UsedNames names(batch);
  std::string rows;
  rows.reserve(batch.spans.size() * 16);
  std::int64_t before = 0;
  for (const Span& span : batch.spans) {
    const std::int64_t begin = ticks(span.begin);
    put_number(rows, static_cast<std::uint64_t>(span.kind));
    put_number(rows, static_cast<std::uint64_t>(span.lane));
    put_signed(rows, begin - std::exchange(before, begin));
    put_signed(rows, ticks(span.seconds));
    for (const std::int64_t value : rest_of(span, names)) put_signed(rows, value);
  }
  std::string out(1, kVersion);
  put_number(out, names.used.size());
  for (const std::string& name : names.used) {
    put_number(out, name.size());
    out += name;
  }
  put_number(out, batch.spans.size());
  return out + rows;
}

void decode_spans(std::string_view data, SpanBatch& batch) {
  ByteReader reader(data, "spans");
  if (reader.bytes(1)[0] != kVersion) reader.damaged();
  std::vector<std::string> names(std::min<std::uint64_t>(reader.number(), reader.left()));
  for (std::string& name : names) name = reader.bytes(reader.number());
  batch.names = std::make_shared<const std::vector<std::string>>(std::move(names));
  batch.spans.assign(std::min<std::uint64_t>(reader.number(), reader.left()), {});
  std::int64_t begin = 0;
  for (Span& span : batch.spans) {
    span.kind = next_word<SpanKind>(reader);
    span.lane = next_word<SpanLane>(reader);
    begin = plus(begin, reader.signed_number());
    span.begin = seconds(begin);
    span.seconds = seconds(reader.signed_number());
    span.name = reader.small<std::int32_t>();
    span.group = reader.small<std::int32_t>();
    span.bytes = reader.signed_number();
    span.sequence = reader.signed_number();
    span.peer = reader.small<std::int32_t>();
    span.micro = reader.small<std::int16_t>();
    span.stage = reader.small<std::int16_t>();
  }
  reader.expect_end();
}

json spans_to_json(const SpanBatch& batch) {
  UsedNames names(batch);
  json rows = json::array();
  for (const Span& span : batch.spans) {
    json row = {to_string(span.kind), to_string(span.lane), static_cast<double>(ticks(span.begin)) / 10.0,
                static_cast<double>(ticks(span.seconds)) / 10.0};
    const auto rest = rest_of(span, names);
    std::size_t kept = rest.size();
    while (kept > 0 && rest[kept - 1] == kDefaults[kept - 1]) --kept;
    for (std::size_t i = 0; i < kept; ++i) row.push_back(rest[i]);
    rows.push_back(std::move(row));
  }
  return {{"names", names.used}, {"spans", std::move(rows)}};
}

void spans_from_json(const json& value, SpanBatch& batch) {
  batch.names = std::make_shared<const std::vector<std::string>>(value.at("names").get<std::vector<std::string>>());
  for (const json& row : value.at("spans")) {
    Span span;
    span.kind = named<SpanKind>(row.at(0));
    span.lane = named<SpanLane>(row.at(1));
    span.begin = static_cast<float>(row.at(2).get<double>() / 1e6);
    span.seconds = static_cast<float>(row.at(3).get<double>() / 1e6);
    auto rest = kDefaults;
    for (std::size_t i = 0; i < rest.size() && i + 4 < row.size(); ++i) rest[i] = row[i + 4].get<std::int64_t>();
    span.name = in_range<std::int32_t>(rest[0]);
    span.group = in_range<std::int32_t>(rest[1]);
    span.bytes = rest[2];
    span.sequence = rest[3];
    span.peer = in_range<std::int32_t>(rest[4]);
    span.micro = in_range<std::int16_t>(rest[5]);
    span.stage = in_range<std::int16_t>(rest[6]);
    batch.spans.push_back(span);
  }
}

}  // namespace lockstep::telemetry
