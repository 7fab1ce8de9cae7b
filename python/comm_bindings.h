// The communicator for Python: lockstep._core.World and what it needs; src/lockstep/comm/ gives them arrays and words.
#pragma once

#include <pybind11/pybind11.h>

namespace lockstep::python {

void bind_comm(pybind11::module_& module);

}  // namespace lockstep::python
