#include "lockstep/serve/api.h"

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/serve/cluster_values.h"
#include "lockstep/serve/prometheus.h"
#include "lockstep/serve/report_values.h"
#include "lockstep/serve/series_values.h"
#include "lockstep/serve/study_values.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;
using telemetry::RunRow;
using telemetry::RunStore;

constexpr std::int64_t kMostRuns = 1000;      // of one answer
constexpr std::size_t kMostSearched = 20000;  // for a filter
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;
constexpr std::int64_t kMostEvents = 10000;
constexpr std::int64_t kUsualWindow = 1000;  // steps of a waterfall

class WrongMethod : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void require_method(const Request& request, std::string_view method) {
  const bool reads = method == "GET" && (request.method == "GET" || request.method == "HEAD");
  if (!reads && request.method != method) throw WrongMethod("use " + std::string(method));
}

bool contains_word(const std::string& text, const std::string& word) {
  return to_lower(text).find(word) != std::string::npos;
}

bool matches(const RunRow& row, const RunFigures& figures, const std::string& word) {
  if (word.empty()) return true;
  const auto in_tag = [&](const std::string& tag) { return contains_word(tag, word); };
  return contains_word(row.info.id, word) || contains_word(row.info.name, word) || contains_word(row.info.host, word) ||
         contains_word(figures.model, word) || contains_word(figures.layout, word) ||
         std::any_of(row.tags.begin(), row.tags.end(), in_tag);
}

SeriesQuestion series_question(const Request& request) {
  return {.metric = request.text("metric", "loss"),
          .rank = static_cast<int>(request.integer("rank", -1, 0, 1 << 24)),
          .from = request.integer("from", 0, 0, kMostSteps),
          .to = request.integer("to", -1, 0, kMostSteps),
          .points = static_cast<std::size_t>(request.integer("points", 1500, 1, 20000))};
}

HeatmapQuestion heatmap_question(const Request& request) {
  return {.metric = request.text("metric", "step_seconds"),
          .from = request.integer("from", -1, 0, kMostSteps),
          .to = request.integer("to", -1, 0, kMostSteps),
          .columns = static_cast<std::size_t>(request.integer("columns", 200, 1, 2000))};
}

json events_of(const Request& request, const RunStore& store, const std::string& run) {
  const auto limit = static_cast<std::size_t>(request.integer("limit", 1000, 1, kMostEvents));
  const telemetry::Level least = telemetry::parse_level(request.text("level", "debug"));
  std::vector<telemetry::Event> events =
      store.events_after(run, static_cast<double>(request.integer("after", 0, 0, kMostSteps)), request.text("kind"));
  std::erase_if(events, [least](const telemetry::Event& event) { return event.level < least; });
  const bool more = events.size() > limit;
  if (more) events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(limit));
  json list = json::array();
  for (const telemetry::Event& event : events) list.push_back(event_json(event));
  return {{"schema", "lockstep.api.events/1"}, {"events", std::move(list)}, {"more", more}};
}

Response answer_json(const json& document) { return answer_text(200, "application/json", dump(document)); }

}  // namespace

std::string dump(const json& document) { return document.dump(-1, ' ', false, json::error_handler_t::replace); }

RunRow run_of_id(const RunStore& store, const std::string& id) {
  for (RunRow& row : store.runs(kMostSearched, id)) {
    if (row.info.id == id) return std::move(row);
  }
  throw NotThere("there is no run '" + printable(id) + "'");
}

json Api::runs(const Request& request, Stores& stores) {
  require_method(request, "GET");
  const auto limit = static_cast<std::size_t>(request.integer("limit", 100, 1, kMostRuns));
  const std::string status = request.text("status"), tag = request.text("tag"), word = to_lower(request.text("q"));
  const bool filtered = !status.empty() || !tag.empty() || !word.empty();
  const RunStore& store = stores.runs();
  json list = json::array();
  bool more = false;
  for (const RunRow& row : store.runs(filtered ? kMostSearched : limit + 1)) {
    if (!status.empty() && status != telemetry::to_string(row.status)) continue;
    if (!tag.empty() && std::find(row.tags.begin(), row.tags.end(), tag) == row.tags.end()) continue;
    const RunFigures figures = figures_.get(store, row);
    if (!matches(row, figures, word)) continue;
    more = list.size() >= limit;
    if (more) break;
    list.push_back(listed_run(row, figures));
  }
  return {{"schema", "lockstep.api.runs/1"}, {"runs", std::move(list)}, {"more", more}};
}

json Api::set_tags(const Request& request, Stores& stores, const RunRow& row) {
  require_method(request, "POST");
  if (!std::string_view(request.header("content-type")).starts_with("application/json")) {
    throw bad_input("the body is not JSON", "send Content-Type: application/json");
  }
  const json document = parse_json(request.body, "the request");
  const JsonReader reader(document, "the request");
  const std::vector<std::string> tags = reader.texts("tags");
  reader.finish();
  stores.runs().set_tags(row.info.id, tags);
  return {{"schema", "lockstep.api.tags/1"}, {"id", row.info.id}, {"tags", run_of_id(stores.runs(), row.info.id).tags}};
}

json Api::of_run(const Request& request, Stores& stores) {
  const std::vector<std::string>& path = request.target.path;  // api v1 runs ID [what]
  const RunStore& store = stores.runs();
  const RunRow row = run_of_id(store, path[3]);
  const std::string& id = row.info.id;
  if (path.size() == 5 && path[4] == "tags") return set_tags(request, stores, row);
  require_method(request, "GET");
  if (path.size() == 4) return whole_run(store, row, figures_.get(store, row));
  if (path[4] == "series") return series_json(store, id, series_question(request));
  if (path[4] == "heatmap") return heatmap_json(store, id, heatmap_question(request));
  if (path[4] == "timeline") return timeline_json(store, id, request.integer("step", -1, 0, kMostSteps));
  if (path[4] == "events") return events_of(request, store, id);
  const std::int64_t window = request.integer("window", kUsualWindow, 0, kMostSteps);
  if (auto value = report_json(store, id, path[4], window)) return std::move(*value);
  throw NotThere("there is no such page");
}

json Api::studies(const Request& request, Stores& stores) {
  require_method(request, "GET");
  const std::vector<std::string>& path = request.target.path;  // api v1 studies [ID]
  telemetry::StudyStore* store = stores.studies();
  if (path.size() == 3)
    return studies_json(store, static_cast<std::size_t>(request.integer("limit", 100, 1, kMostRuns)));
  if (store != nullptr) {
    for (const telemetry::StudyRow& row : store->studies(kMostSearched, path[3])) {
      if (row.info.id == path[3]) return study_json(*store, row);
    }
  }
  throw NotThere("there is no study '" + printable(path[3]) + "'");
}

Response Api::metrics(const Request& request, Stores& stores) {
  require_method(request, "GET");
  const ExpositionFormat format = format_for(request.header("accept"));
  return answer_text(200, content_type_of(format), metrics_text(stores.runs(), format, unix_seconds()));
}

Response Api::answer(const Request& request, Stores& stores) {
  try {
    const std::vector<std::string>& path = request.target.path;
    if (path.size() >= 3 && path[0] == "api" && path[1] == "v1") {
      if (path[2] == "runs" && path.size() == 3) return answer_json(runs(request, stores));
      if (path[2] == "runs" && path.size() <= 5) return answer_json(of_run(request, stores));
      if (path[2] == "studies" && path.size() <= 4) return answer_json(studies(request, stores));
      if (path[2] == "cluster" && path.size() == 3) {
        require_method(request, "GET");
        return answer_json(cluster_json(stores.runs(), dcgm_.read()));
      }
    }
    if (path.size() == 1 && path[0] == "metrics") return metrics(request, stores);
    return answer_error(404, "there is no such page");
  } catch (const NotThere& error) {
    return answer_error(404, error.what());
  } catch (const WrongMethod& error) {
    return answer_error(405, error.what());
  } catch (const UserError& error) {
    return answer_error(error.code() == ExitCode::kUsage ? 400 : 503, error.what());
  } catch (const std::exception& error) {
    return answer_error(500, std::string("internal error: ") + error.what());
  }
}

}  // namespace lockstep::serve
