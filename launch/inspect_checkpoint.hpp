#pragma once
// What a model or checkpoint holds and who wrote it, as one JSON object, for `coppice inspect`; and
// what its comparison of two files shares with it.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace coppice {

struct CheckpointDetails {
  bool tensors = false;  ///< list them, with their norms: reads every value
  bool verify = false;   ///< compare every value with its checksum first
};

/// Memory    a block of a few MiB
/// Errors    DataError with every problem of the file; with `verify` also where it has no checksums
nlohmann::ordered_json describe_checkpoint(const std::filesystem::path& path,
                                           CheckpointDetails details);

/// Rows [begin, begin + count) (axis 0) of a tensor, whatever its type.
std::vector<double> rows_in_f64(const CheckpointReader& reader, const StoredTensor& tensor,
                                std::int64_t begin, std::int64_t count);

nlohmann::ordered_json shape_in_json(const StoredTensor& tensor);

}  // namespace coppice
