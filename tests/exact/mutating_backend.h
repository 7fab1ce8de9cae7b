// A communicator that executes one call site wrongly: the mutants of the gate.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::exact {

enum class Fault {
  kNone,        // recorded only
  kDropped,     // nothing is exchanged: a reduction keeps this rank's part, a receiver gets zeros
  kDoubled,     // a reduction happens twice; moved data arrives doubled
  kWrongScale,  // a reduction averages; moved data arrives halved
  kWrongGroup,  // two ranks of different groups have changed places
};
const char* to_string(Fault fault);

struct Site {
  std::string name;   // OpOptions::site
  std::string group;  // name of the group it is called on
  comm::OpKind kind = comm::OpKind::kBarrier;
  comm::ReduceOp reduce = comm::ReduceOp::kSum;
  auto operator<=>(const Site&) const = default;
};

// Shared by the ranks of one run. Thread-safe.
class Mutation {
 public:
  Mutation() = default;  // records
  Mutation(Site site, Fault fault, std::map<std::string, std::set<std::vector<int>>> groups);

  comm::Communicator wrap(comm::Communicator inner, int rank);

  std::set<Site> sites() const;
  // The groups of a run by name: each a list of world ranks.
  std::map<std::string, std::set<std::vector<int>>> groups() const;
  // Whether two ranks can change places: the site's group has more than one instance.
  bool possible() const;

 private:
  friend class MutatingBackend;
  void saw(const Site& site);
  void saw_group(const std::string& name, const std::vector<int>& ranks);
  // The members of `rank`'s group after the exchange of places.
  std::vector<int> exchanged(int rank) const;

  Site site_;
  Fault fault_ = Fault::kNone;
  mutable std::mutex mutex_;
  std::set<Site> sites_;
  std::map<std::string, std::set<std::vector<int>>> groups_;
};

}  // namespace lockstep::exact
