#include "parallel/nccl/emulated/group_run.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/cuda/emulated/gpu.hpp"
#include "core/cuda/emulated/stream.hpp"
#include "parallel/nccl/emulated/accumulate.hpp"

namespace coppice::nccl {
namespace {

constexpr int kPoison = 0xff;  // NaN in every float type

const char* name_of_kind(std::int32_t kind) {
  switch (static_cast<CallKind>(kind)) {
    case CallKind::kAllReduce:
      return "all-reduce";
    case CallKind::kAllGather:
      return "all-gather";
    case CallKind::kReduceScatter:
      return "reduce-scatter";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kReduce:
      return "reduce";
  }
  return "unknown call";
}

bool has_root(std::int32_t kind) {
  return static_cast<CallKind>(kind) == CallKind::kBroadcast ||
         static_cast<CallKind>(kind) == CallKind::kReduce;
}

bool reduces(CallKind kind) {
  return kind == CallKind::kAllReduce || kind == CallKind::kReduceScatter ||
         kind == CallKind::kReduce;
}

bool overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

void check_mpi(int code) {
  if (code != MPI_SUCCESS) throw DeviceError("the emulated NCCL's MPI failed");
}

}  // namespace

GroupRun::GroupRun(GroupPlace place, std::span<const Call> calls)
    : place_(std::move(place)), calls_(calls.begin(), calls.end()) {
  wire_->headers.resize(static_cast<std::size_t>(place_.size));
  COPPICE_CHECK(std::ssize(calls) <= kMostCalls, "{} calls in a group", calls.size());
  wire_->mine.calls = std::ssize(calls);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    wire_->mine.call[i] = {call.count, static_cast<std::int32_t>(call.kind),
                           static_cast<std::int32_t>(call.dtype),
                           static_cast<std::int32_t>(call.op), call.root};
  }
  held_ = static_cast<int>(
              (place_.seed * 0x9e3779b97f4a7c15U + 7919 * std::uint64_t(place_.serial)) >> 40) %
          4;
}

GroupRun::~GroupRun() {
  if (phase_ == Phase::kHeaders || phase_ == Phase::kValues) wire_.release();
}

std::int64_t GroupRun::read_bytes(const Call& call) const { return sent_bytes(call, place_.rank); }

std::int64_t GroupRun::sent_bytes(const Call& call, int rank) const {
  const auto bytes = call.count * size_of(call.dtype);
  if (call.kind == CallKind::kReduceScatter) return bytes * place_.size;
  if (call.kind == CallKind::kBroadcast && rank != call.root) return 0;
  return bytes;
}

std::int64_t GroupRun::written_bytes(const Call& call) const {
  const auto bytes = call.count * size_of(call.dtype);
  if (call.kind == CallKind::kAllGather) return bytes * place_.size;
  if (call.kind == CallKind::kReduce && place_.rank != call.root) return 0;
  return bytes;
}

std::string GroupRun::name() const { return fmt::format("NCCL over the {} axis", place_.axis); }

std::string GroupRun::text_of(const GroupHeader& group, std::int64_t index) const {
  if (index >= group.calls) return "no further call";
  const CallHeader& call = group.call[static_cast<std::size_t>(index)];
  auto text = fmt::format("{} of {} {}", name_of_kind(call.kind), call.count,
                          coppice::name_of(static_cast<DType>(call.dtype)));
  if (reduces(static_cast<CallKind>(call.kind)) && static_cast<ReduceOp>(call.op) == ReduceOp::kMax)
    text += " (maximum)";
  if (has_root(call.kind)) text += fmt::format(" with root {}", call.root);
  return text;
}

std::vector<emulated::Claims::Range> GroupRun::uses() const {
  std::vector<emulated::Claims::Range> uses;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    const auto what =
        fmt::format("{} ({}, group {})", text_of(wire_->mine, static_cast<std::int64_t>(i)), name(),
                    place_.serial);
    if (read_bytes(call) > 0)
      uses.push_back({call.send, read_bytes(call), emulated::Use::kRead, "the input of " + what});
    if (written_bytes(call) > 0)
      uses.push_back(
          {call.receive, written_bytes(call), emulated::Use::kWrite, "the output of " + what});
  }
  return uses;
}

bool GroupRun::advance() {
  if (phase_ == Phase::kWaiting) start();
  if (phase_ == Phase::kHeaders) {
    if (!arrived()) return false;
    compare_headers();
    send_values();
  }
  if (!arrived() || held_-- > 0) return false;
  phase_ = Phase::kDone;
  check_inputs_unchanged();
  write_results();
  return true;
}

bool GroupRun::arrived() {
  int done = 0;
  check_mpi(MPI_Testall(static_cast<int>(wire_->requests.size()), wire_->requests.data(), &done,
                        MPI_STATUSES_IGNORE));
  return done != 0;
}

// Calls of a group run at the same time, so none may touch what another writes.
void GroupRun::check_memory() const {
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    const auto what = fmt::format("{} in {}", name_of_kind(wire_->mine.call[i].kind), name());
    if (read_bytes(call) > 0)
      emulated::check_device_range((what + ": its input").c_str(), call.send, read_bytes(call),
                                   emulated::Use::kRead);
    if (written_bytes(call) > 0)
      emulated::check_device_range((what + ": its output").c_str(), call.receive,
                                   written_bytes(call), emulated::Use::kWrite);
    for (std::size_t j = 0; j < calls_.size(); ++j) {
      const Call& other = calls_[j];
      const bool clash =
          (i != j &&
           overlap(call.receive, written_bytes(call), other.receive, written_bytes(other))) ||
          (i != j && overlap(call.receive, written_bytes(call), other.send, read_bytes(other)));
      if (clash)
        throw DeviceError(
            fmt::format("{}: calls {} and {} of one group share memory that one of them writes (a "
                        "group's calls run at once). Issue them one after the other.",
                        name(), i, j));
    }
    const bool in_place =
        (call.kind == CallKind::kAllGather &&
         call.send == static_cast<std::byte*>(call.receive) + place_.rank * read_bytes(call)) ||
        (call.kind == CallKind::kReduceScatter &&
         call.receive ==
             static_cast<const std::byte*>(call.send) + place_.rank * written_bytes(call)) ||
        call.send == call.receive;
    if (!in_place && overlap(call.receive, written_bytes(call), call.send, read_bytes(call)))
      throw DeviceError(
          fmt::format("{}: its input and output overlap, but not in place (NCCL "
                      "would read what it has written). Give it memory of its own.",
                      what));
  }
}

void GroupRun::start() {
  check_memory();
  for (const Call& call : calls_) {
    const auto bytes = static_cast<std::size_t>(read_bytes(call));
    const auto* from = static_cast<const std::byte*>(call.send);
    wire_->sent.emplace_back(from, from + bytes);
  }
  // From here on an output holds anything, but where it is an input too.
  for (const Call& call : calls_) {
    auto* to = static_cast<std::byte*>(call.receive);
    const auto* from = static_cast<const std::byte*>(call.send);
    const auto bytes = written_bytes(call), input = read_bytes(call);
    const bool in_place = overlap(to, bytes, from, input);
    const auto before = in_place ? std::clamp<std::int64_t>(from - to, 0, bytes) : bytes;
    const auto behind = in_place ? std::clamp<std::int64_t>(from + input - to, 0, bytes) : bytes;
    if (before > 0) std::memset(to, kPoison, static_cast<std::size_t>(before));
    if (behind < bytes) std::memset(to + behind, kPoison, static_cast<std::size_t>(bytes - behind));
  }
  check_mpi(MPI_Iallgather(&wire_->mine, sizeof(GroupHeader), MPI_BYTE, wire_->headers.data(),
                           sizeof(GroupHeader), MPI_BYTE, place_.comm,
                           &wire_->requests.emplace_back()));
  phase_ = Phase::kHeaders;
}

void GroupRun::compare_headers() const {
  for (std::size_t rank = 1; rank < wire_->headers.size(); ++rank) {
    const GroupHeader &first = wire_->headers[0], &other = wire_->headers[rank];
    if (first == other) continue;
    std::int64_t i = 0;
    while (i < std::min(first.calls, other.calls) &&
           first.call[static_cast<std::size_t>(i)] == other.call[static_cast<std::size_t>(i)])
      ++i;
    throw DeviceError(fmt::format(
        "{}, group {}: rank 0 of the axis issues {}, rank {} issues {} (NCCL would hang, or mix up "
        "memory). All ranks must issue the same collectives in the same order.",
        name(), place_.serial, text_of(first, i), rank, text_of(other, i)));
  }
}

void GroupRun::send_values() {
  wire_->requests.clear();
  const auto count_of = [](std::int64_t bytes) {
    COPPICE_CHECK(bytes <= std::numeric_limits<int>::max(), "{} bytes in one emulated call", bytes);
    return static_cast<int>(bytes);
  };
  wire_->counts.resize(calls_.size());
  wire_->offsets.resize(calls_.size());
  wire_->all.resize(calls_.size());
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    std::int64_t total = 0;
    for (int rank = 0; rank < place_.size; ++rank) {
      wire_->counts[i].push_back(count_of(sent_bytes(calls_[i], rank)));
      wire_->offsets[i].push_back(count_of(total));
      total += wire_->counts[i].back();
    }
    wire_->all[i].resize(static_cast<std::size_t>(total));
    check_mpi(MPI_Iallgatherv(wire_->sent[i].data(), count_of(std::ssize(wire_->sent[i])), MPI_BYTE,
                              wire_->all[i].data(), wire_->counts[i].data(),
                              wire_->offsets[i].data(), MPI_BYTE, place_.comm,
                              &wire_->requests.emplace_back()));
  }
  phase_ = Phase::kValues;
}

void GroupRun::check_inputs_unchanged() const {
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    if (wire_->sent[i].empty() ||
        std::memcmp(wire_->sent[i].data(), calls_[i].send, wire_->sent[i].size()) == 0)
      continue;
    throw DeviceError(fmt::format(
        "{}: the input of a call ({}) was written while the call was under way (another stream "
        "did not wait for it). Let that stream wait for the collective's event.",
        name(), text_of(wire_->mine, static_cast<std::int64_t>(i))));
  }
}

void GroupRun::write_results() {
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    const auto bytes = written_bytes(call);
    if (bytes == 0) continue;
    auto* to = static_cast<std::byte*>(call.receive);
    emulated::gpu().memory.note_contents(to, bytes);
    if (!reduces(call.kind)) {
      std::memcpy(to, wire_->all[i].data(), static_cast<std::size_t>(bytes));
      continue;
    }
    // In rank order, as the host's sums.
    const auto first = call.kind == CallKind::kReduceScatter ? place_.rank * bytes : 0;
    const auto of_rank = [&](int rank) {
      return wire_->all[i].data() + wire_->offsets[i][static_cast<std::size_t>(rank)] + first;
    };
    std::vector<std::byte> sums(of_rank(0), of_rank(0) + bytes);
    for (int rank = 1; rank < place_.size; ++rank)
      accumulate(call.dtype, call.op, of_rank(rank), sums.data(), call.count);
    std::memcpy(to, sums.data(), sums.size());
  }
}

}  // namespace coppice::nccl
