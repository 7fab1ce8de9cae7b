#include "lockstep/tune/models/linear_algebra.h"

#include <cmath>

namespace lockstep::tune {
namespace {

double dot(const double* a, const double* b, std::size_t n) {
  double sums[4] = {0, 0, 0, 0};  // four chains, so that the additions overlap
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (std::size_t lane = 0; lane < 4; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

bool cholesky_in_place(Matrix& m) {
  const std::size_t n = m.size;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) m(i, j) = (m(i, j) - dot(m.row(i), m.row(j), j)) / m(j, j);
    const double pivot = m(i, i) - dot(m.row(i), m.row(i), i);
    if (!(pivot > 0) || !std::isfinite(pivot)) return false;
    m(i, i) = std::sqrt(pivot);
    for (std::size_t j = i + 1; j < n; ++j) m(i, j) = 0;
  }
  return true;
}

void solve_lower(const Matrix& factor, std::span<double> b) {
  for (std::size_t i = 0; i < factor.size; ++i) b[i] = (b[i] - dot(factor.row(i), b.data(), i)) / factor(i, i);
}

void solve_cholesky(const Matrix& factor, std::span<double> b) {
  solve_lower(factor, b);
  for (std::size_t i = factor.size; i-- > 0;) {
    b[i] /= factor(i, i);
    for (std::size_t j = 0; j < i; ++j) b[j] -= factor(i, j) * b[i];
  }
}

Matrix inverse_from_cholesky(const Matrix& factor) {
  const std::size_t n = factor.size;
  // Rows of `upper` are the columns of inverse(L), so that the product below runs along rows.
  Matrix upper(n);
  for (std::size_t j = 0; j < n; ++j) {
    double* column = upper.row(j);
    column[j] = 1.0 / factor(j, j);
    for (std::size_t i = j + 1; i < n; ++i) column[i] = -dot(factor.row(i) + j, column + j, i - j) / factor(i, i);
  }
  Matrix inverse(n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      const double value = dot(upper.row(i) + i, upper.row(j) + i, n - i);
      inverse(i, j) = value;
      inverse(j, i) = value;
    }
  return inverse;
}

double log_determinant_from_cholesky(const Matrix& factor) {
  double sum = 0;
  for (std::size_t i = 0; i < factor.size; ++i) sum += std::log(factor(i, i));
  return 2 * sum;
}

}  // namespace lockstep::tune
