#include "lockstep/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

template <typename T>
LOCKSTEP_INLINE CrossEntropyRows rows_of(T* logits, const std::int64_t* targets, std::int64_t ignored,
                                         bool write_gradient, std::int64_t rows, std::int64_t classes) {
  CrossEntropyRows result;
  for (std::int64_t r = 0; r < rows; ++r, logits += classes) {
    const std::int64_t target = targets[r];
    if (target == ignored) {
      if (write_gradient) std::fill(logits, logits + classes, T(0));
      continue;
    }
    const T highest = row_max(logits, classes);
    const T at_target = logits[target];
    result.correct += at_target == highest && std::find(logits, logits + target, highest) == logits + target;
    const T sum = exponentiate(logits, highest, classes);
    result.loss_sum += std::log(static_cast<double>(sum)) + (static_cast<double>(highest) - at_target);
    ++result.count;
    if (!write_gradient) continue;
    const T inverse = T(1) / sum;
#pragma omp simd
    for (std::int64_t c = 0; c < classes; ++c) logits[c] *= inverse;
    logits[target] -= T(1);
  }
  return result;
}

}  // namespace

LOCKSTEP_MULTIVERSION CrossEntropyRows cross_entropy_rows(float* logits, const std::int64_t* targets,
                                                          std::int64_t ignored, bool write_gradient, std::int64_t rows,
                                                          std::int64_t classes) {
  return rows_of(logits, targets, ignored, write_gradient, rows, classes);
}

LOCKSTEP_MULTIVERSION CrossEntropyRows cross_entropy_rows(double* logits, const std::int64_t* targets,
                                                          std::int64_t ignored, bool write_gradient, std::int64_t rows,
                                                          std::int64_t classes) {
  return rows_of(logits, targets, ignored, write_gradient, rows, classes);
}

}  // namespace lockstep::kernels
