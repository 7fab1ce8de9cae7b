#include "lockstep/report/export/tensorboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/report/export/trace_steps.h"

namespace lockstep::report {
namespace {

constexpr double kTimesDiffer = 0.002;  // stores keep milliseconds of what is old

// Protobuf, writing: tensorflow's Event {1: wall_time, 2: step, 3: file_version, 5: Summary {1: Value {1: tag,
// 2: simple_value}}, 7: SessionLog {1: status}}.
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_number(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_key(std::string& out, int field, Wire wire) { out.push_back(static_cast<char>(field << 3 | wire)); }

template <class Value>
void put_raw(std::string& out, Value value) {
  char bytes[sizeof(Value)];
  std::memcpy(bytes, &value, sizeof(Value));
  out.append(bytes, sizeof(Value));
}

void put_bytes(std::string& out, int field, const std::string& value) {
  put_key(out, field, kBytes);
  put_number(out, value.size());
  out += value;
}

std::string event_at(double time, std::int64_t step) {
  std::string event;
  put_key(event, 1, kFixed64);
  put_raw(event, time);
  put_key(event, 2, kVarint);
  put_number(event, static_cast<std::uint64_t>(step));
  return event;
}

// As TFRecord has it, so that a checksum of data with checksums in it is no trivial one.
std::uint32_t masked_crc(const void* data, std::size_t size) {
  const std::uint32_t crc = crc32c(data, size);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

// A name that stays inside its folder, whatever the run is called.
std::string folder_name(const std::string& id) {
  std::string name;
  for (const char c : id) name += std::isalnum(static_cast<unsigned char>(c)) || c == '-' ? c : '_';
  return name.empty() ? "run" : name;
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, double time) {
  make_folders(folder);
  // A second export of the same run into the same folder does not write over the first.
  for (int number = 0; path_.empty() || std::filesystem::exists(path_); ++number)
    path_ = folder / fmt::format("events.out.tfevents.{:010}.lockstep.{}", static_cast<std::int64_t>(time), number);
  file_.open(path_, std::ios::binary);
  std::string version = event_at(time, 0);
  put_bytes(version, 3, "brain.Event:2");
  record(version);
}

void EventFile::record(const std::string& event) {
  std::string head;
  put_raw<std::uint64_t>(head, event.size());
  put_raw(head, masked_crc(head.data(), head.size()));
  std::string tail;
  put_raw(tail, masked_crc(event.data(), event.size()));
  file_ << head << event << tail;
}

void EventFile::scalar(const std::string& tag, const telemetry::Point& point) {
  std::string value;
  put_bytes(value, 1, tag);
  put_key(value, 2, kFixed32);
  put_raw(value, static_cast<float>(point.value));
  std::string summary;
  put_bytes(summary, 1, value);
  std::string event = event_at(point.time, point.step);
  put_bytes(event, 5, summary);
  record(event);
}

void EventFile::start_again(double time, std::int64_t step) {
  constexpr std::uint64_t kStart = 1;
  std::string status;
  put_key(status, 1, kVarint);
  put_number(status, kStart);
  std::string event = event_at(time, step);
  put_bytes(event, 7, status);
  record(event);
}

void EventFile::flush() {
  file_.flush();
  if (!file_) throw environment_error("cannot be written", "check the folder and its disk", {path_.string()});
}

TensorBoardExport::TensorBoardExport(const std::filesystem::path& folder, const telemetry::RunRow& run,
                                     ExportSelection selection)
    : folder_(folder / folder_name(run.info.id)),
      run_(run.info.id),
      started_at_(run.info.started_at),
      selection_(std::move(selection)) {}

EventFile& TensorBoardExport::file_of(int rank) {
  const auto known = files_.find(rank);
  if (known != files_.end()) return known->second;
  return files_.try_emplace(rank, rank == 0 ? folder_ : folder_ / fmt::format("rank-{:05}", rank), started_at_)
      .first->second;
}

// A series whose last point is another one now was recorded again, and the run is as far as it was: what was written
// from the first such step on is void, in the whole file, as TensorBoard knows no other way to take back.
void TensorBoardExport::forget_repeated(const telemetry::RunStore& store) {
  std::map<int, telemetry::Point> repeated;  // the first, by rank
  for (const auto& [series, written] : last_) {
    const auto& [rank, metric] = series;
    if (!written.time) continue;
    const auto is_later = [since = *written.time + kTimesDiffer](const auto& point) { return point.time > since; };
    const auto now = store.points_after(run_, metric, rank, written.step - 1, 1);
    if (now.empty() || now[0].step != written.step || !is_later(now[0])) continue;
    const auto all = selected_points(store, run_, metric, rank, selection_);
    const auto first = std::find_if(all.begin(), all.end(), is_later);
    if (first == all.end()) continue;
    const auto known = repeated.try_emplace(rank, *first).first;
    if (first->step < known->second.step) known->second = *first;
  }
  for (const auto& [rank, point] : repeated) file_of(rank).start_again(point.time, point.step);
  for (auto& [series, written] : last_) {
    const auto found = repeated.find(series.first);
    if (found != repeated.end() && written.step >= found->second.step) written = {found->second.step - 1, {}};
  }
}

std::size_t TensorBoardExport::update(const telemetry::RunStore& store) {
  forget_repeated(store);
  std::size_t written = 0;
  // A live run may not have recorded yet what is selected.
  ExportSelection wanted = selection_;
  const auto known = store.metric_names(run_);
  std::erase_if(wanted.metrics, [&](const std::string& metric) {
    return std::find(known.begin(), known.end(), metric) == known.end();
  });
  if (wanted.metrics.empty() != selection_.metrics.empty()) return 0;
  for (const std::string& metric : selected_metrics(store, run_, wanted)) {
    for (const int rank : selected_ranks(store, run_, metric, wanted)) {
      Written& last = last_.try_emplace({rank, metric}, Written{selection_.first_step - 1, {}}).first->second;
      wanted.first_step = last.step + 1;
      for (const telemetry::Point& point : selected_points(store, run_, metric, rank, wanted)) {
        file_of(rank).scalar(utf8_text(metric), point);
        last = {point.step, point.time};
        ++written;
      }
    }
  }
  for (auto& [rank, file] : files_) file.flush();
  return written;
}

}  // namespace lockstep::report
