// Several data sets as one, mixed by weight.
//
// An epoch has as many samples as all sources together; source s gives the share weight_s of them. What it gives is
// taken from passes over the source, each in an order of its own: no sample comes a second time before all came once,
// and a pass goes on in the next epoch where the last one ended. Which sample stands where follows from (seed, epoch,
// place) alone, so that ledger, resume and other numbers of ranks work as with any data set.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

struct WeightedSource {
  std::shared_ptr<const Dataset> dataset;
  double weight = 1.0;  // above 0; only the ratios matter
};

// Throws bad_input when the sources give samples of different shapes. At least one source.
std::shared_ptr<const Dataset> mix_datasets(std::vector<WeightedSource> sources, std::uint64_t seed);

// All samples of all sources, one source after the other.
std::shared_ptr<const Dataset> join_datasets(const std::vector<std::shared_ptr<const Dataset>>& sources);

}  // namespace lockstep::data
