// Files that are read, groups and attributes. Datasets are in hdf5_dataset.cpp, files that are
// written in hdf5_driver.cpp.
#include "checkpoint/hdf5_file.hpp"

#include <algorithm>
#include <fstream>

#include "checkpoint/hdf5_handle.hpp"
#include "checkpoint/plain_text.hpp"
#include "core/error.hpp"
#include "core/regular_file.hpp"

namespace coppice {
namespace {

using hdf5::Handle;
namespace fs = std::filesystem;

// The reason nearest to the system, e.g. "No space left on device".
std::string library_reason() {
  std::string reason;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* error, void* out) -> herr_t {
        if (depth == 0 && error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
        return 0;
      },
      &reason);
  H5Eclear2(H5E_DEFAULT);
  // A failed system call is described with times and addresses; only its message helps.
  constexpr std::string_view kSystem = "error message = '";
  if (const auto begin = reason.find(kSystem); begin != reason.npos) {
    reason.erase(0, begin + kSystem.size());
    reason.erase(std::min(reason.find('\''), reason.size()));
  }
  return reason.substr(0, 300);
}

std::string message(const fs::path& file, const std::string& object, std::string_view what) {
  const std::string reason = library_reason();
  return fmt::format("{}: {}{}{}{}{}.", file.string(), object, object.empty() ? "" : ": ", what,
                     reason.empty() ? "" : ": ", reason);
}

void write_attribute(hid_t file, const fs::path& shown, const std::string& object,
                     const std::string& name, hid_t type, const void* value) {
  const Handle owner(H5Oopen(file, object.c_str(), H5P_DEFAULT));
  const Handle space(H5Screate(H5S_SCALAR));
  const Handle attribute(H5Acreate2(owner, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT));
  if (attribute < 0 || H5Awrite(attribute, type, value) < 0) {
    hdf5::throw_writing(shown, object, fmt::format("attribute {} cannot be written", name));
  }
}

// Opens an attribute that has one element; an invalid handle where there is none.
Handle open_attribute(hid_t file, const fs::path& shown, const std::string& object,
                      const std::string& name) {
  const htri_t exists = H5Aexists_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT);
  if (exists < 0) hdf5::throw_reading(shown, object, "its attributes cannot be read");
  if (exists == 0) return Handle(-1);
  Handle attribute(H5Aopen_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT));
  const Handle space(attribute < 0 ? -1 : H5Aget_space(attribute));
  if (space < 0 || H5Sget_simple_extent_npoints(space) != 1) {
    hdf5::throw_reading(shown, object, fmt::format("attribute {} cannot be read", name));
  }
  return attribute;
}

}  // namespace

namespace hdf5 {

void prepare_library() {
  H5dont_atexit();
  H5open();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Handle access_properties() {
  Handle access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_file_locking(access, 0, 1);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  return access;
}

void throw_reading(const fs::path& file, const std::string& object, std::string_view what) {
  throw DataError({message(file, object, what)});
}

void throw_writing(const fs::path& file, const std::string& object, std::string_view what) {
  throw IoError(message(file, object, what));
}

Handle text_type(std::size_t length) {
  Handle type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type, std::max<std::size_t>(1, length));
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

}  // namespace hdf5

Hdf5File Hdf5File::open(const fs::path& path) {
  hdf5::prepare_library();
  if (const std::string why = why_unreadable(path); !why.empty()) {
    throw DataError(
        {fmt::format("{}: there is no file of this name that can be read ({}). Name a model or "
                     "checkpoint.",
                     path.string(), why)});
  }
  std::ifstream probe(path, std::ios::binary);
  char signature[8] = {};
  probe.read(signature, sizeof(signature));
  if (std::string_view(signature, 8) != "\x89HDF\r\n\x1a\n") {
    throw DataError(
        {fmt::format("{}: is no HDF5 file (a model or checkpoint is one).", path.string())});
  }
  const Handle access = hdf5::access_properties();
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  if (file < 0) hdf5::throw_reading(path, "", "is damaged or truncated");
  return Hdf5File(file, path, static_cast<std::int64_t>(fs::file_size(path)));
}

bool Hdf5File::has_checked_metadata(const fs::path& path) {
  if (!why_unreadable(path).empty()) return true;  // told when it is opened
  std::ifstream stream(path, std::ios::binary);
  char start[9] = {};  // the signature and the superblock's version
  stream.read(start, sizeof(start));
  return !stream || static_cast<unsigned char>(start[8]) >= 2;
}

Hdf5File::~Hdf5File() {
  if (file_ >= 0) H5Fclose(file_);
}

Hdf5File::Hdf5File(Hdf5File&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      write_error_(std::move(other.write_error_)),
      shown_(std::move(other.shown_)),
      bytes_(other.bytes_) {}

void Hdf5File::close() {
  const bool closed = H5Fclose(std::exchange(file_, -1)) >= 0;
  check_written();
  if (!closed) hdf5::throw_writing(shown_, "", "cannot be closed");
}

void Hdf5File::make_group(const std::string& group) {
  const Handle made(H5Gcreate2(file_, group.c_str(), H5P_DEFAULT,
                               hdf5::creation_properties(H5P_GROUP_CREATE), H5P_DEFAULT));
  if (made < 0) hdf5::throw_writing(shown_, group, "cannot be made");
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name,
                             std::int64_t value) {
  write_attribute(file_, shown_, object, name, H5T_STD_I64LE, &value);
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name,
                             std::uint64_t value) {
  write_attribute(file_, shown_, object, name, H5T_STD_U64LE, &value);
}

void Hdf5File::set_attribute(const std::string& object, const std::string& name,
                             std::string_view value) {
  const std::string text(value);  // one NUL behind, should it be empty
  write_attribute(file_, shown_, object, name, hdf5::text_type(text.size()), text.c_str());
}

bool Hdf5File::has(const std::string& object) const {
  // Each step of the path must exist, or the library calls the question an error.
  for (std::size_t end = object.find('/', 1);; end = object.find('/', end + 1)) {
    const std::string step = object.substr(0, end);
    if (step != "/") {
      H5L_info_t link;
      if (H5Lexists(file_, step.c_str(), H5P_DEFAULT) <= 0) break;
      if (H5Lget_info(file_, step.c_str(), &link, H5P_DEFAULT) < 0) break;
      if (link.type != H5L_TYPE_HARD) break;
    }
    if (end == object.npos) return true;
  }
  H5Eclear2(H5E_DEFAULT);
  return false;
}

std::vector<std::string> Hdf5File::children(const std::string& group) const {
  std::vector<std::string> names;
  if (!has(group)) return names;
  const Handle opened(H5Gopen2(file_, group.c_str(), H5P_DEFAULT));
  if (opened < 0) hdf5::throw_reading(shown_, group, "is no group or is damaged");
  const herr_t walked = H5Literate(
      opened, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr,
      [](hid_t, const char* name, const H5L_info_t* link, void* out) -> herr_t {
        if (link->type == H5L_TYPE_HARD)
          static_cast<std::vector<std::string>*>(out)->push_back(name);
        return 0;
      },
      &names);
  if (walked < 0) hdf5::throw_reading(shown_, group, "its contents cannot be listed");
  if (!std::ranges::all_of(names, is_plain_text)) {
    hdf5::throw_reading(shown_, group, "holds a name that is no plain text, so it is damaged");
  }
  std::ranges::sort(names);
  return names;
}

bool Hdf5File::is_group(const std::string& object) const {
  const Handle opened(H5Oopen(file_, object.c_str(), H5P_DEFAULT));
  if (opened < 0) hdf5::throw_reading(shown_, object, "is damaged");
  return H5Iget_type(opened) == H5I_GROUP;
}

std::optional<std::int64_t> Hdf5File::integer_attribute(const std::string& object,
                                                        const std::string& name) const {
  const Handle attribute = open_attribute(file_, shown_, object, name);
  if (attribute < 0) return std::nullopt;
  const Handle type(H5Aget_type(attribute));
  std::int64_t value = 0;
  if (type < 0 || H5Tget_class(type) != H5T_INTEGER ||
      H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0) {
    hdf5::throw_reading(shown_, object, fmt::format("attribute {} is no whole number", name));
  }
  return value;
}

std::optional<std::string> Hdf5File::text_attribute(const std::string& object,
                                                    const std::string& name) const {
  const Handle attribute = open_attribute(file_, shown_, object, name);
  if (attribute < 0) return std::nullopt;
  const auto refuse = [&] {
    hdf5::throw_reading(shown_, object, fmt::format("attribute {} is no text", name));
  };
  const Handle type(H5Aget_type(attribute));
  if (type < 0 || H5Tget_class(type) != H5T_STRING) refuse();
  std::string text;
  if (H5Tis_variable_str(type) > 0) {
    char* read = nullptr;
    if (H5Aread(attribute, type, &read) < 0) refuse();
    if (read != nullptr) text = read;
    H5free_memory(read);
  } else {
    if (static_cast<std::int64_t>(H5Tget_size(type)) > bytes_) refuse();
    text.resize(H5Tget_size(type));
    if (H5Aread(attribute, type, text.data()) < 0) refuse();
  }
  text.erase(std::min(text.find('\0'), text.size()));
  if (!is_plain_text(text)) refuse();
  return text;
}

std::map<std::string, std::uint64_t> Hdf5File::u64_attributes(const std::string& object) const {
  std::map<std::string, std::uint64_t> values;
  if (!has(object)) return values;
  const Handle opened(H5Oopen(file_, object.c_str(), H5P_DEFAULT));
  const herr_t walked =
      opened < 0
          ? -1
          : H5Aiterate2(
                opened, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr,
                [](hid_t owner, const char* name, const H5A_info_t*, void* out) -> herr_t {
                  const Handle attribute(H5Aopen(owner, name, H5P_DEFAULT));
                  const Handle type(attribute < 0 ? -1 : H5Aget_type(attribute));
                  const Handle space(attribute < 0 ? -1 : H5Aget_space(attribute));
                  std::uint64_t value = 0;
                  if (type < 0 || space < 0) return -1;
                  if (H5Tequal(type, H5T_STD_U64LE) <= 0 ||
                      H5Sget_simple_extent_npoints(space) != 1)
                    return 0;
                  if (H5Aread(attribute, type, &value) < 0) return -1;
                  static_cast<std::map<std::string, std::uint64_t>*>(out)->emplace(name, value);
                  return 0;
                },
                &values);
  const bool plain =
      std::ranges::all_of(values, [](const auto& v) { return is_plain_text(v.first); });
  if (walked < 0 || !plain) hdf5::throw_reading(shown_, object, "its attributes cannot be read");
  return values;
}

}  // namespace coppice
