// Dense symmetric systems of the size of a study (tens to a few hundred trials).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::tune {

// Square matrix, row by row.
struct Matrix {
  explicit Matrix(std::size_t n = 0) : size(n), values(n * n, 0.0) {}
  double& operator()(std::size_t row, std::size_t column) { return values[row * size + column]; }
  double operator()(std::size_t row, std::size_t column) const { return values[row * size + column]; }
  const double* row(std::size_t index) const { return values.data() + index * size; }
  double* row(std::size_t index) { return values.data() + index * size; }

  std::size_t size;
  std::vector<double> values;
};

// The lower Cholesky factor of a positive definite matrix; false when it is not (then `matrix` is spoilt).
bool cholesky_in_place(Matrix& matrix);

// Solve L x = b, then (both) L L' x = b, in place.
void solve_lower(const Matrix& factor, std::span<double> b);
void solve_cholesky(const Matrix& factor, std::span<double> b);

// The inverse of L L'.
Matrix inverse_from_cholesky(const Matrix& factor);

double log_determinant_from_cholesky(const Matrix& factor);

}  // namespace lockstep::tune
