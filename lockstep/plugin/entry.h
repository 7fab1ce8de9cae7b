// What a plugin and its host hand each other (register.h, library.h).
#pragma once

#include "lockstep/plugin/dataset.h"
#include "lockstep/plugin/options.h"

namespace lockstep::plugin {

struct Entry {
  const char* tag;  // LOCKSTEP_PLUGIN_TAG "model:mine"
  // A new object of the kind's base class, which the host deletes. `split` is for data sets alone.
  void* (*make)(Options& options, Split split);
};

// `lockstep_plugin_entries` of a plugin: the entries are [*begin, *end); returns what it was built against.
using EntriesFunction = const char*(const Entry* const** begin, const Entry* const** end);

}  // namespace lockstep::plugin
