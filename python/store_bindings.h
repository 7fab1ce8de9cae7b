// The run store for Python: lockstep._core.Store, which src/lockstep/store.py gives its words.
#pragma once

#include <pybind11/pybind11.h>

namespace lockstep::python {

void bind_store(pybind11::module_& module);

}  // namespace lockstep::python
