// Writing one checkpoint from several ranks. Rank 0 alone lays the file out with the HDF5 library
// and learns where the elements of each tensor begin; then every rank writes its rectangles
// straight to their places; then rank 0 alone adds the checksums and gives the file its name. After
// each of these phases the ranks agree that it went well everywhere, so that a failure on one is an
// error on all, and nobody waits for a rank that has given up. Why not MPI-IO: docs/decisions/0004.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <system_error>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/checkpoint_output.hpp"
#include "checkpoint/joint_tensors.hpp"
#include "checkpoint/pending_file.hpp"
#include "checkpoint/rectangle_runs.hpp"
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

// A file that rank 0 has made, for this rank to write elements into.
class SharedFile {
 public:
  SharedFile(const fs::path& temporary, const fs::path& shown)
      : shown_(shown), descriptor_(open(temporary.c_str(), O_RDWR | O_CLOEXEC)) {
    if (descriptor_ < 0) {
      throw_io(shown,
               "the file that rank 0 has made cannot be opened (all ranks must see one "
               "directory)");
    }
  }
  ~SharedFile() { close(descriptor_); }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  /// A rectangle of the tensor whose elements begin at `offset`; returns its checksum.
  std::uint64_t write(const StateTensor& tensor, DType stored, std::int64_t offset) {
    const std::int64_t size = size_of(stored);
    std::int64_t first = -1, end = 0;
    const auto sum = in_stored_blocks(
        tensor.dataset, stored, tensor.shard, tensor.local, tensor.stream, pieces_,
        [&](std::int64_t begin, std::int64_t count, const std::byte* rows) {
          for_each_run(tensor.shard, begin, count, [&](const ElementRun& run) {
            const std::int64_t at = offset + run.global * size;
            write_at(descriptor_, at, rows + run.local * size, run.count * size, shown_);
            if (first < 0) first = at;
            end = at + run.count * size;
          });
        });
    // One tensor later: pages that hold parts of several ranks are to be whole by then, or they go
    // to disk more than once.
    if (last_end_ > last_first_) begin_write_out(descriptor_, last_first_, last_end_ - last_first_);
    last_first_ = first;
    last_end_ = end;
    return sum;
  }
  /// To disk: the flush of rank 0 does not reach the memory of other hosts.
  void flush() const {
    if (fsync(descriptor_) != 0) throw_io(shown_, "cannot be flushed to disk");
  }

 private:
  fs::path shown_;
  int descriptor_;
  HostPieces pieces_;
  std::int64_t last_first_ = 0, last_end_ = 0;  // what the last rectangle spans of the file
};

// What rank 0 tells the others of the file it has laid out.
struct FilePlan {
  fs::path temporary;
  std::vector<std::int64_t> offsets;  // of the tensors, in their order
};

FilePlan broadcast_plan(Communicator& world, const FilePlan& mine) {
  const auto count = mine.offsets.size() * sizeof(std::int64_t);
  const std::string offsets = broadcast_text(
      world, std::string_view(reinterpret_cast<const char*>(mine.offsets.data()), count));
  FilePlan plan{broadcast_text(world, mine.temporary.string()), {}};
  plan.offsets.resize(offsets.size() / sizeof(std::int64_t));
  if (!offsets.empty()) std::memcpy(plan.offsets.data(), offsets.data(), offsets.size());
  return plan;
}

// Header and empty tensors; the checksums of the header's parts.
Checksums lay_out(PendingFile& pending, const CheckpointHeader& header,
                  const std::vector<JointTensor>& tensors, std::vector<std::int64_t>& offsets) {
  CheckpointOutput output(Hdf5File::create(pending.temporary(), pending.target()));
  output.write_header(header);
  for (const auto& tensor : tensors) {
    output.create(tensor.dataset, tensor.dtype, tensor.shape, Hdf5Allocation::kAtOnce);
    offsets.push_back(tensor.shape.numel() == 0 ? 0 : output.offset_of(tensor.dataset));
  }
  output.close();
  pending.reserve_space();
  return output.checksums();
}

// All ranks write and flush; the sums of all ranks' elements, by tensor.
std::vector<std::uint64_t> write_together(const FilePlan& plan, const fs::path& path,
                                          const std::vector<JointTensor>& all,
                                          std::span<const StateTensor> mine,
                                          std::span<const DType> dtypes, Communicator& world) {
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < all.size(); ++i) places[all[i].dataset] = i;
  std::vector<std::uint64_t> sums(all.size());
  succeed_together(world, [&] {
    SharedFile file(plan.temporary, path);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::size_t place = places.at(mine[i].dataset);
      sums[place] += file.write(mine[i], dtypes[i], plan.offsets[place]);
    }
    if (!mine.empty()) file.flush();
  });
  sum_modulo_2_64(world, sums);
  return sums;
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
  FilePlan plan;
  succeed_together(world, [&] {
    if (world.rank() != 0) return;
    pending.emplace(path);
    plan.temporary = pending->temporary();
    checksums = lay_out(*pending, header, all, plan.offsets);
  });
  plan = broadcast_plan(world, plan);
  const auto sums = write_together(plan, path, all, tensors, dtypes, world);
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
