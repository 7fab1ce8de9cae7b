#include "lockstep/parallel/same_parameters.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

std::string describe(const nn::DeclaredParameter& parameter) {
  std::string text = parameter.name + " [";
  for (std::int64_t i = 0; i < parameter.tensor.dim(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(parameter.tensor.size(i));
  }
  return text + "] " + c10::toString(parameter.tensor.scalar_type());
}

// FNV-1a, chained. Not std::hash: that may differ between builds.
std::uint64_t hash_of(const std::string& text, std::uint64_t hash = 0xcbf29ce484222325u) {
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3u;
  return (hash ^ 0xffu) * 0x100000001b3u;  // so that "a","bc" differs from "ab","c"
}

// True on every rank when all ranks hold the same value at every index; else `first` is the first index that differs.
bool all_equal(const std::vector<std::int64_t>& values, comm::Communicator& group, std::size_t* first) {
  std::vector<std::int64_t> lowest = values;
  std::vector<std::int64_t> highest = values;
  const std::int64_t count = static_cast<std::int64_t>(values.size());
  group.all_reduce({lowest.data(), count, comm::DType::kI64}, comm::ReduceOp::kMin).wait();
  group.all_reduce({highest.data(), count, comm::DType::kI64}, comm::ReduceOp::kMax).wait();
  const auto differs = std::mismatch(lowest.begin(), lowest.end(), highest.begin()).first;
  *first = static_cast<std::size_t>(differs - lowest.begin());
  return differs == lowest.end();
}

constexpr std::int64_t kDescriptionBytes = 256;

[[noreturn]] void report_difference(const std::vector<nn::DeclaredParameter>& parameters, comm::Communicator& group,
                                    std::size_t index) {
  const std::string mine = index < parameters.size() ? describe(parameters[index]) : std::string("absent");
  std::vector<char> own(kDescriptionBytes, 0);
  std::memcpy(own.data(), mine.data(), std::min<std::size_t>(mine.size(), kDescriptionBytes - 1));
  std::vector<char> all(static_cast<std::size_t>(kDescriptionBytes * group.size()), 0);
  group
      .all_gather({own.data(), kDescriptionBytes, comm::DType::kU8},
                  {all.data(), static_cast<std::int64_t>(all.size()), comm::DType::kU8})
      .wait();
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::string theirs = all.data() + rank * kDescriptionBytes;
    if (theirs == all.data()) continue;
    throw bad_input("ranks " + std::to_string(group.global_rank(0)) + " and " +
                        std::to_string(group.global_rank(rank)) + " hold different models: parameter " +
                        std::to_string(index) + " is " + all.data() + " and " + theirs,
                    "start every rank with the same job and the same version");
  }
  throw bad_input("ranks hold different models, beginning with parameter " + std::to_string(index) + " (" + mine + ")",
                  "start every rank with the same job and the same version");
}

}  // namespace

void check_same_parameters(const std::vector<nn::DeclaredParameter>& parameters, comm::Communicator& group) {
  std::vector<std::int64_t> hashes;
  std::uint64_t chained = 0;
  for (const nn::DeclaredParameter& parameter : parameters) {
    const std::string text = describe(parameter);
    hashes.push_back(static_cast<std::int64_t>(hash_of(text)));
    chained = hash_of(text, chained);
  }
  std::size_t first = 0;
  const std::int64_t count = static_cast<std::int64_t>(hashes.size());
  // One small exchange in the good case; the list only when something differs.
  if (all_equal({count, static_cast<std::int64_t>(chained)}, group, &first)) return;
  std::int64_t longest = count;
  group.all_reduce({&longest, 1, comm::DType::kI64}, comm::ReduceOp::kMax).wait();
  hashes.resize(static_cast<std::size_t>(longest), 0);
  all_equal(hashes, group, &first);
  report_difference(parameters, group, first);
}

}  // namespace lockstep::parallel
