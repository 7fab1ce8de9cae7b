// cuda_kernels_test [SEED]: every kernel against an fp64 reference, on fresh random inputs and poisoned outputs.
#include <cstdlib>

#include "tests/kernels/cuda/harness.h"

int main(int argc, char** argv) {
  using namespace lockstep::kernels::cuda::test;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device: skipped\n");
    return 77;
  }
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Harness h(seed);
  try {
    test_norms(h);
    test_rope(h);
    test_swiglu(h);
    test_fused(h);
    test_cross_entropy(h);
    test_embedding(h);
    test_optimizer(h);
    test_fp8(h);
    test_gpt(h);
    test_batch_norm(h);
    test_encoder(h);
    test_flat_optimizer(h);
    LOCKSTEP_CUDA(cudaDeviceSynchronize());
  } catch (const std::exception& e) {
    std::printf("FAILED: %s\n", e.what());
    return 1;
  }
  std::printf("%d checks, %d failed\n", h.checks(), h.failures());
  return h.failures() == 0 ? 0 : 1;
}
