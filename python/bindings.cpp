// lockstep._core: the planner for Python. Plain values cross the border; src/lockstep/ gives them types and words.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "comm_bindings.h"
#include "lockstep/base/error.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/planner/suggest/files.h"
#include "lockstep/planner/suggest/suggest.h"
#include "lockstep/spec/usual_precision.h"
#include "lockstep/telemetry/recorder.h"
#include "store_bindings.h"

namespace py = pybind11;
namespace planner = lockstep::planner;

namespace {

template <class Json>
py::object to_python(const Json& value) {
  switch (value.type()) {
    case nlohmann::detail::value_t::boolean:
      return py::bool_(value.template get<bool>());
    case nlohmann::detail::value_t::number_integer:
      return py::int_(value.template get<std::int64_t>());
    case nlohmann::detail::value_t::number_unsigned:
      return py::int_(value.template get<std::uint64_t>());
    case nlohmann::detail::value_t::number_float:
      return py::float_(value.template get<double>());
    case nlohmann::detail::value_t::string:
      return py::str(value.template get<std::string>());
    case nlohmann::detail::value_t::array: {
      py::list list;
      for (const auto& item : value) list.append(to_python(item));
      return list;
    }
    case nlohmann::detail::value_t::object: {
      py::dict dict;
      for (const auto& [key, item] : value.items()) dict[py::str(key)] = to_python(item);
      return dict;
    }
    default:
      return py::none();
  }
}

planner::Suggestion suggest(const std::string& model_size, const std::string& model, const std::string& gpus,
                            const std::string& dataset_size, const std::string& gpu, std::int64_t gpus_per_node,
                            const std::string& cluster, std::int64_t sequence_length, std::int64_t global_batch,
                            double epochs, std::int64_t host_cores, const std::string& task, const std::string& stack,
                            const std::string& profile, const std::string& home) {
  planner::SuggestRequest request;
  if (!model_size.empty()) request.parameters = planner::parse_size(model_size, "model_size");
  request.model = model;
  if (!gpus.empty()) request.gpus = static_cast<std::int64_t>(planner::parse_size(gpus, "gpus"));
  request.gpu = gpu;
  request.gpus_per_node = gpus_per_node;
  request.cluster = cluster;
  request.dataset_tokens = planner::parse_size(dataset_size, "dataset_size");
  request.sequence_length = sequence_length;
  request.global_sequences = global_batch;
  request.epochs = epochs;
  request.host_cores = host_cores;
  request.task = planner::parse_task(task);
  request.stack = planner::parse_stack(stack);
  request.profile = profile;
  request.home = home;
  return planner::suggest(request);
}

// lockstep.plan/1 of `lockstep plan --model M --cluster C`.
nlohmann::json plan(const std::string& model, const std::string& cluster, std::int64_t sequence_length,
                    std::int64_t global_batch, double tokens, const std::string& profile) {
  planner::SearchRequest request;
  request.model = lockstep::spec::load_model(model);
  request.cluster = lockstep::spec::load_cluster(cluster);
  const planner::Ranks ranks = planner::ranks_here(request.cluster, 0, "", request.cluster.devices());
  request.profile =
      planner::require_profile(request.cluster, lockstep::spec::usual_precision(request.cluster), ranks, profile);
  request.sequence_length = sequence_length;
  request.global_sequences = global_batch;
  request.tokens = tokens;
  return planner::to_json(planner::explain(request));
}

void set_error(const py::object& error) { PyErr_SetObject(py::type::handle_of(error).ptr(), error.ptr()); }

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "The planner of Lockstep; use the functions of the package `lockstep`.";

  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(std::move(pointer));
    } catch (const lockstep::UserError& error) {
      set_error(
          py::module_::import("lockstep.errors").attr("user_error")(static_cast<int>(error.code()), error.what()));
    } catch (const lockstep::Fault& error) {
      const char* const kinds[] = {"PeerLost", "TimeoutFault", "Aborted"};  // in FaultKind's order
      const char* const kind = kinds[static_cast<int>(error.kind())];
      set_error(py::module_::import("lockstep.errors").attr(kind)(error.what(), error.rank()));
    }
  });

  py::class_<planner::Suggestion>(module, "Suggestion")
      .def("to_dict", [](const planner::Suggestion& self) { return to_python(planner::to_json(self)); })
      .def("job_yaml", &planner::job_yaml)
      .def("torchrun",
           [](const planner::Suggestion& self) {
             return planner::torchrun_script(planner::for_stack(self, planner::Stack::kTorchrun));
           })
      .def("deepspeed", [](const planner::Suggestion& self) { return to_python(planner::deepspeed_config(self)); })
      .def("accelerate", &planner::accelerate_config);

  module.def("suggest", &suggest, py::kw_only(), py::arg("model_size"), py::arg("model"), py::arg("gpus"),
             py::arg("dataset_size"), py::arg("gpu"), py::arg("gpus_per_node"), py::arg("cluster"),
             py::arg("sequence_length"), py::arg("global_batch"), py::arg("epochs"), py::arg("host_cores"),
             py::arg("task"), py::arg("stack"), py::arg("profile"), py::arg("home"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "plan",
      [](const std::string& model, const std::string& cluster, std::int64_t sequence_length, std::int64_t global_batch,
         double tokens, const std::string& profile) {
        nlohmann::json document;
        {
          const py::gil_scoped_release release;
          document = plan(model, cluster, sequence_length, global_batch, tokens, profile);
        }
        return to_python(document);
      },
      py::kw_only(), py::arg("model"), py::arg("cluster"), py::arg("sequence_length"), py::arg("global_batch"),
      py::arg("tokens"), py::arg("profile"));
  lockstep::python::bind_store(module);
  lockstep::python::bind_comm(module);
  module.def("home_directory", [] { return lockstep::telemetry::home_directory().string(); });
}
