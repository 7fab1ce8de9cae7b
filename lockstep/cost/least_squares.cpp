#include "lockstep/cost/least_squares.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::cost {
namespace {

using Vector = std::vector<double>;
using Function = std::function<Vector(const Vector&)>;

constexpr int kMostSteps = 200;
constexpr double kDifference = 1e-4;
constexpr double kSmallestStep = 1e-10;
constexpr double kLargestDamping = 1e12;

double sum_of_squares(const Vector& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

// Derivatives of every residual, one column per unknown.
std::vector<Vector> derivatives(const Vector& x, const Function& residuals) {
  std::vector<Vector> columns;
  for (std::size_t i = 0; i < x.size(); ++i) {
    Vector above = x, below = x;
    above[i] += kDifference;
    below[i] -= kDifference;
    Vector column = residuals(above);
    const Vector low = residuals(below);
    for (std::size_t row = 0; row < column.size(); ++row) column[row] = (column[row] - low[row]) / (2 * kDifference);
    columns.push_back(std::move(column));
  }
  return columns;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Gaussian elimination; the damped normal matrix is positive definite, so it needs no pivoting.
Vector solve(std::vector<Vector> matrix, Vector right) {
  const std::size_t n = right.size();
  for (std::size_t pivot = 0; pivot < n; ++pivot) {
    for (std::size_t row = pivot + 1; row < n; ++row) {
      const double factor = matrix[row][pivot] / matrix[pivot][pivot];
      for (std::size_t column = pivot; column < n; ++column) matrix[row][column] -= factor * matrix[pivot][column];
      right[row] -= factor * right[pivot];
    }
  }
  for (std::size_t row = n; row-- > 0;) {
    for (std::size_t column = row + 1; column < n; ++column) right[row] -= matrix[row][column] * right[column];
    right[row] /= matrix[row][row];
  }
  return right;
}

}  // namespace

std::vector<double> least_squares(Vector x, const Function& residuals) {
  const std::size_t n = x.size();
  Vector at = residuals(x);
  double damping = 1e-3;
  for (int step = 0; step < kMostSteps; ++step) {
    const std::vector<Vector> columns = derivatives(x, residuals);
    std::vector<Vector> normal(n, Vector(n));
    Vector gradient(n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) normal[i][j] = dot(columns[i], columns[j]);
      gradient[i] = -dot(columns[i], at);
    }
    bool better = false;
    double moved = 0;
    while (!better && damping < kLargestDamping) {
      std::vector<Vector> damped = normal;
      for (std::size_t i = 0; i < n; ++i) damped[i][i] += damping * std::max(normal[i][i], 1e-12);
      const Vector change = solve(std::move(damped), gradient);
      Vector candidate = x;
      for (std::size_t i = 0; i < n; ++i) candidate[i] += change[i];
      Vector there = residuals(candidate);
      better = sum_of_squares(there) < sum_of_squares(at);
      if (better) {
        moved = std::sqrt(sum_of_squares(change));
        x = std::move(candidate);
        at = std::move(there);
      }
      damping = better ? damping / 5 : damping * 4;
    }
    if (!better || moved < kSmallestStep) break;
    damping = std::max(damping, 1e-9);
  }
  return x;
}

}  // namespace lockstep::cost
