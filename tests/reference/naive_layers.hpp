#pragma once
// The row-wise ops of a transformer written from their formulas, in double, one element at a time.
// Matrices are row major in plain vectors. Nothing here is shared with the code under test.
#include <cstdint>
#include <vector>

namespace coppice::reference {

using Numbers = std::vector<double>;

struct Norm {
  Numbers y, rstd;
};
struct NormGradients {
  Numbers dx, dgamma;
};
/// Every run of `width` numbers of x is a vector.
Norm rms_norm(const Numbers& x, const Numbers& gamma, double epsilon);
NormGradients rms_norm_gradients(const Numbers& x, const Numbers& gamma, double epsilon,
                                 const Numbers& dy);

/// x [T][H][D] turned by positions[t] * frequencies[i], times `factor`.
Numbers rope(const Numbers& x, std::int64_t heads, std::int64_t width,
             const std::vector<std::int32_t>& positions, const Numbers& frequencies, double factor);

/// gate_up [T][2F] to [T][F].
Numbers swiglu(const Numbers& gate_up, std::int64_t width);
Numbers swiglu_gradient(const Numbers& gate_up, std::int64_t width, const Numbers& d_hidden);

/// y [T][out] = x [T][in] w^T + b; w [out][in]; an empty bias is none.
Numbers linear(const Numbers& x, const Numbers& w, const Numbers& bias, std::int64_t in);
struct LinearGradients {
  Numbers dx, dw, dbias;
};
LinearGradients linear_gradients(const Numbers& x, const Numbers& w, const Numbers& dy,
                                 std::int64_t in);

/// Columns [begin, begin + count) of a matrix with `width` columns.
Numbers columns(const Numbers& x, std::int64_t width, std::int64_t begin, std::int64_t count);
double dot(const Numbers& a, const Numbers& b);

}  // namespace coppice::reference
