// A data set that a plugin registered (plugin/dataset.h), as one of ours.
#pragma once

#include "lockstep/data/open_datasets.h"

namespace lockstep::data {

// job.data.plugin for training, and for evaluation where it has samples for that. Throws UserError, naming the plugin:
// also from fetch(), for samples that do not fit together or, with a language model, ids beyond its vocabulary.
Datasets open_plugin_data(const spec::Job& job);

}  // namespace lockstep::data
