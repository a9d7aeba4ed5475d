// One checkpoint saved and loaded by the ranks that mpirun starts, beside what dd makes of the same
// bytes on the same disk, written with fsync and read; and loaded by ranks that cut every tensor
// the other way than those that wrote it. Tensors are cut by rows and by columns in turn, as tensor
// parallelism cuts them. Files are put out of the system's memory before they are read. Prints rows
// of Markdown tables, medians over repetitions.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
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
  int tensors = 30, repetitions = 5;
};

// Who cuts which tensors by rows: a load is resharded where it cuts other than the save.
enum class Cut { kEvenByRows, kOddByRows };

constexpr std::int64_t kRows = 4096, kColumns = 1024;  // 16 MiB in f32

struct State {
  std::vector<Tensor> tensors;
  std::vector<StateTensor> list;
};

State state_of(Memory& memory, int count, Cut cut, int rank, int ranks) {
  State state;
  for (int i = 0; i < count; ++i) {
    const Shape shape{kRows, kColumns};
    const int axis = (i + (cut == Cut::kOddByRows)) % 2;
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

struct Seconds {
  double passed = 0;
  double worked = 0;  ///< processor time of this process and what it has started
};

double worked() {
  double sum = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime})
      sum += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return sum;
}

double passed() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void dd(const std::string& arguments) {
  if (std::system(fmt::format("dd bs=4M status=none {}", arguments).c_str()) != 0)
    throw IoError(fmt::format("dd {}: failed.", arguments));
}

void forget_cached(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  close(file);
}

double median(std::vector<Seconds> samples, double Seconds::*which = &Seconds::passed) {
  std::ranges::sort(samples, {}, which);
  return samples[samples.size() / 2].*which;
}

void run(const Options& options) {
  MpiSession session;
  const auto world = session.split(0, "world", {});
  Memory memory{Device{}};
  Stream stream{Device{}};
  const auto state = [&](Cut cut) {
    return state_of(memory, options.tensors, cut, world->rank(), world->size());
  };
  const State straight = state(Cut::kEvenByRows), resharded = state(Cut::kOddByRows);
  const std::int64_t bytes = 4 * kRows * kColumns * options.tensors;
  const std::string path = options.directory + "/checkpoint_bench.h5", plain = path + ".plain";
  CheckpointHeader header;
  header.kind = CheckpointKind::kCheckpoint;
  const auto timed = [&](const std::function<void()>& body) {
    world->barrier(stream);
    Seconds seconds{-passed(), -worked()};
    body();
    seconds.worked += worked();
    world->barrier(stream);
    seconds.passed += passed();
    return seconds;
  };
  const auto on_first = [&](const std::function<void()>& body) {
    return timed([&] {
      if (world->rank() == 0) body();
    });
  };
  std::vector<Seconds> save, load, other_load, dd_write, dd_read;
  for (int i = 0; i < options.repetitions; ++i) {
    // Each writes a new file; which comes first alternates, for the one behind finds the disk busy.
    const auto save_one = [&] {
      on_first([&] { std::filesystem::remove(path); });
      save.push_back(timed([&] { save_checkpoint(path, header, straight.list, false, *world); }));
    };
    const auto write_plain = [&] {
      on_first([&] { std::filesystem::remove(plain); });
      dd_write.push_back(on_first([&] {
        dd(fmt::format("if=/dev/zero 'of={}' count={} iflag=fullblock,count_bytes conv=fsync",
                       plain, bytes));
      }));
    };
    if (i % 2 == 0) save_one();
    write_plain();
    if (i % 2 == 1) save_one();
    on_first([&] { forget_cached(plain); });
    dd_read.push_back(on_first([&] { dd(fmt::format("'if={}' of=/dev/null", plain)); }));
    std::pair<const State*, std::vector<Seconds>*> loads[] = {{&straight, &load},
                                                              {&resharded, &other_load}};
    if (i % 2 == 1) std::swap(loads[0], loads[1]);
    for (const auto& [which, seconds] : loads) {
      on_first([&] { forget_cached(path); });
      seconds->push_back(timed([&] { CheckpointReader(path, *world).read(which->list); }));
    }
  }
  if (world->rank() != 0) return;
  for (const std::string& file : {path, plain}) std::filesystem::remove(file);
  const double megabytes = static_cast<double>(bytes) / 1e6;
  fmt::print(
      "{} ranks, {:.0f} MB, medians of {}\n\n"
      "| | seconds | MB/s | of dd | processor seconds of rank 0 |\n|---|---|---|---|---|\n",
      world->size(), megabytes, options.repetitions);
  const auto row = [&](const char* what, const std::vector<Seconds>& seconds, double reference) {
    const double time = median(seconds);
    fmt::print("| {} | {:.2f} | {:.0f} | {:.0f} % | {:.2f} |\n", what, time, megabytes / time,
               100 * reference / time, median(seconds, &Seconds::worked));
  };
  row("dd, written with fsync", dd_write, median(dd_write));
  row("save", save, median(dd_write));
  row("dd, read", dd_read, median(dd_read));
  row("load", load, median(dd_read));
  row("load, resharded", other_load, median(dd_read));
  fmt::print("\nload against dd written with fsync: {:.0f} %; resharded against straight: {:.2f}\n",
             100 * median(dd_write) / median(load), median(other_load) / median(load));
  std::filesystem::remove(path);
  std::filesystem::remove(plain);
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
