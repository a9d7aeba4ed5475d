// Files that exist and are opened to be written: by one process alone, or by all ranks of the job
// through MPI-IO. The only file outside parallel/ that speaks to MPI: HDF5 wants a communicator of
// its own, and the one of all ranks is there without being handed through every layer.
#include <mpi.h>

#include "checkpoint/hdf5_file.hpp"
#include "checkpoint/hdf5_handle.hpp"
#include "core/error.hpp"

namespace coppice {

using hdf5::Handle;

Hdf5File Hdf5File::open_to_extend(const std::filesystem::path& path,
                                  const std::filesystem::path& shown) {
  hdf5::prepare_library();
  const Handle access = hdf5::access_properties();
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, access);
  if (file < 0) hdf5::throw_writing(shown, "", "cannot be opened again");
  return Hdf5File(file, shown, 0);
}

Hdf5File Hdf5File::open_shared(const std::filesystem::path& path,
                               const std::filesystem::path& shown, int ranks) {
  int all_ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &all_ranks);
  COPPICE_CHECK(ranks == all_ranks, "{} of {} ranks open {}", ranks, all_ranks, shown.string());
  hdf5::prepare_library();
  const Handle access = hdf5::access_properties();
  H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, access);
  if (file < 0) hdf5::throw_writing(shown, "", "cannot be opened by all ranks together");
  return Hdf5File(file, shown, 0);
}

}  // namespace coppice
