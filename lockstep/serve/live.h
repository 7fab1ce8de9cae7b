// What is new in the runs that somebody looks at: one thread asks the store, however many look.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/serve/request.h"
#include "lockstep/serve/stores.h"

namespace lockstep::serve {

inline constexpr std::size_t kMostTickBytes = 2048;

// One server-sent event of a topic.
struct LiveMessage {
  enum class Kind { kTick, kEvent, kEnd, kRuns };
  Kind kind = Kind::kTick;
  std::int64_t step = 0;     // of the newest tick when it was made
  std::int64_t time_ms = 0;  // of the newest event when it was made
  std::string data;          // JSON, one line

  // "event: tick\nid: 120-1731900000123\ndata: {...}\n\n"
  std::string text() const;
};

struct LiveOptions {
  double tick_seconds = 0.25;  // between two questions about a run that is running
  double slow_seconds = 2.0;   // about one that is not
  double list_seconds = 1.0;   // about the list of runs
  double most_share = 0.05;    // of one core that asking may take: a store that answers slowly is asked less often
};

// Topics are ids of runs; "" is the list of runs. Thread-safe.
class Live {
 public:
  // On the thread that asks.
  using Send = std::function<void(const std::string& topic, LiveMessage message)>;

  Live(const std::filesystem::path& home, Send send, LiveOptions options = {});
  ~Live();
  Live(const Live&) = delete;
  Live& operator=(const Live&) = delete;

  // From the first watch() to as many unwatch() a topic is asked for. The first question sends its newest tick, the
  // events of the last minutes, and whether it has ended.
  void watch(const std::string& topic);
  void unwatch(const std::string& topic);

  std::size_t asked() const;  // how often a topic was asked for

 private:
  struct Topic {
    int watchers = 0;
    double next = 0.0;  // when to ask again
    // Of a run.
    std::vector<std::pair<std::string, int>> metrics;  // that ticks tell, and on which rank
    double metrics_read_at = -1e9, row_read_at = -1e9;
    std::int64_t step = -1;
    double event_time = -1.0;
    std::set<std::string> events_at_time;  // told already, of the last seconds
    std::string status;
    // Of the list.
    std::map<std::string, std::string> rows;  // id to what a list shows of it
    bool listed = false;
  };

  void ask_all();
  void ask_run(const std::string& id, Topic& topic, std::vector<LiveMessage>& found);
  void read_metrics(const std::string& id, Topic& topic);
  void tell_tick(const std::string& id, Topic& topic, std::vector<LiveMessage>& found);
  void tell_events(const std::string& id, Topic& topic, std::vector<LiveMessage>& found);
  void tell_status(const std::string& id, Topic& topic, std::vector<LiveMessage>& found);
  void ask_list(Topic& topic, std::vector<LiveMessage>& found);
  double ask(const std::string& name, Topic& topic);

  Stores stores_;
  Send send_;
  LiveOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, std::shared_ptr<Topic>> topics_;
  std::size_t asked_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace lockstep::serve
