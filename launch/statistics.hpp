#pragma once
// What repetitions of a figure come to, and how far two figures are apart: once, so that table.csv
// and the reports of a study agree.
#include <optional>
#include <vector>

namespace coppice {

/// The middle value; of an even number the mean of the two. Nothing where there is none.
std::optional<double> median(std::vector<double> values);

/// |a - b| / max(|a|, |b|, least); 0 where all three are. Nothing where a or b is absent.
std::optional<double> relative_difference(std::optional<double> a, std::optional<double> b,
                                          double least = 0);

/// a / b; nothing where either is absent or b is 0.
std::optional<double> quotient(std::optional<double> a, std::optional<double> b);

}  // namespace coppice
