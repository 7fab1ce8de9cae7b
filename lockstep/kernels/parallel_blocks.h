// The one door to libtorch's intra-op threads. at::parallel_for is a header template that silently runs serially unless
// the including file is compiled with OpenMP; only parallel_blocks.cpp is.
#pragma once

#include <cstdint>
#include <functional>

namespace lockstep::kernels {

// Calls body(block) once for every block in [0, blocks), spread over at::get_num_threads() threads; returns when all
// are done. Inside a parallel region it runs serially. The first exception of a body is rethrown.
void parallel_blocks(std::int64_t blocks, const std::function<void(std::int64_t)>& body);

}  // namespace lockstep::kernels
