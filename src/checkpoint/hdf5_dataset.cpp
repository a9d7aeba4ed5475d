// Datasets of Hdf5File: tensors by rectangles, texts and bytes whole.
#include <algorithm>
#include <array>

#include "checkpoint/hdf5_file.hpp"
#include "checkpoint/hdf5_handle.hpp"
#include "core/error.hpp"

namespace coppice {

namespace hdf5 {

Handle creation_properties(hid_t kind) {
  Handle made(H5Pcreate(kind));
  H5Pset_obj_track_times(made, false);
  return made;
}

}  // namespace hdf5
namespace {

using hdf5::Handle;
using hdf5::open_dataset;
namespace fs = std::filesystem;

// More than this is not read from a compressed text: its true size is not bounded by the file's.
constexpr std::int64_t kMostCompressedBytes = std::int64_t{256} << 20;

using Extents = std::array<hsize_t, Shape::kMaxRank>;

Handle space_of(const Shape& shape) {
  if (shape.rank() == 0) return Handle(H5Screate(H5S_SCALAR));
  Extents extents{};
  for (int axis = 0; axis < shape.rank(); ++axis) {
    extents[static_cast<std::size_t>(axis)] = static_cast<hsize_t>(shape[axis]);
  }
  return Handle(H5Screate_simple(shape.rank(), extents.data(), nullptr));
}

// Contiguous, and no fill value written before the data.
Handle dataset_properties(Hdf5Allocation allocation) {
  Handle properties = hdf5::creation_properties(H5P_DATASET_CREATE);
  H5Pset_layout(properties, H5D_CONTIGUOUS);
  H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
  if (allocation == Hdf5Allocation::kAtOnce) H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
  return properties;
}

Handle create_dataset(hid_t file, const fs::path& shown, const std::string& dataset, hid_t type,
                      hid_t space, Hdf5Allocation allocation = Hdf5Allocation::kFirstWrite) {
  const Handle properties = dataset_properties(allocation);
  Handle made(H5Dcreate2(file, dataset.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT));
  if (made < 0) hdf5::throw_writing(shown, dataset, "cannot be made");
  return made;
}

// True for little-endian IEEE binary16, which HDF5 1.10 has no name for.
bool is_f16(hid_t type) {
  std::size_t sign, exponent, exponent_bits, mantissa, mantissa_bits;
  return H5Tget_size(type) == 2 && H5Tget_order(type) == H5T_ORDER_LE &&
         H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) >= 0 &&
         sign == 15 && exponent == 10 && exponent_bits == 5 && mantissa == 0 &&
         mantissa_bits == 10 && H5Tget_ebias(type) == 15;
}

// Compression sets no bound that a file's size would tell, but chunks that were never written would
// be read as zeros without end.
bool has_all_chunks(hid_t dataset, hid_t properties, hid_t space) {
  std::array<hsize_t, H5S_MAX_RANK> chunk{}, extent{};
  const int axes = H5Pget_chunk(properties, H5S_MAX_RANK, chunk.data());
  if (axes < 1 || H5Sget_simple_extent_dims(space, extent.data(), nullptr) != axes) return false;
  hsize_t needed = 1, written = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(axes); ++axis) {
    if (chunk[axis] == 0) return false;
    const hsize_t along = extent[axis] / chunk[axis] + (extent[axis] % chunk[axis] != 0);
    if (__builtin_mul_overflow(needed, along, &needed)) return false;
  }
  return H5Dget_num_chunks(dataset, space, &written) >= 0 && written >= needed;
}

void describe_number(hid_t type, bool marked_bf16, Hdf5DatasetInfo& info) {
  const auto tensor = [&](DType dtype) {
    info.content = Hdf5Content::kTensor;
    info.dtype = dtype;
    info.type_description = name_of(dtype);
  };
  if (H5Tequal(type, H5T_IEEE_F32LE) > 0) return tensor(DType::kF32);
  if (H5Tequal(type, H5T_IEEE_F64LE) > 0) return tensor(DType::kF64);
  if (H5Tget_class(type) == H5T_FLOAT && is_f16(type)) return tensor(DType::kF16);
  if (H5Tequal(type, H5T_STD_U16LE) > 0 && marked_bf16) return tensor(DType::kBF16);
  if (H5Tequal(type, H5T_STD_U8LE) > 0) info.content = Hdf5Content::kBytes;
  info.type_description = fmt::format("{}-bit {}{}", 8 * H5Tget_size(type),
                                      H5Tget_order(type) == H5T_ORDER_BE ? "big-endian " : "",
                                      H5Tget_class(type) == H5T_FLOAT ? "floats" : "integers");
}

}  // namespace

hdf5::Selection hdf5::select_rows(const Shard& shard, std::int64_t row_begin,
                                  std::int64_t row_count) {
  Handle file = space_of(shard.global_shape);
  if (shard.global_shape.rank() == 0) return {std::move(file), space_of(shard.local_shape)};
  const Shape block = shard.local_shape.with(0, row_count);
  Extents offset{}, count{};
  for (int axis = 0; axis < block.rank(); ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    offset[at] = static_cast<hsize_t>(shard.global_offset[axis] + (axis == 0 ? row_begin : 0));
    count[at] = static_cast<hsize_t>(block[axis]);
  }
  H5Sselect_hyperslab(file, H5S_SELECT_SET, offset.data(), nullptr, count.data(), nullptr);
  return {std::move(file), space_of(block)};
}

Handle hdf5::open_dataset(hid_t file, const fs::path& shown, const std::string& dataset) {
  Handle opened(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT));
  if (opened < 0) hdf5::throw_reading(shown, dataset, "is no dataset or is damaged");
  // Data elsewhere would be neither checked nor carried along with the file.
  const Handle properties(H5Dget_create_plist(opened));
  const bool here = properties >= 0 && H5Pget_layout(properties) != H5D_VIRTUAL &&
                    H5Pget_external_count(properties) == 0;
  if (!here) hdf5::throw_reading(shown, dataset, "keeps its data in another file");
  return opened;
}

Handle hdf5::type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return Handle(H5Tcopy(H5T_IEEE_F32LE));
    case DType::kF64:
      return Handle(H5Tcopy(H5T_IEEE_F64LE));
    case DType::kBF16:
      return Handle(H5Tcopy(H5T_STD_U16LE));
    case DType::kF16: {
      Handle type(H5Tcopy(H5T_IEEE_F32LE));
      H5Tset_fields(type, 15, 10, 5, 0, 10);
      H5Tset_precision(type, 16);
      H5Tset_size(type, 2);
      H5Tset_ebias(type, 15);
      return type;
    }
    default:
      COPPICE_CHECK(false, "no tensor of {} is stored", name_of(dtype));
  }
  return Handle(-1);
}

void Hdf5File::write_text(const std::string& dataset, std::string_view text) {
  const Handle type = hdf5::text_type(text.size());
  const Handle space(H5Screate(H5S_SCALAR));
  const Handle made = create_dataset(file_, shown_, dataset, type, space);
  const std::string terminated(text);
  if (H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, terminated.c_str()) < 0) {
    hdf5::throw_writing(shown_, dataset, "cannot be written");
  }
  check_written();
}

void Hdf5File::write_bytes(const std::string& dataset, std::string_view bytes) {
  const Handle space = space_of({std::ssize(bytes)});
  const Handle made = create_dataset(file_, shown_, dataset, H5T_STD_U8LE, space);
  if (!bytes.empty() &&
      H5Dwrite(made, H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0) {
    hdf5::throw_writing(shown_, dataset, "cannot be written");
  }
  check_written();
}

void Hdf5File::create_tensor(const std::string& dataset, DType dtype, const Shape& shape,
                             Hdf5Allocation allocation) {
  { create_dataset(file_, shown_, dataset, hdf5::type_of(dtype), space_of(shape), allocation); }
  if (dtype == DType::kBF16) set_attribute(dataset, "dtype", std::string_view("bf16"));
}

void Hdf5File::write_rows(const std::string& dataset, DType dtype, const Shard& shard,
                          std::int64_t row_begin, std::int64_t row_count,
                          const std::byte* elements) {
  const Handle opened = open_dataset(file_, shown_, dataset);
  const hdf5::Selection rows = hdf5::select_rows(shard, row_begin, row_count);
  const Handle type = hdf5::type_of(dtype);
  if (H5Dwrite(opened, type, rows.memory, rows.file, H5P_DEFAULT, elements) < 0) {
    hdf5::throw_writing(shown_, dataset, "cannot be written");
  }
  check_written();
}

std::int64_t Hdf5File::data_offset(const std::string& dataset) const {
  const haddr_t offset = H5Dget_offset(open_dataset(file_, shown_, dataset));
  if (offset == HADDR_UNDEF) hdf5::throw_writing(shown_, dataset, "has no place in the file");
  return static_cast<std::int64_t>(offset);
}

Hdf5DatasetInfo Hdf5File::info(const std::string& dataset) const {
  Hdf5DatasetInfo info;
  const Handle opened = open_dataset(file_, shown_, dataset);
  const Handle type(H5Dget_type(opened));
  const Handle space(H5Dget_space(opened));
  const int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
  if (type < 0 || rank < 0 || H5Sget_simple_extent_type(space) == H5S_NULL) {
    hdf5::throw_reading(shown_, dataset, "its type or shape cannot be read");
  }
  std::array<hsize_t, H5S_MAX_RANK> extents{};
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  for (int axis = 0; axis < rank; ++axis) {
    info.extents.push_back(static_cast<std::int64_t>(extents[static_cast<std::size_t>(axis)]));
  }
  switch (H5Tget_class(type)) {
    case H5T_STRING:
      info.content = Hdf5Content::kText;
      info.type_description = "text";
      break;
    case H5T_FLOAT:
    case H5T_INTEGER: {
      const bool marked = H5Aexists(opened, "dtype") > 0 && H5Tequal(type, H5T_STD_U16LE) > 0 &&
                          text_attribute(dataset, "dtype") == "bf16";
      describe_number(type, marked, info);
      break;
    }
    default:
      info.type_description = "no numbers";
  }
  return info;
}

void Hdf5File::check_fits(const std::string& dataset) const {
  const Handle opened = open_dataset(file_, shown_, dataset);
  const Handle type(H5Dget_type(opened));
  const Handle space(H5Dget_space(opened));
  const Handle properties(H5Dget_create_plist(opened));
  if (H5Pget_layout(properties) == H5D_CHUNKED) {
    if (!has_all_chunks(opened, properties, space))
      hdf5::throw_reading(shown_, dataset, "is larger than what the file holds of it");
    return;
  }
  const hssize_t count = H5Sget_simple_extent_npoints(space);
  std::int64_t bytes = 0;
  if (count < 0 ||
      __builtin_mul_overflow(count, static_cast<std::int64_t>(H5Tget_size(type)), &bytes) ||
      bytes > bytes_ || static_cast<std::int64_t>(H5Dget_storage_size(opened)) < bytes) {
    hdf5::throw_reading(shown_, dataset, "is larger than what the file holds of it");
  }
}

std::string Hdf5File::read_text_or_bytes(const std::string& dataset) const {
  const Hdf5DatasetInfo described = info(dataset);
  const Handle opened = open_dataset(file_, shown_, dataset);
  const Handle type(H5Dget_type(opened));
  std::int64_t count = 1;
  for (std::int64_t extent : described.extents) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) count = INT64_MAX;
  }
  const Handle properties(H5Dget_create_plist(opened));
  const bool plain = H5Pget_layout(properties) != H5D_CHUNKED;
  const std::int64_t most = plain ? bytes_ : std::max(bytes_, kMostCompressedBytes);
  std::string text;
  const auto read_into_text = [&](std::int64_t bytes) {
    if (bytes > most) hdf5::throw_reading(shown_, dataset, "claims to be larger than its file");
    text.resize(static_cast<std::size_t>(bytes));
    return bytes == 0 || H5Dread(opened, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()) >= 0;
  };
  bool good = false;
  if (described.content == Hdf5Content::kBytes) {
    good = read_into_text(count);
  } else if (described.content == Hdf5Content::kText && count == 1) {
    if (H5Tis_variable_str(type) > 0) {
      char* read = nullptr;
      good = H5Dread(opened, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, &read) >= 0;
      if (good && read != nullptr) text = read;
      H5free_memory(read);
    } else {
      good = read_into_text(static_cast<std::int64_t>(H5Tget_size(type)));
      text.resize(text.find_last_not_of('\0') + 1);
    }
  } else {
    hdf5::throw_reading(shown_, dataset, "is neither one text nor bytes");
  }
  if (!good) hdf5::throw_reading(shown_, dataset, "cannot be read");
  return text;
}

}  // namespace coppice
