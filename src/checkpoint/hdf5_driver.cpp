// Opening files to be written, and the driver of our own that writes them. HDF5 cannot close a file
// whose metadata could not be written (a full disk): what it leaves behind crashes it at the end of
// the process or in MPI_Finalize (1.10.8). This driver writes as the library's own does, but keeps
// a failure to itself: it remembers the system's reason, and from then on takes all writes and does
// nothing.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include "checkpoint/hdf5_file.hpp"
#include "checkpoint/hdf5_handle.hpp"
#include "checkpoint/pending_file.hpp"
#include "core/error.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using hdf5::Handle;

struct DriverInfo {
  int* error;
};

// The library sees the first member and hands it back.
struct DriverFile {
  H5FD_t common;
  int descriptor;
  haddr_t allocated, end;  // what the library has given out; what the file holds
  int* error;
};

DriverFile& file_of(H5FD_t* file) { return *reinterpret_cast<DriverFile*>(file); }
const DriverFile& file_of(const H5FD_t* file) { return *reinterpret_cast<const DriverFile*>(file); }

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  if (info == nullptr) return nullptr;
  const int mode = O_RDWR | O_CLOEXEC | ((flags & H5F_ACC_TRUNC) != 0 ? O_TRUNC : 0) |
                   ((flags & H5F_ACC_CREAT) != 0 ? O_CREAT : 0);
  const int descriptor = open(name, mode, 0666);
  struct stat status {};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) {
    *info->error = errno;
    if (descriptor >= 0) close(descriptor);
    return nullptr;
  }
  auto* file = new DriverFile{{}, descriptor, 0, static_cast<haddr_t>(status.st_size), info->error};
  return &file->common;
}

herr_t close_file(H5FD_t* file) {
  close(file_of(file).descriptor);
  delete &file_of(file);
  return 0;
}

// As the library's own driver says, so that the same bytes come to lie in the same places.
herr_t query_features(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_POSIX_COMPAT_HANDLE |
           H5FD_FEAT_SUPPORTS_SWMR_IO | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t allocated_of(const H5FD_t* file, H5FD_mem_t) { return file_of(file).allocated; }
herr_t set_allocated(H5FD_t* file, H5FD_mem_t, haddr_t end) {
  file_of(file).allocated = end;
  return 0;
}
haddr_t end_of(const H5FD_t* file, H5FD_mem_t) { return file_of(file).end; }

// Behind the end, and where a write was dropped, there are zeros.
herr_t read_bytes(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t at, std::size_t size, void* bytes) {
  auto* to = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t count = pread(file_of(file).descriptor, to, size, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return -1;
    if (count == 0) break;
    to += count;
    at += static_cast<haddr_t>(count);
    size -= static_cast<std::size_t>(count);
  }
  std::memset(to, 0, size);
  return 0;
}

constexpr hsize_t kPage = 4096;

// Tensors come in writes of megabytes: the disk begins with one while the next is made ready.
constexpr std::size_t kWorthBeginning = std::size_t{1} << 20;

herr_t write_bytes(H5FD_t* common, H5FD_mem_t, hid_t, haddr_t at, std::size_t size,
                   const void* bytes) {
  DriverFile& file = file_of(common);
  const auto begin = static_cast<std::int64_t>(at);
  const std::size_t whole = size;
  const auto* from = static_cast<const char*>(bytes);
  file.end = std::max(file.end, at + size);
  while (size > 0 && *file.error == 0) {
    const ssize_t count = pwrite(file.descriptor, from, size, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      *file.error = errno;
      break;
    }
    from += count;
    at += static_cast<haddr_t>(count);
    size -= static_cast<std::size_t>(count);
  }
  if (whole >= kWorthBeginning && *file.error == 0)
    begin_write_out(file.descriptor, begin, static_cast<std::int64_t>(whole));
  return 0;
}

herr_t set_size(H5FD_t* common, hid_t, hbool_t) {
  DriverFile& file = file_of(common);
  if (file.end == file.allocated) return 0;
  if (*file.error == 0 && ftruncate(file.descriptor, static_cast<off_t>(file.allocated)) != 0)
    *file.error = errno;
  file.end = file.allocated;
  return 0;
}

H5FD_class_t driver_class() {
  H5FD_class_t driver{};
  driver.name = "coppice";
  driver.maxaddr = static_cast<haddr_t>(std::numeric_limits<off_t>::max());
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = open_file;
  driver.close = close_file;
  driver.query = query_features;
  driver.get_eoa = allocated_of;
  driver.set_eoa = set_allocated;
  driver.get_eof = end_of;
  driver.read = read_bytes;
  driver.write = write_bytes;
  driver.truncate = set_size;
  const H5FD_mem_t map[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
  std::ranges::copy(map, driver.fl_map);
  return driver;
}

void write_through_own_driver(hid_t access, int* error) {
  // Registered until the process ends: closing the last file of a driver that nobody else holds
  // frees it, and then calls it (1.10.8).
  static const hid_t registered = [] {
    const H5FD_class_t driver = driver_class();
    return H5FDregister(&driver);
  }();
  const DriverInfo info{error};
  H5Pset_driver(access, registered, &info);
}

}  // namespace

Hdf5File Hdf5File::open_written(const fs::path& path, const fs::path& shown, bool is_new) {
  hdf5::prepare_library();
  const Handle access = hdf5::access_properties();
  // Tensors begin on a page of the system's: one that lies across would be taken up twice.
  H5Pset_alignment(access, kPage, kPage);
  auto error = std::make_unique<int>(0);
  write_through_own_driver(access, error.get());
  const Handle creation = hdf5::creation_properties(H5P_FILE_CREATE);
  Hdf5File file(is_new ? H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access)
                       : H5Fopen(path.c_str(), H5F_ACC_RDWR, access),
                shown, 0);
  file.write_error_ = std::move(error);
  file.check_written();
  if (file.file_ < 0) hdf5::throw_writing(shown, "", "cannot be opened for writing");
  return file;
}

Hdf5File Hdf5File::create(const fs::path& path, const fs::path& shown) {
  return open_written(path, shown, true);
}

Hdf5File Hdf5File::open_to_extend(const fs::path& path, const fs::path& shown) {
  return open_written(path, shown, false);
}

void Hdf5File::check_written() const {
  if (*write_error_ == 0) return;
  throw IoError(fmt::format("{}: cannot be written: {} ({}).", shown_.string(),
                            std::generic_category().message(*write_error_), *write_error_));
}

}  // namespace coppice
