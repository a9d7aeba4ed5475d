// Damaged safetensors: cuts at every 4 KiB, 2,000 flips of a header and of an index. A file is
// refused with its name, or every tensor still lies where it did; no block is larger than the file.
// Seen red: the header's length believed; no tiling check.
#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <optional>

#include "checkpoint/safetensors.hpp"
#include "core/error.hpp"
#include "support/allocation_watch.hpp"
#include "support/damaged_file.hpp"

namespace coppice {
namespace {

using test::DamagedFile;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using testing::HasSubstr;

// What reading asks for beside the file's bytes; JSON in memory is some times its text.
constexpr std::size_t kSmallBlocks = 64 << 10;

// A file of `count` tensors [rows, 3] in turns of f32 and bf16, their bytes counted up.
std::string file_of(int count, int rows, const std::string& prefix) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (int i = 0; i < count; ++i) {
    const int width = i % 2 == 0 ? 4 : 2;
    const auto begin = data.size();
    for (int k = 0; k < rows * 3 * width; ++k) data += static_cast<char>(begin + k * 7);
    header += fmt::format(R"(,"{}.{}.weight":{{"dtype":"{}","shape":[{},3],)"
                          R"("data_offsets":[{},{}]}})",
                          prefix, i, width == 4 ? "F32" : "BF16", rows, begin, data.size());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header + data;
}

std::string contents(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  std::string bytes(static_cast<std::size_t>(entry.bytes), '\0');
  file.read(entry, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Types, shapes, places and bytes of all tensors.
std::vector<std::string> tensors_of_file(const std::filesystem::path& path) {
  std::vector<std::string> tensors;
  const SafetensorsFile file(path);
  for (const auto& entry : file.entries())
    tensors.push_back(fmt::format("{} {} {} {}", entry.dtype, entry.shape_string(), entry.begin,
                                  contents(file, entry)));
  return tensors;
}

// What `load` gives; nothing where it refuses, naming `name`.
template <class Load>
auto unless_refused(const std::string& name, std::size_t bytes, const Load& load)
    -> std::optional<decltype(load())> {
  test::forget_allocations();
  std::optional<decltype(load())> loaded;
  try {
    loaded = load();
  } catch (const DataError& error) {
    for (const auto& line : error.problems()) EXPECT_THAT(line, HasSubstr(name));
  }
  EXPECT_LE(test::largest_allocation(), bytes + kSmallBlocks);
  return loaded;
}

TEST(SafetensorsDamage, OfAHeaderIsRefusedOrMovesNothing) {
  const TemporaryDirectory directory;
  const auto path = directory / "x.safetensors";
  const std::string bytes = file_of(20, 50, "layers");
  write_file(path, bytes);
  const DamagedFile file(path);
  const auto load = [&] {
    return unless_refused("x.safetensors", bytes.size(), [&] { return tensors_of_file(path); });
  };
  const auto whole = load();
  ASSERT_TRUE(whole && whole->size() == 20);
  ASSERT_GT(bytes.size(), 2 * 4096u);
  file.for_each_cut([&](std::size_t length) { EXPECT_FALSE(load()) << length; });
  for (std::size_t length = 0; length < 100; ++length)
    file.with_length(length, [&] { EXPECT_FALSE(load()) << length; });
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  int refused = 0;
  const auto try_flip = [&](std::size_t bit) {
    const auto damaged = load();
    EXPECT_TRUE(!damaged || *damaged == *whole) << bit;
    refused += damaged ? 0 : 1;
  };
  for (std::size_t bit = 0; bit < 64; ++bit)  // the header's length
    file.with_flip(bit, [&] { try_flip(bit); });
  EXPECT_EQ(refused, 64);
  file.for_random_flips(2000, 8 + header, try_flip);
  EXPECT_GT(refused, 64 + 1000);
  EXPECT_LT(refused, 64 + 2000) << "a name has no checksum";
  write_file(directory / "x.safetensors", bytes + "x");
  EXPECT_FALSE(load());
}

TEST(SafetensorsDamage, OfAnIndexIsRefusedOrChangesNothing) {
  const TemporaryDirectory directory;
  std::string map;
  for (int shard = 0; shard < 4; ++shard) {
    const std::string name = fmt::format("model-{}.safetensors", shard);
    write_file(directory / name, file_of(30, 1, fmt::format("part{}", shard)));
    for (int i = 0; i < 30; ++i)
      map += fmt::format("{}\n    \"part{}.{}.weight\": \"{}\"", map.empty() ? "" : ",", shard, i,
                         name);
  }
  const auto path = directory / "model.safetensors.index.json";
  write_file(path, "{\"metadata\": {\"total_size\": 2160}, \"weight_map\": {" + map + "}}");
  const DamagedFile index(path);
  ASSERT_GT(index.whole().size(), 4096u);
  const auto load = [&] {
    return unless_refused(directory.path().string(), index.whole().size(), [&] {
      std::map<std::string, std::string> tensors;
      const SafetensorsModel model(directory.path());
      for (const auto& [name, source] : model.tensors())
        tensors[name] = contents(*source.file, *source.entry);
      return tensors;
    });
  };
  const auto whole = load();
  ASSERT_TRUE(whole && whole->size() == 120);
  index.for_each_cut([&](std::size_t length) { EXPECT_FALSE(load()) << length; });
  int refused = 0;
  index.for_random_flips(2000, index.whole().size(), [&](std::size_t bit) {
    const auto damaged = load();
    EXPECT_TRUE(!damaged || *damaged == *whole) << bit;
    refused += damaged ? 0 : 1;
  });
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace coppice
