// Reading the rows of a dataset. One that lies in its file as a plain run of elements, as ours do,
// is read with the system's calls: the library would fetch every row of a narrow rectangle through
// a small buffer of its own. All others go through the library.
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "checkpoint/hdf5_file.hpp"
#include "checkpoint/hdf5_handle.hpp"
#include "checkpoint/rectangle_bytes.hpp"
#include "core/error.hpp"

namespace coppice {

using hdf5::Handle;

struct Hdf5Rectangle::State {
  std::filesystem::path shown;
  std::string dataset;
  Handle opened, type;
  Shard shard;
  std::optional<RectangleBytes> plain;
};

namespace {

[[noreturn]] void throw_unread(const std::filesystem::path& shown, const std::string& dataset,
                               const std::string& reason) {
  throw DataError({fmt::format("{}: {}: cannot be read: {}.", shown.string(), dataset, reason)});
}

// The descriptor that the library's own driver reads a file by.
int descriptor_of(hid_t file) {
  int* descriptor = nullptr;
  const bool known =
      H5Fget_vfd_handle(file, H5P_DEFAULT, reinterpret_cast<void**>(&descriptor)) >= 0;
  return known && descriptor != nullptr ? *descriptor : -1;
}

// Where the elements of a contiguous dataset begin in the file; nothing where they have no place.
std::optional<std::int64_t> place_of(hid_t dataset) {
  const Handle properties(H5Dget_create_plist(dataset));
  if (H5Pget_layout(properties) != H5D_CONTIGUOUS) return std::nullopt;
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF) return std::nullopt;
  return static_cast<std::int64_t>(offset);
}

}  // namespace

Hdf5Rectangle::Hdf5Rectangle(std::unique_ptr<State> state) : state_(std::move(state)) {}
Hdf5Rectangle::~Hdf5Rectangle() = default;
Hdf5Rectangle::Hdf5Rectangle(Hdf5Rectangle&&) noexcept = default;

Hdf5Rectangle Hdf5File::rectangle(const std::string& dataset, DType dtype,
                                  const Shard& shard) const {
  auto state = std::make_unique<Hdf5Rectangle::State>(
      Hdf5Rectangle::State{shown_, dataset, hdf5::open_dataset(file_, shown_, dataset),
                           hdf5::type_of(dtype), shard, std::nullopt});
  const int descriptor = descriptor_of(file_);
  const auto place = place_of(state->opened);
  if (descriptor >= 0 && place) {
    const auto read = [descriptor, at = *place, named = state.get()](std::int64_t offset,
                                                                     std::span<std::byte> target) {
      while (!target.empty()) {
        const ssize_t count = pread(descriptor, target.data(), target.size(), at + offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0)
          throw_unread(named->shown, named->dataset, std::generic_category().message(errno));
        if (count == 0) throw_unread(named->shown, named->dataset, "the file ends before it");
        offset += count;
        target = target.subspan(static_cast<std::size_t>(count));
      }
    };
    state->plain.emplace(shard, size_of(dtype), read);
  }
  return Hdf5Rectangle(std::move(state));
}

void Hdf5Rectangle::read(std::int64_t row_begin, std::int64_t row_count,
                         std::byte* elements) const {
  if (state_->plain) return state_->plain->read(row_begin, row_count, elements);
  const hdf5::Selection rows = hdf5::select_rows(state_->shard, row_begin, row_count);
  if (H5Dread(state_->opened, state_->type, rows.memory, rows.file, H5P_DEFAULT, elements) < 0)
    hdf5::throw_reading(state_->shown, state_->dataset, "cannot be read");
}

}  // namespace coppice
