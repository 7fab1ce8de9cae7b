// The host's side of plugins: opens shared objects and makes what they registered. An object is opened once in a
// process and never closed; it shares the engine's libtorch.
//
// Whatever leaves a plugin's code as an exception becomes a UserError that names the plugin; run such code inside
// calling().
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/plugin/dataset.h"
#include "lockstep/plugin/loss.h"
#include "lockstep/plugin/metric.h"
#include "lockstep/plugin/model.h"
#include "lockstep/plugin/schedule.h"
#include "lockstep/spec/plugin.h"

namespace lockstep::plugin {

// Each opens use.file and constructs use.name with use.options; `section` is what errors call these ("model"). Throws
// UserError: exit 4 where the file is missing, has changed or was built against another libtorch, 2 for options that
// the constructor did not ask for.
std::unique_ptr<Model> make_model(const spec::PluginUse& use, const std::string& section);
std::unique_ptr<Dataset> make_dataset(const spec::PluginUse& use, const std::string& section, Split split);
std::unique_ptr<LossFunction> make_loss(const spec::PluginUse& use, const std::string& section);
std::unique_ptr<Metric> make_metric(const spec::PluginUse& use, const std::string& section);
std::unique_ptr<Schedule> make_schedule(const spec::PluginUse& use, const std::string& section);

// "libmine.so: model `mine`".
std::string title_of(const spec::PluginUse& use, spec::PluginKind kind);

// For the exception that is being handled: throws what `calling` throws.
[[noreturn]] void rethrow_as_user_error(const std::string& title, const std::string& doing);

// call(); what it throws becomes "TITLE: DOING failed: REASON". UserErrors pass.
template <class Call>
auto calling(const std::string& title, const std::string& doing, Call&& call) {
  try {
    return call();
  } catch (...) {
    rethrow_as_user_error(title, doing);
  }
}

}  // namespace lockstep::plugin
