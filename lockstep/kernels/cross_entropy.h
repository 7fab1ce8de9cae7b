// Softmax cross-entropy over rows of logits [rows, classes], in place. Serial, the caller splits rows over threads.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

struct CrossEntropyRows {
  double loss_sum = 0;       // sum over counted rows of log(sum(exp(row))) - row[target]
  std::int64_t count = 0;    // rows whose target is not `ignored`
  std::int64_t correct = 0;  // rows whose first largest logit is the target's
};

// targets[i] is in [0, classes) or equals `ignored` (the caller has checked). With `write_gradient` the logits are
// overwritten by d(loss_sum)/d(logits) = softmax - one_hot, rows that are ignored by 0; otherwise by scratch values.
CrossEntropyRows cross_entropy_rows(float* logits, const std::int64_t* targets, std::int64_t ignored,
                                    bool write_gradient, std::int64_t rows, std::int64_t classes);
CrossEntropyRows cross_entropy_rows(double* logits, const std::int64_t* targets, std::int64_t ignored,
                                    bool write_gradient, std::int64_t rows, std::int64_t classes);

}  // namespace lockstep::kernels
