#include "launch/fingerprints.hpp"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "core/error.hpp"

namespace coppice {

Fingerprint fingerprint_of_text(std::string what, std::string_view text) {
  return {std::move(what), XXH3_64bits(text.data(), text.size())};
}

Fingerprint fingerprint_of_file(std::string what, const std::filesystem::path& path) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::ifstream file(path, std::ios::binary);
  std::vector<char> block(1 << 20);
  while (file) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    XXH3_64bits_update(state.get(), block.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof())
    throw IoError(fmt::format("{} cannot be read: {}.", path.string(), std::strerror(errno)));
  return {std::move(what), XXH3_64bits_digest(state.get())};
}

Fingerprint fingerprint_of_model(std::string what, const CheckpointReader& reader) {
  const CheckpointHeader& header = reader.header();
  std::string text = fmt::format("{} {}\n{}\n{}\n", header.step, header.optimizer_step,
                                 header.model_config_json, header.trainer_json);
  bool checksums = true;
  for (const StoredTensor& tensor : reader.tensors()) {
    text += fmt::format("{} {} [{}] {:x}\n", tensor.dataset, name_of(tensor.dtype),
                        fmt::join(tensor.shape.extents(), ", "), tensor.checksum.value_or(0));
    checksums = checksums && tensor.checksum.has_value();
  }
  if (!checksums) text += fmt::format("{} bytes", std::filesystem::file_size(reader.path()));
  return fingerprint_of_text(std::move(what), text);
}

}  // namespace coppice
