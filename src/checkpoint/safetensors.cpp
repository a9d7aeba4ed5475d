// Reading one safetensors file: 8 bytes with the header's length, the header (JSON), the tensors.
#include "checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <system_error>

#include "checkpoint/strict_json.hpp"
#include "core/error.hpp"

namespace coppice {
namespace {

using Json = nlohmann::ordered_json;
static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

// The limit of Hugging Face's own reader.
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;

struct StoredType {
  std::string_view name;
  std::int64_t bits;
};
constexpr StoredType kStoredTypes[] = {
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"U16", 16}, {"I16", 16}, {"F16", 16},    {"BF16", 16},
    {"U32", 32},    {"I32", 32}, {"F32", 32}, {"U64", 64},    {"I64", 64},
    {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

// A whole number that a file may give: not negative, and safe to compute with.
std::optional<std::int64_t> whole_number(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

// Bytes of a tensor; nothing when they are no whole number or overflow.
std::optional<std::int64_t> byte_count(const std::vector<std::int64_t>& shape, std::int64_t bits) {
  std::int64_t total = bits;
  for (std::int64_t extent : shape) {
    if (__builtin_mul_overflow(total, extent, &total)) return std::nullopt;
  }
  return total % 8 == 0 ? std::optional(total / 8) : std::nullopt;
}

std::int64_t read_at(int descriptor, std::int64_t offset, std::byte* target, std::int64_t count,
                     const std::filesystem::path& path) {
  std::int64_t done = 0;
  while (done < count) {
    const ssize_t n =
        pread(descriptor, target + done, static_cast<std::size_t>(count - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw IoError(fmt::format("{}: cannot be read: {}.", path.string(),
                                std::generic_category().message(errno)));
    }
    if (n == 0) break;
    done += n;
  }
  return done;
}

// One entry of the header; `place` names file and tensor. Its bounds are relative to the data here.
std::optional<SafetensorsEntry> parse_entry(const std::string& name, const Json& value,
                                            std::int64_t data_bytes, const std::string& place,
                                            Problems& problems) {
  if (!value.is_object()) {
    problems.add("{}: its entry in the header is no object.", place);
    return std::nullopt;
  }
  SafetensorsEntry entry{.name = name, .dtype = {}, .shape = {}};
  std::int64_t bits = 0;
  const auto before = problems.lines().size();
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      problems.add("{}: unknown key \"{}\" in the header.", place, key);
    }
  }
  if (!value.contains("dtype") || !value["dtype"].is_string()) {
    problems.add("{}: dtype is missing or no string.", place);
  } else {
    entry.dtype = value["dtype"].get<std::string>();
    const auto* type = std::ranges::find(kStoredTypes, entry.dtype, &StoredType::name);
    if (type == std::end(kStoredTypes)) {
      problems.add("{}: unknown dtype \"{}\".", place, entry.dtype);
    } else {
      bits = type->bits;
    }
  }
  if (!value.contains("shape") || !value["shape"].is_array()) {
    problems.add("{}: shape is missing or no array.", place);
  } else {
    for (const Json& extent : value["shape"]) {
      const auto number = whole_number(extent);
      if (!number) problems.add("{}: shape holds {} (not a size).", place, extent.dump());
      entry.shape.push_back(number.value_or(0));
    }
  }
  const Json offsets = value.value("data_offsets", Json());
  const bool pair = offsets.is_array() && offsets.size() == 2;
  const auto begin = pair ? whole_number(offsets[0]) : std::nullopt;
  const auto end = pair ? whole_number(offsets[1]) : std::nullopt;
  if (!begin || !end || *begin > *end) {
    problems.add("{}: data_offsets must be two sizes, the first not above the second.", place);
  } else if (*end > data_bytes) {
    problems.add(
        "{}: its data end at byte {} of {} (the file is truncated, or the header is wrong).", place,
        *end, data_bytes);
  }
  if (problems.lines().size() != before) return std::nullopt;
  entry.begin = *begin;
  entry.bytes = *end - *begin;
  if (byte_count(entry.shape, bits) != entry.bytes) {
    problems.add("{}: {} of {} does not fill its {} bytes.", place, entry.shape_string(),
                 entry.dtype, entry.bytes);
    return std::nullopt;
  }
  return entry;
}

// Tensors must follow each other without hole or overlap, from the first byte to the last.
void check_tiling(const std::vector<SafetensorsEntry>& entries, std::int64_t data_bytes,
                  const std::string& file, Problems& problems) {
  std::int64_t end = 0;
  for (const auto& entry : entries) {
    if (entry.begin < end) {
      problems.add("{}: tensor \"{}\" overlaps the tensor before it.", file, entry.name);
    } else if (entry.begin > end) {
      problems.add("{}: {} bytes before tensor \"{}\" belong to no tensor.", file,
                   entry.begin - end, entry.name);
    }
    end = std::max(end, entry.begin + entry.bytes);
  }
  if (end < data_bytes) {
    problems.add("{}: the last {} bytes belong to no tensor.", file, data_bytes - end);
  }
}

void check_metadata(const Json& metadata, const std::string& file, Problems& problems) {
  if (!metadata.is_object()) {
    problems.add("{}: __metadata__ is no object.", file);
    return;
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) problems.add("{}: __metadata__ \"{}\" is no string.", file, key);
  }
}

std::string read_header(int descriptor, const std::filesystem::path& path,
                        std::int64_t file_bytes) {
  const std::string file = path.string();
  std::uint64_t length = 0;
  if (file_bytes < 8) {
    throw DataError(
        {fmt::format("{}: {} bytes are too few for a safetensors file.", file, file_bytes)});
  }
  read_at(descriptor, 0, reinterpret_cast<std::byte*>(&length), 8, path);
  if (length > static_cast<std::uint64_t>(std::min(file_bytes - 8, kMaxHeaderBytes))) {
    throw DataError({fmt::format(
        "{}: a header of {} bytes does not fit its {} bytes (truncated, or no safetensors file).",
        file, length, file_bytes)});
  }
  std::string header(length, '\0');
  const auto bytes = static_cast<std::int64_t>(length);
  if (read_at(descriptor, 8, reinterpret_cast<std::byte*>(header.data()), bytes, path) != bytes) {
    throw IoError(fmt::format("{}: shrank while it was read.", file));
  }
  return header;
}

}  // namespace

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  if (name == "F32") return DType::kF32;
  if (name == "F64") return DType::kF64;
  if (name == "BF16") return DType::kBF16;
  if (name == "F16") return DType::kF16;
  return std::nullopt;
}

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF64:
      return "F64";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    default:
      COPPICE_CHECK(false, "no weight has the type {}", name_of(dtype));
  }
  return {};
}

std::string SafetensorsEntry::shape_string() const {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  const std::string file = path_.string();
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would wait
  if (descriptor_ < 0) {
    throw DataError(
        {fmt::format("{}: cannot be opened: {}.", file, std::generic_category().message(errno))});
  }
  try {
    struct stat status {};
    if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      throw DataError({fmt::format("{}: is no regular file.", file)});
    }
    file_bytes_ = status.st_size;
    const std::string header = read_header(descriptor_, path_, file_bytes_);
    const auto data_begin = static_cast<std::int64_t>(8 + header.size());
    const std::int64_t data_bytes = file_bytes_ - data_begin;
    Problems problems;
    const auto json = parse_strict_json(header, fmt::format("{}: header", file), problems);
    if (json && !json->is_object()) problems.add("{}: the header is no JSON object.", file);
    if (json && json->is_object()) {
      for (const auto& [name, value] : json->items()) {
        if (name == "__metadata__") {
          check_metadata(value, file, problems);
          continue;
        }
        auto entry = parse_entry(name, value, data_bytes,
                                 fmt::format("{}: tensor \"{}\"", file, name), problems);
        if (entry) entries_.push_back(std::move(*entry));
      }
      std::ranges::stable_sort(entries_, [](const auto& a, const auto& b) {
        return std::pair(a.begin, a.begin + a.bytes) < std::pair(b.begin, b.begin + b.bytes);
      });
      // With an entry refused, holes would only repeat that.
      if (problems.empty()) check_tiling(entries_, data_bytes, file, problems);
    }
    problems.throw_if_any<DataError>();
    for (auto& entry : entries_) entry.begin += data_begin;
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      file_bytes_(other.file_bytes_),
      entries_(std::move(other.entries_)) {}

std::string SafetensorsFile::identity() const {
  struct stat status {};
  if (fstat(descriptor_, &status) != 0)
    throw IoError(fmt::format("{}: cannot be read: {}.", path_.string(),
                              std::generic_category().message(errno)));
  return fmt::format("{} {} {} {}.{}", status.st_dev, status.st_ino, status.st_size,
                     status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::int64_t offset,
                           std::span<std::byte> target) const {
  COPPICE_CHECK(offset >= 0 && offset + std::ssize(target) <= entry.bytes,
                "bytes {} to {} of a tensor of {} bytes", offset, offset + std::ssize(target),
                entry.bytes);
  if (read_at(descriptor_, entry.begin + offset, target.data(), std::ssize(target), path_) !=
      std::ssize(target)) {
    throw IoError(fmt::format("{}: shrank while it was read.", path_.string()));
  }
}

}  // namespace coppice
