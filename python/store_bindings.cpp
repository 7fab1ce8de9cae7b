#include "store_bindings.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::python {
namespace {

namespace py = pybind11;
namespace telemetry = lockstep::telemetry;

std::string text_of(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// JSON text: Python's own reader makes the objects.
std::string run_text(const telemetry::RunRow& row) {
  return text_of({{"id", row.info.id},
                  {"name", row.info.name},
                  {"status", telemetry::to_string(row.status)},
                  {"started_at", row.info.started_at},
                  {"ended_at", row.ended_at},
                  {"exit_reason", row.exit_reason},
                  {"world", row.info.world},
                  {"backend", row.info.backend},
                  {"host", row.info.host},
                  {"job_yaml", row.info.job_yaml},
                  {"versions", row.info.versions},
                  {"tags", row.tags},
                  {"summary", row.summary}});
}

std::string event_text(const telemetry::Event& event) {
  return text_of({{"time", event.time},
                  {"level", telemetry::to_string(event.level)},
                  {"kind", event.kind},
                  {"rank", event.rank},
                  {"step", event.step},
                  {"message", event.message},
                  {"data", event.data}});
}

// A store is used from one thread at a time, and Python's lock is not given up while it is.
class Store {
 public:
  explicit Store(const std::string& home) : store_(telemetry::open_run_store(home)) {}

  std::string find(const std::string& id) const {
    const auto row = store_->find(id);
    if (!row) throw bad_input("there is no run `" + id + "`", "`lockstep report` lists them");
    return run_text(*row);
  }
  std::vector<std::string> runs(std::size_t limit, const std::string& beginning) const {
    std::vector<std::string> result;
    for (const telemetry::RunRow& row : store_->runs(limit, beginning)) result.push_back(run_text(row));
    return result;
  }
  std::string plan(const std::string& run) const { return text_of(store_->plan(run)); }
  std::vector<std::string> metric_names(const std::string& run) const { return store_->metric_names(run); }
  std::vector<int> ranks(const std::string& run, const std::string& metric) const { return store_->ranks(run, metric); }
  std::vector<std::tuple<std::int64_t, double, double>> points_after(const std::string& run, const std::string& metric,
                                                                     int rank, std::int64_t after,
                                                                     std::size_t limit) const {
    std::vector<std::tuple<std::int64_t, double, double>> result;
    for (const telemetry::Point& point : store_->points_after(run, metric, rank, after, limit)) {
      result.emplace_back(point.step, point.time, point.value);
    }
    return result;
  }
  std::vector<std::string> events_after(const std::string& run, double after) const {
    std::vector<std::string> result;
    for (const telemetry::Event& event : store_->events_after(run, after)) result.push_back(event_text(event));
    return result;
  }

 private:
  std::unique_ptr<telemetry::RunStore> store_;
};

}  // namespace

void bind_store(py::module_& module) {
  py::class_<Store>(module, "Store")
      .def(py::init<const std::string&>(), py::arg("home"))
      .def("find", &Store::find, py::arg("id"))
      .def("runs", &Store::runs, py::arg("limit"), py::arg("beginning"))
      .def("plan", &Store::plan, py::arg("run"))
      .def("metric_names", &Store::metric_names, py::arg("run"))
      .def("ranks", &Store::ranks, py::arg("run"), py::arg("metric"))
      .def("points_after", &Store::points_after, py::arg("run"), py::arg("metric"), py::arg("rank"), py::arg("after"),
           py::arg("limit") = 100000)
      .def("events_after", &Store::events_after, py::arg("run"), py::arg("after"));
}

}  // namespace lockstep::python
