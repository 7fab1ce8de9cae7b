// How a shared object offers models, data sets, losses, metrics and schedules to job files:
//
//   LOCKSTEP_REGISTER_MODEL("mine", MyModel)        // MyModel(Options&)               model: {plugin: F, arch: mine}
//   LOCKSTEP_REGISTER_DATASET("mine", MyData)       // MyData(Options&, Split)         data: {plugin: F, kind: mine}
//   LOCKSTEP_REGISTER_LOSS("mine", MyLoss)          // MyLoss(Options&)                model: {loss: mine}
//   LOCKSTEP_REGISTER_METRIC("mine", MyMetric)      // MyMetric(Options&)              evaluation: {metrics: [mine]}
//   LOCKSTEP_REGISTER_SCHEDULE("mine", MySchedule)  // MySchedule(Options&)            optimizer: {schedule: mine}
//
// In a .cpp file, outside namespaces or inside, once per name and kind. Built by lockstep_add_plugin() of
// find_package(Lockstep), which gives the macro the version. No code runs when the object is opened: the entries are
// pointers in a section of their own, and strings beside them say what is there before it is opened.
#pragma once

#include <torch/version.h>

#include <type_traits>

#include "lockstep/base/plugin_tag.h"
#include "lockstep/plugin/dataset.h"
#include "lockstep/plugin/entry.h"
#include "lockstep/plugin/loss.h"
#include "lockstep/plugin/metric.h"
#include "lockstep/plugin/model.h"
#include "lockstep/plugin/options.h"
#include "lockstep/plugin/schedule.h"

#ifndef LOCKSTEP_PLUGIN_VERSION
#define LOCKSTEP_PLUGIN_VERSION "unknown version"
#endif

namespace lockstep::plugin {

#define LOCKSTEP_PLUGIN_NUMBER(x) LOCKSTEP_PLUGIN_TEXT(x)
#define LOCKSTEP_PLUGIN_TEXT(x) #x
#define LOCKSTEP_PLUGIN_BUILT                                                                                \
  LOCKSTEP_PLUGIN_TAG "built:" LOCKSTEP_PLUGIN_NUMBER(LOCKSTEP_PLUGIN_INTERFACE) ":" LOCKSTEP_PLUGIN_VERSION \
                                                                                 ":" TORCH_VERSION

template <class Base, class Class>
void* make_entry(Options& options, Split split) {
  if constexpr (std::is_base_of_v<Dataset, Class>) {
    return static_cast<Base*>(new Class(options, split));
  } else if constexpr (std::is_constructible_v<Class, Options&>) {
    return static_cast<Base*>(new Class(options));
  } else {
    return static_cast<Base*>(new Class());
  }
}

}  // namespace lockstep::plugin

// The bounds of the section, which the linker defines for each shared object, under names that it chooses.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
extern const ::lockstep::plugin::Entry* const __start_lockstep_plugin[] __attribute__((visibility("hidden")));
extern const ::lockstep::plugin::Entry* const __stop_lockstep_plugin[] __attribute__((visibility("hidden")));
__attribute__((used, visibility("default"))) inline const char* lockstep_plugin_entries(
    const ::lockstep::plugin::Entry* const** begin, const ::lockstep::plugin::Entry* const** end) {
  *begin = __start_lockstep_plugin;
  *end = __stop_lockstep_plugin;
  return LOCKSTEP_PLUGIN_BUILT;
}
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

#define LOCKSTEP_PLUGIN_JOIN(a, b) LOCKSTEP_PLUGIN_JOIN2(a, b)
#define LOCKSTEP_PLUGIN_JOIN2(a, b) a##b
#define LOCKSTEP_PLUGIN_ENTRY(word, Base, name, Class, id)                                                             \
  static_assert(std::is_base_of_v<::lockstep::plugin::Base, Class>, #Class " is no lockstep::plugin::" #Base);         \
  namespace {                                                                                                          \
  constexpr ::lockstep::plugin::Entry LOCKSTEP_PLUGIN_JOIN(lockstep_plugin_entry_, id){                                \
      LOCKSTEP_PLUGIN_TAG word ":" name, &::lockstep::plugin::make_entry<::lockstep::plugin::Base, Class>};            \
  __attribute__((used, section("lockstep_plugin")))                                                                    \
  const ::lockstep::plugin::Entry* const LOCKSTEP_PLUGIN_JOIN(lockstep_plugin_pointer_,                                \
                                                              id) = &LOCKSTEP_PLUGIN_JOIN(lockstep_plugin_entry_, id); \
  }

#define LOCKSTEP_REGISTER_MODEL(name, Class) LOCKSTEP_PLUGIN_ENTRY("model", Model, name, Class, __COUNTER__)
#define LOCKSTEP_REGISTER_DATASET(name, Class) LOCKSTEP_PLUGIN_ENTRY("dataset", Dataset, name, Class, __COUNTER__)
#define LOCKSTEP_REGISTER_LOSS(name, Class) LOCKSTEP_PLUGIN_ENTRY("loss", LossFunction, name, Class, __COUNTER__)
#define LOCKSTEP_REGISTER_METRIC(name, Class) LOCKSTEP_PLUGIN_ENTRY("metric", Metric, name, Class, __COUNTER__)
#define LOCKSTEP_REGISTER_SCHEDULE(name, Class) LOCKSTEP_PLUGIN_ENTRY("schedule", Schedule, name, Class, __COUNTER__)
