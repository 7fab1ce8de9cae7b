#include "lockstep/kernels/parallel_blocks.h"

#include <ATen/Parallel.h>

namespace lockstep::kernels {

void parallel_blocks(std::int64_t blocks, const std::function<void(std::int64_t)>& body) {
  at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) body(block);
  });
}

}  // namespace lockstep::kernels
