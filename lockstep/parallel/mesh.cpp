#include "lockstep/parallel/mesh.h"

#include <limits>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/error.h"

namespace lockstep::parallel {

const char* to_string(Axis axis) { return named<Axis::kPp>(axis, "tp", "cp", "shard", "dp", "pp"); }

std::string AxisSet::to_string() const {
  std::string text;
  for (int i = 0; i < kAxes; ++i) {
    if (!contains(static_cast<Axis>(i))) continue;
    if (!text.empty()) text += "+";
    text += parallel::to_string(static_cast<Axis>(i));
  }
  return text;
}

Mesh::Mesh(const AxisSizes& sizes) : sizes_{sizes.tp, sizes.cp, sizes.shard, sizes.dp, sizes.pp} {
  std::int64_t product = 1;
  for (int i = 0; i < kAxes; ++i) {
    const std::string name = parallel::to_string(static_cast<Axis>(i));
    if (sizes_[i] < 1) {
      throw bad_input("layout axis " + name + " is " + std::to_string(sizes_[i]),
                      "give every axis a size of at least 1");
    }
    product *= sizes_[i];
    if (product > std::numeric_limits<int>::max()) {
      throw bad_input("the layout has more ranks than can be counted", "make the axes smaller");
    }
  }
  world_size_ = static_cast<int>(product);
}

int Mesh::size(const AxisSet& axes) const {
  int product = 1;
  for (int i = 0; i < kAxes; ++i) {
    if (axes.contains(static_cast<Axis>(i))) product *= sizes_[i];
  }
  return product;
}

Coordinates Mesh::coordinates(int rank) const {
  LOCKSTEP_ASSERT(rank >= 0 && rank < world_size_, "rank outside the mesh");
  Coordinates result{};
  for (int i = 0; i < kAxes; ++i) {
    result[i] = rank % sizes_[i];
    rank /= sizes_[i];
  }
  return result;
}

int Mesh::rank(const Coordinates& coordinates) const {
  int result = 0;
  for (int i = kAxes - 1; i >= 0; --i) {
    LOCKSTEP_ASSERT(coordinates[i] >= 0 && coordinates[i] < sizes_[i], "coordinate outside the mesh");
    result = result * sizes_[i] + coordinates[i];
  }
  return result;
}

std::vector<int> Mesh::group(int rank, const AxisSet& axes) const {
  Coordinates at = coordinates(rank);
  for (int i = 0; i < kAxes; ++i) {
    if (axes.contains(static_cast<Axis>(i))) at[i] = 0;
  }
  // Counting the members with the fastest axis first gives ascending ranks.
  std::vector<int> members;
  for (int member = 0; member < size(axes); ++member) {
    int rest = member;
    for (int i = 0; i < kAxes; ++i) {
      if (!axes.contains(static_cast<Axis>(i))) continue;
      at[i] = rest % sizes_[i];
      rest /= sizes_[i];
    }
    members.push_back(this->rank(at));
  }
  return members;
}

std::vector<std::vector<int>> Mesh::groups(const AxisSet& axes) const {
  std::vector<std::vector<int>> result;
  for (int rank = 0; rank < world_size_; ++rank) {
    std::vector<int> members = group(rank, axes);
    if (members.front() == rank) result.push_back(std::move(members));
  }
  return result;
}

comm::Communicator Mesh::subgroup(comm::Communicator& world, const AxisSet& axes) const {
  LOCKSTEP_ASSERT(world.size() == world_size_, "the communicator and the mesh have different numbers of ranks");
  return world.subgroup(group(world.rank(), axes), axes.to_string());
}

}  // namespace lockstep::parallel
