#include "comm_bindings.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/group_settings.h"
#include "lockstep/comm/join.h"
#include "lockstep/comm/local.h"
#include "lockstep/elastic/rank_environment.h"

namespace lockstep::python {
namespace {

namespace py = pybind11;
using comm::milliseconds;
using elastic::RankEnvironment;

// Python's signals are looked at this often while an operation is waited for.
constexpr milliseconds kLook{100};

milliseconds from_seconds(double seconds) { return milliseconds(static_cast<std::int64_t>(seconds * 1e3)); }

// Memory as Python names it: (address, elements, dtype, device, stream).
using Memory = std::tuple<std::uintptr_t, std::int64_t, int, int, std::uintptr_t>;

// NOLINTBEGIN(performance-no-int-to-ptr): Python names memory by its address.
comm::Buffer buffer_of(const Memory& memory) {
  const auto& [address, count, dtype, device, stream] = memory;
  return {reinterpret_cast<void*>(address), count, static_cast<comm::DType>(dtype), device,
          reinterpret_cast<void*>(stream)};
}
// NOLINTEND(performance-no-int-to-ptr)

comm::OpOptions options_of(double timeout_seconds) { return {.timeout = from_seconds(timeout_seconds)}; }

// Other threads of Python run meanwhile, and Ctrl-C ends the wait (not the operation).
void wait(comm::Work& work) {
  while (true) {
    {
      const py::gil_scoped_release release;
      if (work.wait_for(kLook)) return;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// Where the ranks meet; kept by the process until its end, so that it can open one world after another.
class Meeting {
 public:
  Meeting(const RankEnvironment& ranks, double timeout_seconds)
      : meeting_(comm::meet(ranks, {.timeout = from_seconds(timeout_seconds)})) {}

  const comm::Meeting& get() const { return meeting_; }

  // Counts this rank in and waits for the others. False: they did not come in time, or the store is gone.
  bool everybody_came(const std::string& key, int size, double timeout_seconds) {
    try {
      if (meeting_.store->add(key, 1) == size) meeting_.store->set(key + "/all", "1");
      meeting_.store->get(key + "/all", from_seconds(timeout_seconds));
      return true;
    } catch (const Fault&) {
      return false;
    }
  }

 private:
  comm::Meeting meeting_;
};

// A group of ranks. Buffers stay alive and untouched until their Work is done: that is the caller's part.
class World {
 public:
  World(const RankEnvironment& ranks, const std::string& backend, const Meeting* meeting, const std::string& prefix,
        double timeout_seconds, double connect_seconds) {
    if (backend == "local") {
      if (ranks.world != 1) {
        throw bad_input("the local backend runs all ranks in one process", "use tcp, gloo, mpi or nccl");
      }
      world_ = comm::LocalWorld(1, from_seconds(timeout_seconds)).communicator(0);
      return;
    }
    comm::CommOptions options = comm::options_of(ranks, backend, meeting == nullptr ? nullptr : &meeting->get());
    options.groups = comm::choose_group_settings(std::getenv("LOCKSTEP_NCCL_GROUPS"), "");
    options.store_prefix = prefix;
    options.timeout = from_seconds(timeout_seconds);
    options.connect_timeout = from_seconds(connect_seconds);
    world_ = comm::open_communicator(options);
  }
  explicit World(comm::Communicator world) : world_(std::move(world)) {}

  int rank() const { return open().rank(); }
  int size() const { return open().size(); }
  std::string backend() const { return open().backend_name(); }
  double timeout() const { return static_cast<double>(open().timeout().count()) / 1e3; }

  comm::Work all_reduce(const Memory& memory, int op, double timeout) {
    return open().all_reduce(buffer_of(memory), static_cast<comm::ReduceOp>(op), options_of(timeout));
  }
  comm::Work reduce_scatter(const Memory& input, const Memory& output, int op, double timeout) {
    return open().reduce_scatter(buffer_of(input), buffer_of(output), static_cast<comm::ReduceOp>(op),
                                 options_of(timeout));
  }
  comm::Work all_gather(const Memory& input, const Memory& output, double timeout) {
    return open().all_gather(buffer_of(input), buffer_of(output), options_of(timeout));
  }
  comm::Work broadcast(const Memory& memory, int root, double timeout) {
    return open().broadcast(buffer_of(memory), root, options_of(timeout));
  }
  comm::Work all_to_all(const Memory& input, const std::vector<std::int64_t>& sent, const Memory& output,
                        const std::vector<std::int64_t>& received, double timeout) {
    return open().all_to_all(buffer_of(input), sent, buffer_of(output), received, options_of(timeout));
  }
  comm::Work barrier(double timeout) { return open().barrier(options_of(timeout)); }
  World subgroup(const std::vector<int>& ranks, const std::string& name) { return World(open().subgroup(ranks, name)); }
  void abort(const std::string& reason) { open().abort(reason); }
  void close() { world_ = {}; }

 private:
  comm::Communicator& open() {
    if (!world_.valid()) throw bad_input("this communicator was closed", "call init() again");
    return world_;
  }
  const comm::Communicator& open() const { return const_cast<World*>(this)->open(); }

  comm::Communicator world_;
};

void bind_environment(py::module_& module) {
  py::class_<RankEnvironment>(module, "RankEnvironment")
      .def(py::init<>())
      .def_readwrite("rank", &RankEnvironment::rank)
      .def_readwrite("world", &RankEnvironment::world)
      .def_readwrite("local_rank", &RankEnvironment::local_rank)
      .def_readwrite("local_world", &RankEnvironment::local_world)
      .def_readwrite("master_host", &RankEnvironment::master_host)
      .def_readwrite("master_port", &RankEnvironment::master_port)
      .def_readwrite("one_node", &RankEnvironment::one_node)
      .def_readwrite("source", &RankEnvironment::source);
  module.def("rank_environment", [] { return elastic::detect_rank_environment(); });
  module.def("has_plugin", &comm::has_plugin, py::arg("backend"));
}

}  // namespace

void bind_comm(py::module_& module) {
  bind_environment(module);
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<Meeting>(module, "Meeting")
      .def(py::init<const RankEnvironment&, double>(), py::arg("ranks"), py::arg("timeout_seconds"), unlocked)
      .def("everybody_came", &Meeting::everybody_came, py::arg("key"), py::arg("size"), py::arg("timeout_seconds"),
           unlocked);
  py::class_<comm::Work>(module, "Work").def("wait", &wait).def("done", &comm::Work::done);
  py::class_<World>(module, "World")
      .def(py::init<const RankEnvironment&, const std::string&, const Meeting*, const std::string&, double, double>(),
           py::arg("ranks"), py::arg("backend"), py::arg("meeting"), py::arg("prefix"), py::arg("timeout_seconds"),
           py::arg("connect_seconds"), unlocked)
      .def_property_readonly("rank", &World::rank)
      .def_property_readonly("size", &World::size)
      .def_property_readonly("backend", &World::backend)
      .def_property_readonly("timeout_seconds", &World::timeout)
      .def("all_reduce", &World::all_reduce, py::arg("memory"), py::arg("op"), py::arg("timeout_seconds"), unlocked)
      .def("reduce_scatter", &World::reduce_scatter, py::arg("input"), py::arg("output"), py::arg("op"),
           py::arg("timeout_seconds"), unlocked)
      .def("all_gather", &World::all_gather, py::arg("input"), py::arg("output"), py::arg("timeout_seconds"), unlocked)
      .def("broadcast", &World::broadcast, py::arg("memory"), py::arg("root"), py::arg("timeout_seconds"), unlocked)
      .def("all_to_all", &World::all_to_all, py::arg("input"), py::arg("sent"), py::arg("output"), py::arg("received"),
           py::arg("timeout_seconds"), unlocked)
      .def("barrier", &World::barrier, py::arg("timeout_seconds"), unlocked)
      .def("subgroup", &World::subgroup, py::arg("ranks"), py::arg("name"), unlocked)
      .def("abort", &World::abort, py::arg("reason"), unlocked)
      .def("close", &World::close, unlocked);
}

}  // namespace lockstep::python
