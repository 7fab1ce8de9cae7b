#include "lockstep/telemetry/series_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::telemetry {
namespace {

constexpr char kVersion = 1;

// A reader must not reserve what a damaged count asks for: every point takes at least this many bytes.
constexpr std::size_t kLeastPointBytes = 3, kLeastBucketBytes = 8;

double rounded(double value) {
  const auto small = static_cast<float>(value);
  // Beyond the range of floats rounding would make an infinity of a number, or nothing of something.
  const bool fits = std::isfinite(small) == std::isfinite(value) && (small != 0.0F || value == 0.0);
  return fits ? static_cast<double>(small) : value;
}

template <class Value>
std::vector<Value> counted(ByteReader& reader, std::size_t least_bytes) {
  if (reader.bytes(1)[0] != kVersion) reader.damaged();
  const std::uint64_t count = reader.number();
  if (count > reader.left() / least_bytes) reader.damaged();
  return std::vector<Value>(count);
}

}  // namespace

std::int64_t to_milliseconds(double seconds) {
  constexpr double kMost = 9e15;
  return std::isfinite(seconds) ? std::llround(std::clamp(seconds * 1000.0, -kMost, kMost)) : 0;
}

std::string encode_points(std::span<const Point> points) {
  std::string out(1, kVersion);
  put_number(out, points.size());
  Point before;
  std::int64_t time = 0, stride = 0;
  for (const Point& point : points) {
    const std::int64_t now = to_milliseconds(point.time);
    put_signed(out, minus(point.step, before.step));
    put_signed(out, now - time - stride);  // steps take about as long as the one before
    put_real(out, point.value, before.value);
    stride = &point == points.data() ? 0 : now - time;
    time = now;
    before = point;
  }
  return out;
}

std::vector<Point> decode_points(std::string_view data) {
  ByteReader reader(data, "points");
  auto points = counted<Point>(reader, kLeastPointBytes);
  Point before;
  std::int64_t time = 0, stride = 0;
  for (Point& point : points) {
    point.step = plus(before.step, reader.signed_number());
    const std::int64_t now = plus(plus(time, stride), reader.signed_number());
    stride = &point == points.data() ? 0 : minus(now, time);
    time = now;
    point.time = to_seconds(time);
    point.value = reader.real(before.value);
    before = point;
  }
  reader.expect_end();
  return points;
}

std::string encode_buckets(std::span<const Bucket> buckets, bool exact) {
  std::string out(1, kVersion);
  put_number(out, buckets.size());
  const auto kept = [exact](double value) { return exact ? value : rounded(value); };
  std::int64_t step = 0, time = 0;
  double mean = 0.0;
  for (const Bucket& bucket : buckets) {
    const std::int64_t now = to_milliseconds(bucket.time);
    put_signed(out, minus(bucket.first_step, step));
    put_signed(out, minus(bucket.last_step, bucket.first_step));
    put_signed(out, now - time);
    put_signed(out, bucket.points);
    put_signed(out, bucket.points - bucket.finite);
    const double minimum = kept(bucket.minimum), maximum = kept(bucket.maximum);
    put_real(out, minimum, mean);
    put_real(out, maximum, minimum);
    mean = kept(bucket.mean);
    put_real(out, mean, minimum);
    step = bucket.last_step;
    time = now;
  }
  return out;
}

std::vector<Bucket> decode_buckets(std::string_view data) {
  ByteReader reader(data, "summaries");
  auto buckets = counted<Bucket>(reader, kLeastBucketBytes);
  std::int64_t step = 0, time = 0;
  double mean = 0.0;
  for (Bucket& bucket : buckets) {
    bucket.first_step = plus(step, reader.signed_number());
    bucket.last_step = step = plus(bucket.first_step, reader.signed_number());
    time = plus(time, reader.signed_number());
    bucket.time = to_seconds(time);
    bucket.points = reader.signed_number();
    bucket.finite = minus(bucket.points, reader.signed_number());
    bucket.minimum = reader.real(mean);
    bucket.maximum = reader.real(bucket.minimum);
    bucket.mean = mean = reader.real(bucket.minimum);
  }
  reader.expect_end();
  return buckets;
}

std::string encode_values(std::span<const std::pair<std::int64_t, double>> values) {
  std::string out;
  out.reserve(values.size() * 10);
  for (const auto& [name, value] : values) {
    put_number(out, static_cast<std::uint64_t>(name));
    put_real(out, value, 0.0);
  }
  return out;
}

}  // namespace lockstep::telemetry
