#pragma once
// How two models or checkpoints differ, tensor by tensor, as one JSON object, for `coppice inspect
// --diff`.
#include <filesystem>
#include <nlohmann/json.hpp>

namespace coppice {

/// Values are compared as f64, so that types may differ. Of a tensor's elements a and b: the
/// largest |a - b|, and the largest |a - b| / max(|a|, |b|). Equal infinities and two NaNs do not
/// differ; an element of which only one is finite, or a number, counts in `not_comparable` alone.
///
/// Memory    a block of a few MiB of each file
/// Errors    DataError with every problem of both files, wrong checksums too
nlohmann::ordered_json describe_difference(const std::filesystem::path& a,
                                           const std::filesystem::path& b);

}  // namespace coppice
