// One checkpoint saved and loaded by the ranks that mpirun starts, beside the rate at which the
// same disk takes a plain file: what several ranks cost, and how far from the disk they are.
// Tensors are cut by rows and by columns in turn, as tensor parallelism cuts them. Prints one line
// a repetition.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "core/error.hpp"
#include "parallel/mpi/mpi_session.hpp"

namespace coppice::bench {
namespace {

struct Options {
  std::string directory = ".";
  int tensors = 30, repetitions = 3;
};

constexpr std::int64_t kRows = 4096, kColumns = 1024;  // 16 MiB in f32

struct State {
  std::vector<Tensor> tensors;
  std::vector<StateTensor> list;
};

State state_of(Memory& memory, int count, int rank, int ranks) {
  State state;
  for (int i = 0; i < count; ++i) {
    const Shape shape{kRows, kColumns};
    const int axis = i % 2;
    const std::int64_t begin = shape[axis] * rank / ranks, end = shape[axis] * (rank + 1) / ranks;
    const Shard shard = Shard::along(shape, axis, begin, end - begin);
    state.tensors.emplace_back(memory, DType::kF32, shard.local_shape, "state");
    auto* values = state.tensors.back().view().data<float>();
    for (std::int64_t k = 0; k < state.tensors.back().numel(); ++k)
      values[k] = static_cast<float>(k) * 0.5f + static_cast<float>(i);
    state.list.push_back({fmt::format("/parameters/{}", i), shard, state.tensors.back()});
  }
  return state;
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A plain file of so many bytes, flushed: what the disk can do.
void write_plain(const std::string& path, std::int64_t bytes) {
  const std::vector<char> block(std::size_t{4} << 20, 'x');
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool good = file >= 0;
  for (std::int64_t at = 0; good && at < bytes; at += std::ssize(block))
    good = write(file, block.data(), block.size()) == std::ssize(block);
  good = good && fsync(file) == 0;
  close(file);
  unlink(path.c_str());
  if (!good) throw IoError(fmt::format("{}: cannot be written.", path));
}

void forget_cached(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  close(file);
}

void run(const Options& options) {
  MpiSession session;
  const auto world = session.split(0, "world", {});
  Memory memory{Device{}};
  Stream stream{Device{}};
  const State state = state_of(memory, options.tensors, world->rank(), world->size());
  const std::int64_t bytes = 4 * kRows * kColumns * options.tensors;
  const std::string path = options.directory + "/checkpoint_bench.h5";
  CheckpointHeader header;
  header.kind = CheckpointKind::kCheckpoint;
  for (int i = 0; i < options.repetitions; ++i) {
    const auto timed = [&](const std::function<void()>& body) {
      world->barrier(stream);
      return seconds_of([&] {
        body();
        world->barrier(stream);
      });
    };
    const double plain = timed([&] {
      if (world->rank() == 0) write_plain(path + ".plain", bytes);
    });
    const double save = timed([&] { save_checkpoint(path, header, state.list, false, *world); });
    if (world->rank() == 0) forget_cached(path);
    const double load = timed([&] { CheckpointReader(path, *world).read(state.list); });
    const auto rate = [&](double seconds) { return static_cast<double>(bytes) / 1e6 / seconds; };
    if (world->rank() == 0)
      fmt::print(
          "{} ranks, {:.0f} MB: save {:.2f} s ({:.0f} MB/s)  load {:.2f} s ({:.0f} MB/s)  plain "
          "file {:.2f} s ({:.0f} MB/s)\n",
          world->size(), static_cast<double>(bytes) / 1e6, save, rate(save), load, rate(load),
          plain, rate(plain));
  }
  if (world->rank() == 0) std::filesystem::remove(path);
}

}  // namespace
}  // namespace coppice::bench

int main(int argc, char** argv) {
  coppice::bench::Options options;
  CLI::App app("A checkpoint saved and loaded; run it under mpirun for several ranks");
  app.add_option("--directory", options.directory, "where the file is written");
  app.add_option("--tensors", options.tensors, "tensors of 16 MiB");
  app.add_option("--repetitions", options.repetitions);
  CLI11_PARSE(app, argc, argv);
  try {
    coppice::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
