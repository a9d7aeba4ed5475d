// Opening a checkpoint: format, kind, header, and the list of its datasets with their checksums.
// Values are read in checkpoint_values.cpp.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <map>
#include <system_error>

#include "checkpoint/checkpoint_reader_state.hpp"
#include "checkpoint/child_probe.hpp"
#include "checkpoint/element_checksum.hpp"
#include "checkpoint/layout.hpp"
#include "core/error.hpp"
#include "parallel/exchange.hpp"

namespace coppice {
namespace {

// A HDF5 group tree has no bottom when a link leads back up; our files are three levels deep.
constexpr int kMostLevels = 8;

// Processor time that reading a file in a child may take: far above what any disk needs.
constexpr std::int64_t kLeastProbeSeconds = 2;
constexpr std::int64_t kProbeBytesPerSecond = 10'000'000;

void collect_datasets(const Hdf5File& file, const std::string& group, int level,
                      std::vector<std::string>& datasets) {
  for (const auto& name : file.children(group)) {
    const std::string path = group + "/" + name;
    if (!file.is_group(path)) {
      datasets.push_back(path);
    } else if (level < kMostLevels) {
      collect_datasets(file, path, level + 1, datasets);
    }
  }
}

std::string text_or_problem(const CheckpointFile& state, const std::string& dataset,
                            Problems& problems) {
  if (!state.file.has(dataset)) {
    problems.add("{}: {} is missing.", state.path.string(), dataset);
    return {};
  }
  std::string text = state.file.read_text_or_bytes(dataset);
  state.check_bytes(dataset, text, problems);
  return text;
}

void read_root(CheckpointFile& state, Problems& problems) {
  const std::string file = state.path.string();
  const auto format = state.file.integer_attribute("/", "coppice_format");
  if (!format) {
    throw DataError(
        {fmt::format("{}: has no attribute coppice_format, so it is no model or "
                     "checkpoint of this program.",
                     file)});
  }
  if (*format != layout::kFormatVersion) {
    throw DataError(
        {fmt::format("{}: has format version {}; this program reads version {}. Use the "
                     "program that wrote it.",
                     file, *format, layout::kFormatVersion)});
  }
  const auto kind = state.file.text_attribute("/", "kind");
  if (kind == "checkpoint") {
    state.header.kind = CheckpointKind::kCheckpoint;
  } else if (kind != "model") {
    problems.add("{}: attribute kind is {} (not \"model\" or \"checkpoint\").", file,
                 kind ? "\"" + *kind + "\"" : "missing");
  }
  const auto step = state.file.integer_attribute("/", "step");
  if (!step && kind == "checkpoint") problems.add("{}: attribute step is missing.", file);
  state.header.step = step.value_or(0);
  state.header.program_version =
      state.file.text_attribute("/", "program_version").value_or("unknown");
}

void list_tensors(CheckpointFile& state, Problems& problems) {
  std::vector<std::string> datasets;
  collect_datasets(state.file, "/parameters", 0, datasets);
  collect_datasets(state.file, "/optimizer", 0, datasets);
  collect_datasets(state.file, "/trainer", 0, datasets);
  std::erase(datasets, layout::kTrainerState);
  for (const auto& dataset : datasets) {
    const Hdf5DatasetInfo info = state.file.info(dataset);
    const bool bad_extent =
        std::ranges::any_of(info.extents, [](std::int64_t extent) { return extent < 0; });
    if (info.content != Hdf5Content::kTensor) {
      problems.add(
          "{}: {} holds {} (a tensor is f32, f64, f16, or bf16 as uint16 with the attribute "
          "dtype=\"bf16\").",
          state.path.string(), dataset, info.type_description);
    } else if (info.extents.size() > Shape::kMaxRank || bad_extent) {
      problems.add("{}: {} has {} axes (at most {}).", state.path.string(), dataset,
                   info.extents.size(), Shape::kMaxRank);
    } else {
      state.tensors.push_back({dataset, info.dtype, Shape(std::span(info.extents)), std::nullopt});
    }
  }
  std::ranges::sort(state.tensors, {}, &StoredTensor::dataset);
}

// Every dataset of a checkpoint has a checksum, and every checksum its dataset.
void match_checksums(CheckpointFile& state, Problems& problems) {
  const std::string file = state.path.string();
  const bool required = state.header.kind == CheckpointKind::kCheckpoint;
  if (!state.file.has(layout::kChecksums)) {
    if (required)
      problems.add("{}: the group {} is missing.", file, layout::kChecksums);
    else
      state.notices.push_back(
          fmt::format("{}: has no checksums, so damage to its values cannot be seen.", file));
    return;
  }
  for (auto& tensor : state.tensors) {
    const auto found = state.checksums.find(tensor.dataset);
    if (found != state.checksums.end())
      tensor.checksum = found->second;
    else
      problems.add("{}: {} has no checksum.", file, tensor.dataset);
  }
  for (const auto& [dataset, checksum] : state.checksums) {
    // A group in a dataset's place holds nothing that could be compared.
    if (!state.file.has(dataset) || state.file.is_group(dataset))
      problems.add("{}: {} is missing, but has a checksum.", file, dataset);
  }
}

void read_trainer_and_tokenizer(CheckpointFile& state, Problems& problems) {
  for (const auto& name : state.file.children("/tokenizer")) {
    state.header.tokenizer.push_back(
        {name, text_or_problem(state, "/tokenizer/" + name, problems)});
  }
  if (state.header.kind != CheckpointKind::kCheckpoint) return;
  state.header.run_config_textproto = text_or_problem(state, layout::kRunConfig, problems);
  state.header.trainer_json = text_or_problem(state, layout::kTrainerState, problems);
  const auto step = state.file.has("/optimizer")
                        ? state.file.integer_attribute("/optimizer", "step")
                        : std::nullopt;
  if (!step) problems.add("{}: /optimizer or its attribute step is missing.", state.path.string());
  state.header.optimizer_step = step.value_or(0);
}

// What tells two files of one name apart, short: steps, and a sum over all names, shapes and
// checksums.
std::string listing_of(const CheckpointFile& state) {
  std::string text;
  for (const auto& [dataset, checksum] : state.checksums)
    text += fmt::format("{} {}\n", dataset, checksum);
  for (const auto& tensor : state.tensors)
    text += fmt::format("{} {} {}\n", tensor.dataset, name_of(tensor.dtype), tensor.shape);
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return fmt::format("{} {} {:x}", state.header.step, state.header.optimizer_step,
                     element_checksum(bytes, 1, 0, std::ssize(text)));
}

// The file itself, whatever its name: the same text where two ranks have the same file before them.
std::string identity_of(const std::filesystem::path& path) {
  std::string boot;  // tells hosts apart that have one name
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    throw IoError(fmt::format("{}: {}.", path.string(), std::generic_category().message(errno)));
  return fmt::format("{} {} {} {}", boot, host.data(), status.st_dev, status.st_ino);
}

CheckpointFile::Copy copy_of(const std::vector<std::string>& identities, int rank) {
  CheckpointFile::Copy copy{.sharer = 0, .sharers = 0, .copy = 0, .copies = 0, .copy_of_rank = {}};
  const std::string& mine = identities[static_cast<std::size_t>(rank)];
  std::map<std::string_view, int> numbers;
  for (std::size_t i = 0; i < identities.size(); ++i) {
    const auto number = numbers.emplace(identities[i], std::ssize(numbers)).first->second;
    copy.copy_of_rank.push_back(number);
    if (identities[i] != mine) continue;
    if (static_cast<int>(i) < rank) ++copy.sharer;
    ++copy.sharers;
  }
  copy.copy = numbers.at(mine);
  copy.copies = static_cast<int>(numbers.size());
  return copy;
}

}  // namespace

void CheckpointFile::check_bytes(const std::string& dataset, const std::string& bytes,
                                 Problems& problems) const {
  const auto found = checksums.find(dataset);
  if (found == checksums.end()) {
    if (file.has(layout::kChecksums))
      problems.add("{}: {} has no checksum.", path.string(), dataset);
    return;
  }
  const auto sum =
      element_checksum(reinterpret_cast<const std::byte*>(bytes.data()), 1, 0, std::ssize(bytes));
  if (sum != found->second) {
    problems.add("{}: {} does not have its checksum (the file is damaged).", path.string(),
                 dataset);
  }
}

CheckpointReader::CheckpointReader(std::filesystem::path path) {
  probe(path);
  open(path);
}

CheckpointReader::CheckpointReader(std::filesystem::path path, Communicator& world) {
  // Each rank tries for itself: whether the library crashes depends on what lies in its memory, so
  // a child of rank 0 may survive what kills another rank (seen with a flipped bit in a text's
  // heap).
  succeed_together(world, [&] { probe(path); });
  succeed_together(world, [&] { open(path); });
  if (world.size() == 1) return;
  state_->world = &world;
  // Ranks that see different files would load a model that nobody saved.
  const auto listings = all_gather_texts(world, listing_of(*state_));
  for (std::size_t rank = 1; rank < listings.size(); ++rank) {
    if (listings[rank] != listings[0])
      throw DataError(
          {fmt::format("{}: rank {} and rank 0 see different files of this name. All "
                       "ranks must read one file.",
                       path.string(), rank)});
  }
  std::string identity;
  succeed_together(world, [&] { identity = identity_of(path); });
  state_->shared = copy_of(all_gather_texts(world, identity), world.rank());
}

void CheckpointReader::probe(const std::filesystem::path& path) {
  if (Hdf5File::has_checked_metadata(path)) return;
  // Everything is read there, values too: their index may be what is damaged.
  std::error_code none;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, none));
  const bool survived = survives_in_child(
      [&] {
        try {
          open(path);
          verify();
          for (const auto& tensor : tensors()) state_->read_through(tensor);
        } catch (const Error&) {  // told by the program's own reading
        }
        state_.reset();  // closing crashes on some damage too
      },
      kLeastProbeSeconds + (none ? 0 : bytes / kProbeBytesPerSecond));
  if (survived) return;
  throw DataError(
      {fmt::format("{}: is damaged: the HDF5 library cannot read it to its end.", path.string())});
}

void CheckpointReader::open(const std::filesystem::path& path) {
  state_ = std::make_unique<State>(CheckpointFile{path, Hdf5File::open(path)});
  State& state = *state_;
  Problems problems;
  try {
    read_root(state, problems);
    state.checksums = state.file.u64_attributes(layout::kChecksums);
    state.header.model_config_json = text_or_problem(state, layout::kModelConfig, problems);
    read_trainer_and_tokenizer(state, problems);
    list_tensors(state, problems);
    match_checksums(state, problems);
    // The trainer's numbers are small: they belong to the header.
    for (const auto& tensor : state.tensors) {
      if (!tensor.dataset.starts_with("/trainer/")) continue;
      TrainerArray array{tensor.dataset.substr(9), {}};
      if (tensor.dtype != DType::kF64 || tensor.shape.rank() != 1) {
        problems.add("{}: {} is no list of f64.", path.string(), tensor.dataset);
        continue;
      }
      state.file.check_fits(tensor.dataset);
      array.values.resize(static_cast<std::size_t>(tensor.shape[0]));
      state.check_values(tensor, problems);
      read_stored(tensor, 0, tensor.shape[0], reinterpret_cast<std::byte*>(array.values.data()));
      state.header.trainer_arrays.push_back(std::move(array));
    }
  } catch (const DataError& error) {
    problems.add_all(error.problems());
  }
  problems.throw_if_any<DataError>();
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;

const std::filesystem::path& CheckpointReader::path() const { return state_->path; }
const CheckpointHeader& CheckpointReader::header() const { return state_->header; }
const std::vector<StoredTensor>& CheckpointReader::tensors() const { return state_->tensors; }
const std::vector<std::string>& CheckpointReader::notices() const { return state_->notices; }

}  // namespace coppice
