// Replay: when operations begin and end, given how long each takes and what it waits for. Nothing about hardware: the
// durations are measured ones, or what-if ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::sim {

// Operations are numbered 0, 1, ... in the order of add(). Built once, run many times with other durations.
class Replay {
 public:
  std::size_t add();
  std::size_t size() const { return group_.size(); }

  // `operation` begins after `before` has ended.
  void after(std::size_t operation, std::size_t before);
  // They begin together, when all of them can: a send with its receive, the members of a collective.
  void together(std::size_t a, std::size_t b);

  // When each operation ends; the first begin at 0. `seconds` has one duration per operation; `pauses`, where given,
  // how long after the last thing it waits for an operation is ready (one that waits for nothing: after 0). Throws
  // UserError (exit 2) when operations wait for each other in a circle.
  std::vector<double> ends(std::span<const double> seconds, std::span<const double> pauses = {}) const;
  // When the last one ends.
  double length(std::span<const double> seconds, std::span<const double> pauses = {}) const;

  // Given when all operations ended: the last end that each waited for; `from` where it waits for nothing. Who begins
  // together does not count.
  std::vector<double> released(std::span<const double> ends, double from) const;

  // The operations that begin together with `operation`, itself among them.
  std::vector<std::vector<std::size_t>> groups() const;

 private:
  std::size_t root_of(std::size_t operation) const;

  struct Edge {
    std::size_t before = 0;
    std::size_t after = 0;
  };
  mutable std::vector<std::size_t> group_;  // a parent; its own parent: the root of a group
  std::vector<Edge> edges_;
};

}  // namespace lockstep::sim
