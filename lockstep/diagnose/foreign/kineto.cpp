#include "lockstep/diagnose/foreign/kineto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/json_scan.h"

namespace lockstep::diagnose {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kLargestValue = std::size_t{256} << 20;  // one event or one value beside the events

// A window over the file that always begins at the value that is read next.
class Window {
 public:
  Window(Source& source, const std::string& name) : source_(source), name_(name), buffer_(2 * kPiece) {}

  // Reads a whole value; `parse` is called again from its beginning when the window did not hold it.
  template <class Parse>
  void read(Parse&& parse) {
    while (true) {
      JsonScan scan(buffer_.data() + begin_, buffer_.data() + end_);
      try {
        parse(scan);
        begin_ = static_cast<std::size_t>(scan.at() - buffer_.data());
        return;
      } catch (const JsonIncomplete&) {
        if (!refill()) throw damaged(name_, before_ + end_, "the trace ends in the middle", "record or copy it again");
      } catch (const JsonDamaged& bad) {
        const auto at = static_cast<std::uint64_t>(bad.at - buffer_.data());
        throw damaged(name_, before_ + at, std::string("not JSON: ") + bad.problem, "record or copy it again");
      }
    }
  }
  std::uint64_t offset() const { return before_ + begin_; }

 private:
  bool refill() {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      before_ += begin_;
      end_ -= begin_;
      begin_ = 0;
    }
    if (end_ == buffer_.size()) {
      if (buffer_.size() >= kLargestValue) throw damaged(name_, before_, "one value is larger than 256 MiB");
      buffer_.resize(buffer_.size() * 2);
    }
    const std::size_t got = source_.read(buffer_.data() + end_, std::min(kPiece, buffer_.size() - end_));
    end_ += got;
    return got > 0;
  }

  Source& source_;
  const std::string& name_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t before_ = 0;  // bytes of the file before the buffer
};

// Members of one event, as written; they point into the window.
struct RawEvent {
  std::string_view phase, category, name, pid, tid, begin, length, args;
};

RawEvent scan_event(JsonScan& scan) {
  RawEvent event;
  scan.object([&](std::string_view key, JsonScan& at) {
    const std::string_view value = at.value();
    if (key == "ph") {
      event.phase = json_inside(value);
    } else if (key == "cat") {
      event.category = json_inside(value);
    } else if (key == "name") {
      event.name = json_inside(value);
    } else if (key == "pid") {
      event.pid = json_inside(value);
    } else if (key == "tid") {
      event.tid = json_inside(value);
    } else if (key == "ts") {
      event.begin = value;
    } else if (key == "dur") {
      event.length = value;
    } else if (key == "args") {
      event.args = value;
    }
  });
  return event;
}

template <class Member>
void each_argument(std::string_view args, Member&& member) {
  if (args.empty() || args.front() != '{') return;
  JsonScan scan(args);
  scan.object([&](std::string_view key, JsonScan& at) { member(key, at.value()); });
}

double bytes_of_type(std::string_view type) {
  const std::string lower = to_lower(type);
  const auto has = [&](const char* piece) { return lower.find(piece) != std::string::npos; };
  if (has("8") || has("char") || has("byte") || has("bool")) return 1.0;
  if (has("16") || has("half")) return 2.0;
  if (has("double") || has("long") || has("64")) return 8.0;
  return 4.0;
}

// Elements of the first tensor in "[[1024, 34820], []]".
double first_tensor_elements(std::string_view dims) {
  double elements = 0.0;
  bool first = true;
  JsonScan scan(dims);
  scan.array([&](JsonScan& outer) {
    const std::string_view one = outer.value();
    if (!first || one.size() < 3 || one.front() != '[') return;
    first = false;
    elements = 1.0;
    JsonScan inner(one);
    inner.array([&](JsonScan& number) { elements *= json_real(number.value()).value_or(0.0); });
  });
  return elements;
}

enum class EventKind { kOther, kKernel, kCopy, kFill, kCall, kRange, kOverhead };

EventKind kind_of(std::string_view category) {
  if (category == "cpu_op" || category == "user_annotation" || category == "Operator" ||
      category == "python_function") {
    return EventKind::kRange;
  }
  if (category == "kernel" || category == "Kernel") return EventKind::kKernel;
  if (category == "gpu_memcpy" || category == "Memcpy") return EventKind::kCopy;
  if (category == "gpu_memset" || category == "Memset") return EventKind::kFill;
  if (category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime" || category == "hip_runtime" ||
      category == "privateuse1_runtime") {
    return EventKind::kCall;
  }
  if (category == "overhead") return EventKind::kOverhead;
  return EventKind::kOther;
}

struct Call {
  std::int64_t correlation = 0;
  Interval time;
};

class KinetoReader {
 public:
  KinetoReader(Source& source, const std::string& name) : window_(source, name), name_(name) {}

  Trace read() {
    char first = 0;
    window_.read([&](JsonScan& scan) { first = scan.peek(); });
    if (first == '[') {
      read_events();
    } else {
      read_members();
    }
    if (!events_seen_) {
      throw bad_input(printable(name_) + " is JSON without `traceEvents`",
                      "give a trace of torch.profiler (export_chrome_trace)");
    }
    finish();
    return std::move(trace_);
  }

 private:
  void read_members() {
    bool more = true;
    window_.read([&](JsonScan& scan) {
      scan.expect('{');
      more = !scan.take_if('}');
    });
    while (more) {
      std::string key;
      window_.read([&](JsonScan& scan) {
        if (scan.peek() != '"') throw JsonDamaged{scan.at(), "a key in quotes was expected"};
        key = scan.string();
        scan.expect(':');
        scan.peek();
      });
      if (key == "traceEvents") {
        read_events();
      } else {
        window_.read([&](JsonScan& scan) { take_member(key, scan.value()); });
      }
      window_.read([&](JsonScan& scan) {
        more = !scan.take_if('}');
        if (more) scan.expect(',');
      });
    }
  }

  void take_member(const std::string& key, std::string_view value) {
    if (key == "distributedInfo") {
      each_argument(value, [&](std::string_view name, std::string_view of) {
        if (name == "rank")
          trace_.rank = static_cast<int>(std::clamp<std::int64_t>(json_integer(of).value_or(-1), -1, 1 << 24));
        if (name == "world_size")
          trace_.world = static_cast<int>(std::clamp<std::int64_t>(json_integer(of).value_or(0), 0, 1 << 24));
      });
    } else if (key == "deviceProperties" && value.front() == '[') {
      JsonScan scan(value);
      scan.array([&](JsonScan& element) { take_device(element.value()); });
    }
  }

  void take_device(std::string_view properties) {
    int id = 0;
    std::string name;
    each_argument(properties, [&](std::string_view key, std::string_view value) {
      if (key == "id") id = static_cast<int>(json_integer(value).value_or(0));
      if (key == "name") name = json_text(value);
      if (key == "totalGlobalMem") trace_.memory_bytes = json_real(value).value_or(0.0);
    });
    if (trace_.device_names.size() < 1024) trace_.device_names[id] = name;
  }

  void read_events() {
    events_seen_ = true;
    bool more = true;
    window_.read([&](JsonScan& scan) {
      scan.expect('[');
      more = !scan.take_if(']');
    });
    RawEvent event;
    while (more) {
      window_.read([&](JsonScan& scan) {
        event = scan_event(scan);
        more = !scan.take_if(']');
        if (!more) return;
        scan.expect(',');
        more = !scan.take_if(']');  // some writers leave a comma behind
      });
      try {
        take(event);
      } catch (const JsonIncomplete&) {
        throw damaged(name_, window_.offset(), "an event's arguments are not whole");
      } catch (const JsonDamaged& bad) {
        throw damaged(name_, window_.offset(), std::string("an event's arguments: ") + bad.problem);
      }
    }
  }

  void take(const RawEvent& event) {
    if (event.phase == "i" && event.name == "[memory]") return take_memory(event.args);
    if (event.phase != "X") return;
    const EventKind kind = kind_of(event.category);
    if (kind == EventKind::kOther) return;
    const auto begin = json_microseconds(event.begin), length = json_microseconds(event.length);
    if (!begin || !length || *length < 0) return;
    const Interval time{*begin, *begin + *length};
    switch (kind) {
      case EventKind::kKernel:
      case EventKind::kCopy:
      case EventKind::kFill:
        return take_device_work(event, kind, time);
      case EventKind::kCall:
        return take_call(event, time);
      case EventKind::kOverhead:
        trace_.host.push_back({time, pool_.add(event.name), 0, kNone, HostWork::kProfiler});
        return;
      default:
        return take_range(event, time);
    }
  }

  void take_memory(std::string_view args) {
    double reserved = 0.0;
    bool on_device = false;
    each_argument(args, [&](std::string_view key, std::string_view value) {
      if (key == "Total Reserved") reserved = json_real(value).value_or(0.0);
      if (key == "Device Type") on_device = json_integer(value).value_or(0) == 1;
    });
    if (on_device) trace_.peak_reserved_bytes = std::max(trace_.peak_reserved_bytes, reserved);
  }

  void take_device_work(const RawEvent& event, EventKind kind, Interval time) {
    DeviceSlice slice;
    slice.time = time;
    slice.name = pool_.add(event.name);
    slice.work = kind == EventKind::kCopy   ? meaning_of_copy(event.name)
                 : kind == EventKind::kFill ? Work::kFill
                 : communicates(slice.name) ? Work::kCommunication
                                            : Work::kCompute;
    slice.device = static_cast<std::int32_t>(json_integer(event.pid).value_or(0));
    std::int64_t correlation = -1;
    each_argument(event.args, [&](std::string_view key, std::string_view value) {
      if (key == "correlation") {
        correlation = json_integer(value).value_or(-1);
      } else if (key == "stream") {
        slice.stream = static_cast<std::int32_t>(json_integer(value).value_or(0));
      } else if (key == "device") {
        slice.device = static_cast<std::int32_t>(json_integer(value).value_or(slice.device));
      }
    });
    if (slice.work == Work::kCommunication && kind == EventKind::kKernel)
      slice.collective = take_collective(event.args);
    trace_.work.push_back(slice);
    correlations_.push_back(correlation);
  }

  bool communicates(std::uint32_t name) {
    if (name >= communicates_.size()) communicates_.resize(name + 1, -1);
    if (communicates_[name] < 0) communicates_[name] = is_communication(pool_[name]) ? 1 : 0;
    return communicates_[name] == 1;
  }

  HostWork meaning(std::uint32_t name, HostWork (*of)(std::string_view)) {
    if (name >= meanings_.size()) meanings_.resize(name + 1, -1);
    if (meanings_[name] < 0) meanings_[name] = static_cast<int>(of(pool_[name]));
    return static_cast<HostWork>(meanings_[name]);
  }

  void take_call(const RawEvent& event, Interval time) {
    Call call{-1, time};
    each_argument(event.args, [&](std::string_view key, std::string_view value) {
      if (key == "correlation") call.correlation = json_integer(value).value_or(-1);
    });
    calls_.push_back(call);
    const std::uint32_t name = pool_.add(event.name);
    const HostWork work = meaning(name, meaning_of_call);
    if (work == HostWork::kNothing) return;
    trace_.host.push_back({time, name, json_integer(event.tid).value_or(0), kNone, work});
  }

  void take_range(const RawEvent& event, Interval time) {
    const std::uint32_t name = pool_.add(event.name);
    HostWork work = meaning(name, meaning_of_annotation);
    if (work == HostWork::kNothing && event.category != "python_function" && event.name.starts_with("aten::")) {
      work = HostWork::kCompute;
    }
    if (work == HostWork::kNothing) return;
    HostSlice slice{time, name, json_integer(event.tid).value_or(0), kNone, work};
    if (work == HostWork::kCollective) slice.collective = take_collective(event.args);
    trace_.host.push_back(slice);
  }

  // kNone where the arguments tell nothing.
  std::uint32_t take_collective(std::string_view args) {
    Collective collective;
    double elements = 0.0, dims = 0.0;
    double each = 4.0;
    each_argument(args, [&](std::string_view key, std::string_view value) {
      if (key == "Collective name") {
        collective.op = json_text(value);
      } else if (key == "Process Group Name") {
        collective.group = json_text(value);
      } else if (key == "Seq" || key == "seq" || key == "Sequence number of collective") {
        collective.sequence = json_integer(value).value_or(-1);
      } else if (key == "In msg nelems") {
        elements = json_real(value).value_or(0.0);
      } else if (key == "Group size") {
        collective.members = static_cast<int>(std::clamp<std::int64_t>(json_integer(value).value_or(0), 0, 1 << 24));
      } else if (key == "dtype") {
        each = bytes_of_type(json_inside(value));
      } else if (key == "Input Dims" && value.front() == '[') {
        dims = first_tensor_elements(value);
      } else if (key == "Input type" && value.size() > 2) {
        each = bytes_of_type(value.substr(1, value.find(',') - 1));
      }
    });
    collective.bytes = (elements > 0.0 ? elements : dims) * each;
    if (collective.op.empty() && collective.bytes <= 0.0) return kNone;
    trace_.collectives.push_back(std::move(collective));
    return static_cast<std::uint32_t>(trace_.collectives.size() - 1);
  }

  void finish() {
    trace_.file = name_;
    trace_.kind = "kineto";
    join_launches();
    const bool on_device = !trace_.work.empty();
    if (on_device) std::erase_if(trace_.host, [](const HostSlice& slice) { return slice.work == HostWork::kCompute; });
    trace_.names = pool_.take();
    put_in_order(trace_);
  }

  void join_launches() {
    std::erase_if(calls_, [](const Call& call) { return call.correlation < 0; });
    if (calls_.empty()) return;
    std::ranges::sort(calls_, {}, &Call::correlation);
    const auto range =
        static_cast<double>(calls_.back().correlation) - static_cast<double>(calls_.front().correlation) + 1.0;
    trace_.calls_seen = std::min(1.0, static_cast<double>(calls_.size()) / range);
    for (std::size_t i = 0; i < trace_.work.size(); ++i) {
      const auto found = std::ranges::lower_bound(calls_, correlations_[i], {}, &Call::correlation);
      if (found != calls_.end() && found->correlation == correlations_[i]) trace_.work[i].launch = found->time;
    }
  }

  Window window_;
  const std::string& name_;
  Trace trace_;
  NamePool pool_;
  std::vector<signed char> communicates_;  // by name: -1 not looked at yet
  std::vector<int> meanings_;
  std::vector<std::int64_t> correlations_;  // of trace_.work
  std::vector<Call> calls_;
  bool events_seen_ = false;
};

}  // namespace

Trace read_kineto(Source& source, const std::string& name) { return KinetoReader(source, name).read(); }

}  // namespace lockstep::diagnose
