#include "lockstep/cost/links.h"

#include <numeric>

namespace lockstep::cost {

GroupPlacement place_anywhere(std::int64_t ranks, std::int64_t stride, std::int64_t devices, std::int64_t first_rank,
                              std::int64_t end_rank) {
  GroupPlacement worst{.ranks = ranks, .per_node = ranks, .nodes = 1};
  const std::int64_t block = ranks * stride;
  const std::int64_t first_block = (first_rank + block - 1) / block;
  const std::int64_t blocks = end_rank / block - first_block;
  const std::int64_t different = devices / std::gcd(block, devices);
  for (std::int64_t i = 0; i < std::min(blocks, different); ++i) {
    const std::int64_t offset = ((first_block + i) * block - first_rank) % devices;
    // Members of the first and of the last group of the block, by node.
    for (const std::int64_t member : {offset, offset + stride - 1}) {
      const std::int64_t last = member + (ranks - 1) * stride;
      const std::int64_t nodes = last / devices - member / devices + 1;
      const std::int64_t in_first = ((member / devices + 1) * devices - member + stride - 1) / stride;
      const std::int64_t in_last = last % devices / stride + 1;
      const std::int64_t fewest = nodes == 1 ? ranks : std::min({in_first, in_last, ranks});
      worst.nodes = std::max(worst.nodes, std::min(nodes, ranks));
      worst.per_node = std::min(worst.per_node, std::max<std::int64_t>(1, fewest));
    }
  }
  return worst;
}

}  // namespace lockstep::cost
