#include "launch/fingerprints.hpp"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "core/error.hpp"
#include "launch/host.hpp"
#include "parallel/exchange.hpp"

namespace coppice {
namespace {

// The sum over this member's share of all blocks of a hash of their bytes and their number.
std::uint64_t sum_of_share(const std::vector<HfWeight>& weights, std::int64_t member,
                           std::int64_t members) {
  constexpr std::int64_t kBlock = 1 << 20;
  std::vector<std::byte> bytes;
  std::uint64_t sum = 0;
  std::int64_t number = 0;
  for (const HfWeight& weight : weights)
    for (std::int64_t at = 0; at < weight.source.entry->bytes; at += kBlock, ++number) {
      if (number % members != member) continue;
      bytes.resize(static_cast<std::size_t>(std::min(kBlock, weight.source.entry->bytes - at)));
      weight.source.read(at, bytes);
      sum += XXH3_64bits_withSeed(bytes.data(), bytes.size(), static_cast<XXH64_hash_t>(number));
    }
  return sum;
}

}  // namespace

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
  if (!checksums) text += fmt::format("{:x}", fingerprint_of_file("", reader.path()).hash);
  return fingerprint_of_text(std::move(what), text);
}

Fingerprint fingerprint_of_hf(std::string what, const HfModel& model) {
  std::string text = model.config.json + "\n";
  for (const AttachedFile& file : model.tokenizer)
    text += fmt::format("{} {}\n{}\n", file.name, file.bytes.size(), file.bytes);
  for (const auto& file : model.files.files())
    text += fmt::format("{} {}\n", file->path().filename().string(), file->file_bytes());
  for (const HfWeight& weight : model.weights)
    text += fmt::format("{} {} {} {} {}\n", weight.name, name_of(weight.dtype), weight.shape,
                        weight.source.file->path().filename().string(), weight.source.entry->begin);
  return fingerprint_of_text(std::move(what), text);
}

Fingerprint fingerprint_of_hf_values(std::string what, const HfModel& model, Communicator& world) {
  std::string mine = host_name();
  succeed_together(world, [&] {
    for (const auto& file : model.files.files()) mine += "\n" + file->identity();
  });
  const auto copies = all_gather_texts(world, mine);
  const auto holders = std::ranges::count(copies, mine);
  Fingerprint print{std::move(what), 0};
  if (holders == world.size()) return print;
  // Ranks of one copy agree on `holders`, and no rank returns above unless all do.
  const auto before = std::count(copies.begin(), copies.begin() + world.rank(), mine);
  std::uint64_t sum = 0;
  succeed_together(world, [&] { sum = sum_of_share(model.weights, before, holders); });
  const auto sums =
      all_gather_texts(world, std::string_view(reinterpret_cast<const char*>(&sum), sizeof(sum)));
  for (std::size_t rank = 0; rank < sums.size(); ++rank) {
    if (copies[rank] != mine) continue;
    std::uint64_t share = 0;
    std::memcpy(&share, sums[rank].data(), sizeof(share));
    print.hash += share;
  }
  return print;
}

}  // namespace coppice
