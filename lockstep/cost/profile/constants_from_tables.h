// From calibration's tables to the pricer's constants: what a machine was measured to do, in the form that prices any
// layout and not only the shapes in the tables. Pure functions.
#pragma once

#include "lockstep/cost/profile/profile.h"
#include "lockstep/spec/cluster.h"

namespace lockstep::cost {

// The cluster with the speeds that `profile` measured where it has none of its own: kind cpu, which has no datasheet.
// Peak: the best product seen. Memory: the copy. Link: the best all-reduce. Throws UserError (exit code 4) when several
// ranks must talk and the profile has no collectives, and (exit code 2) for several nodes without a network's figures.
spec::Cluster with_measured_speeds(spec::Cluster cluster, const Profile& profile);

// Operators that the host issues for one layer, as operator_seconds counts them.
double operators_per_layer();

// Constants by least squares on logarithms, relative to the figures of `node`. What the tables say nothing about keeps
// the default. Products, attention and kernels are fitted in bf16 where the tables have it, else in their first
// precision. Throws UserError (exit code 4) for a profile without matrix products.
Constants constants_from_tables(const Profile& profile, const spec::NodeGroup& node);

// The same, corrected by the checks: whole steps that took longer than the sum of their parts make every part longer by
// their geometric mean, and their scatter becomes the residuals. Facts are those of Lockstep's own engine.
Fitted fitted_from_tables(const Profile& profile, const spec::NodeGroup& node);

}  // namespace lockstep::cost
