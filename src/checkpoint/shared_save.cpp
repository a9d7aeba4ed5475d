// Writing one checkpoint from several ranks. Rank 0 alone lays the file out, so that all metadata
// are one process's; then all open it through MPI-IO and write their rectangles into it; then
// rank 0 alone adds the checksums and gives the file its name. After each of these phases the ranks
// agree that it went well everywhere, so that a failure on one is an error on all, and nobody
// waits for a rank that has given up.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/checkpoint_output.hpp"
#include "checkpoint/joint_tensors.hpp"
#include "checkpoint/pending_file.hpp"
#include "core/error.hpp"
#include "parallel/exchange.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using Checksums = std::map<std::string, std::uint64_t>;

[[noreturn]] void throw_io(const fs::path& path, const char* what) {
  throw IoError(fmt::format("{}: {}: {} ({}).", path.string(), what,
                            std::generic_category().message(errno), errno));
}

// A descriptor of a file that another rank made, to flush what this rank has written into it: the
// flush of rank 0 does not reach the memory of other hosts.
class RankDescriptor {
 public:
  RankDescriptor(const fs::path& temporary, const fs::path& shown)
      : shown_(shown), descriptor_(open(temporary.c_str(), O_RDWR | O_CLOEXEC)) {
    if (descriptor_ < 0) {
      throw_io(shown,
               "this rank cannot open the file that rank 0 has made (all ranks must see one "
               "directory)");
    }
  }
  ~RankDescriptor() { close(descriptor_); }
  RankDescriptor(const RankDescriptor&) = delete;
  RankDescriptor& operator=(const RankDescriptor&) = delete;
  void flush() const {
    if (fsync(descriptor_) != 0) throw_io(shown_, "cannot be flushed to disk");
  }

 private:
  fs::path shown_;
  int descriptor_;
};

// Header and empty tensors, each with its place in the file; the checksums of the header's parts.
Checksums lay_out(PendingFile& pending, const CheckpointHeader& header,
                  const std::vector<JointTensor>& tensors) {
  CheckpointOutput output(Hdf5File::create(pending.temporary(), pending.target()));
  output.write_header(header);
  for (const auto& tensor : tensors) {
    output.create(tensor.dataset, tensor.dtype, tensor.shape, Hdf5Allocation::kAtOnce);
  }
  output.close();
  pending.reserve_space();
  return output.checksums();
}

// The sums of all ranks' elements, by tensor.
std::vector<std::uint64_t> sum_checksums(Communicator& world, const std::vector<JointTensor>& all,
                                         const Checksums& mine) {
  std::vector<std::uint64_t> sums;
  for (const auto& tensor : all) {
    const auto found = mine.find(tensor.dataset);
    sums.push_back(found == mine.end() ? 0 : found->second);
  }
  sum_modulo_2_64(world, sums);
  return sums;
}

// All ranks open the file, write, close it and flush what they wrote.
Checksums write_together(const fs::path& temporary, const fs::path& path,
                         std::span<const StateTensor> tensors, std::span<const DType> dtypes,
                         Communicator& world) {
  std::optional<RankDescriptor> descriptor;
  succeed_together(world, [&] { descriptor.emplace(temporary, path); });
  std::optional<CheckpointOutput> output;
  try {
    succeed_together(world,
                     [&] { output.emplace(Hdf5File::open_shared(temporary, path, world.size())); });
  } catch (...) {
    if (output) output->abandon();
    throw;
  }
  // From here on each rank closes the file in the same place, whatever happened to it: closing is
  // collective. The exception of a write waits until then.
  std::exception_ptr failure;
  try {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      output->write(tensors[i].dataset, dtypes[i], tensors[i].shard, tensors[i].local);
    }
  } catch (...) {
    failure = std::current_exception();
  }
  succeed_together(world, [&] {
    output->close();
    if (failure) std::rethrow_exception(failure);
    if (!tensors.empty()) descriptor->flush();
  });
  return output->checksums();
}

}  // namespace

void save_checkpoint(const fs::path& path, const CheckpointHeader& header,
                     std::span<const StateTensor> tensors, bool keep_precision,
                     Communicator& world) {
  if (world.size() == 1) return save_checkpoint(path, header, tensors, keep_precision);
  std::vector<DType> dtypes;
  for (const auto& tensor : tensors) {
    dtypes.push_back(keep_precision ? tensor.local.dtype() : DType::kF32);
  }
  const auto all = join_tensors(world, tensors, dtypes);
  for (const auto& tensor : all) check_cover(tensor);

  std::optional<PendingFile> pending;  // rank 0's; removed again unless it is committed
  Checksums checksums;
  succeed_together(world, [&] {
    if (world.rank() != 0) return;
    pending.emplace(path);
    checksums = lay_out(*pending, header, all);
  });
  const fs::path temporary = broadcast_text(world, pending ? pending->temporary().string() : "");
  const Checksums mine = write_together(temporary, path, tensors, dtypes, world);
  const auto sums = sum_checksums(world, all, mine);
  succeed_together(world, [&] {
    if (world.rank() != 0) return;
    for (std::size_t i = 0; i < all.size(); ++i) checksums[all[i].dataset] = sums[i];
    CheckpointOutput output(Hdf5File::open_to_extend(pending->temporary(), path));
    output.write_checksums(checksums);
    output.close();
    pending->commit();
  });
}

}  // namespace coppice
