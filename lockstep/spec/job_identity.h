// Which run is this? The keys of a job, what may change between two runs of it, and the words for a difference.
//
// Ranks of one run must agree on all keys but paths and figures of their own machine; a resumed run must agree with its
// checkpoint on what decides which samples come and what is trained (docs/reference/resume-and-health.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/spec/job.h"

namespace lockstep::spec {

// "optimizer.learning_rate" -> "0.001"; a list is one value: "[0.9, 0.999]". Every key that to_yaml() writes.
using JobKeys = std::map<std::string, std::string>;
JobKeys keys_of(const Job& job);

// A key that two jobs have with different values; "" where one has it not.
struct KeyChange {
  std::string key, before, now;
  std::string to_string() const;  // "seed 3, now 4"
};

// Keys that differ, by name. Names of jobs and models are left out, and of a cluster its name stands for all.
std::vector<KeyChange> changes_between(const Job& before, const Job& now);

// Does a change of this key give other samples or another model? Those keys are the job's identity. Paths of data and
// tokenizer are among them, unless their contents are known to be the same.
bool is_identity(const std::string& key);

// Must all ranks of a run have the same value? Not for paths (their contents are compared) and what belongs to a node.
bool is_shared_by_ranks(const std::string& key);

// "seed 3, now 4; data.shuffle true, now false", at most `most` of them, the rest counted.
std::string to_string(const std::vector<KeyChange>& changes, std::size_t most = 6);

}  // namespace lockstep::spec
