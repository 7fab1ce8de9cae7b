// Mesh: the one place that orders ranks. A rank's coordinates follow from its number, fastest axis first:
// tp, cp, shard, dp, pp. So with tp=2, dp=3 ranks 0 and 1 are one tensor-parallel pair, and 0, 2, 4 one data group.
//
// A Mesh is an immutable value without communication; safe to share between threads. subgroup() is collective.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::parallel {

enum class Axis { kTp = 0, kCp = 1, kShard = 2, kDp = 3, kPp = 4 };  // numbered from the fastest to the slowest
inline constexpr int kAxes = 5;
const char* to_string(Axis axis);

struct AxisSizes {
  int pp = 1;
  int dp = 1;
  int shard = 1;
  int cp = 1;
  int tp = 1;
};

// A set of axes: AxisSet{Axis::kDp, Axis::kShard}.
class AxisSet {
 public:
  AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= 1u << static_cast<int>(axis);
  }
  bool contains(Axis axis) const { return (bits_ >> static_cast<int>(axis)) & 1u; }
  std::string to_string() const;  // "shard+dp", fastest first

 private:
  unsigned bits_ = 0;
};

// All ranks that see different samples of one batch; gradients are summed over them.
inline const AxisSet kDataAxes{Axis::kShard, Axis::kDp};
// All ranks that hold the same weights of a stage before sharding (the cp ranks share weights).
inline const AxisSet kReplicaAxes{Axis::kCp, Axis::kShard, Axis::kDp};

using Coordinates = std::array<int, kAxes>;  // indexed by static_cast<int>(Axis)

class Mesh {
 public:
  // Throws bad_input when a size is below 1 or the product does not fit an int.
  explicit Mesh(const AxisSizes& sizes);

  int world_size() const { return world_size_; }
  int size(Axis axis) const { return sizes_[static_cast<int>(axis)]; }
  int size(const AxisSet& axes) const;  // product

  Coordinates coordinates(int rank) const;
  int coordinate(int rank, Axis axis) const { return coordinates(rank)[static_cast<int>(axis)]; }
  int rank(const Coordinates& coordinates) const;

  // The ranks that differ from `rank` only in `axes`, ascending, `rank` included.
  std::vector<int> group(int rank, const AxisSet& axes) const;
  // Every such group, ordered by first rank; each rank is in exactly one.
  std::vector<std::vector<int>> groups(const AxisSet& axes) const;

  // The communicator of group(world.rank(), axes). Every rank of `world` must call it with the same axes in the same
  // order; world.size() must equal world_size().
  comm::Communicator subgroup(comm::Communicator& world, const AxisSet& axes) const;

 private:
  std::array<int, kAxes> sizes_{};
  int world_size_ = 1;
};

}  // namespace lockstep::parallel
