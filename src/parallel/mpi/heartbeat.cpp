#include "parallel/mpi/heartbeat.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/mpi/mpi_communicator.hpp"

namespace coppice {
namespace {

constexpr int kTag = 1;

}  // namespace

WaitNotice notice_of(std::string_view collective, std::string_view axis, const Activity& activity) {
  WaitNotice notice{};
  const auto write = [](std::array<char, 32>& to, std::string_view from) {
    from.copy(to.data(), to.size() - 1);
  };
  write(notice.axis, axis);
  write(notice.collective, collective);
  write(notice.phase, activity.phase);
  notice.step = activity.step;
  notice.layer = activity.layer;
  return notice;
}

std::string place_of(const WaitNotice& notice) {
  std::string place = fmt::format("{} over the {} axis, step {}, {}", notice.collective.data(),
                                  notice.axis.data(), notice.step, notice.phase.data());
  if (notice.layer >= 0) place += fmt::format(", layer {}", notice.layer);
  return place;
}

Heartbeat::Heartbeat(MPI_Comm world) {
  check_mpi(MPI_Comm_dup(world, &comm_), "MPI_Comm_dup");
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  const auto ranks = static_cast<std::size_t>(size_);
  heard_.resize(ranks, WaitNotice{});
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  std::vector<char> names(ranks * name.size());
  check_mpi(MPI_Allgather(name.data(), static_cast<int>(name.size()), MPI_CHAR, names.data(),
                          static_cast<int>(name.size()), MPI_CHAR, comm_),
            "MPI_Allgather");
  for (std::size_t rank = 0; rank < ranks; ++rank)
    hosts_.emplace_back(names.data() + rank * name.size());
}

Heartbeat::~Heartbeat() {
  for (Sent& sent : sent_)
    for (MPI_Request& request : sent.requests) {
      int done = 0;
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done == 0) MPI_Request_free(&request);
    }
  MPI_Comm_free(&comm_);
}

void Heartbeat::forget_delivered() {
  sent_.remove_if([](Sent& sent) {
    int done = 0;
    MPI_Testall(static_cast<int>(sent.requests.size()), sent.requests.data(), &done,
                MPI_STATUSES_IGNORE);
    return done != 0;
  });
}

void Heartbeat::announce(const WaitNotice& notice) {
  heard_[static_cast<std::size_t>(rank_)] = notice;
  forget_delivered();
  Sent& sent = sent_.emplace_back(Sent{notice, {}});
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    sent.requests.push_back(MPI_REQUEST_NULL);
    MPI_Isend(&sent.notice, sizeof(WaitNotice), MPI_BYTE, rank, kTag, comm_, &sent.requests.back());
  }
}

void Heartbeat::listen() {
  for (;;) {
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kTag, comm_, &there, &status);
    if (there == 0) return;
    MPI_Recv(&heard_[static_cast<std::size_t>(status.MPI_SOURCE)], sizeof(WaitNotice), MPI_BYTE,
             status.MPI_SOURCE, kTag, comm_, MPI_STATUS_IGNORE);
  }
}

std::string Heartbeat::name_of_rank(int rank) const {
  return fmt::format("{} ({})", rank, hosts_[static_cast<std::size_t>(rank)]);
}

std::string Heartbeat::report() const {
  std::vector<std::string> silent, waiting;
  for (int rank = 0; rank < size_; ++rank) {
    const WaitNotice& notice = heard_[static_cast<std::size_t>(rank)];
    if (notice.state == WaitNotice::kSilent)
      silent.push_back(name_of_rank(rank));
    else if (rank != rank_ && notice.state == WaitNotice::kWaits)
      waiting.push_back(fmt::format("rank {} waits in {}", name_of_rank(rank), place_of(notice)));
  }
  std::string text =
      silent.empty()
          ? std::string("every rank waits (they disagree on what comes next)")
          : fmt::format(
                "rank{} {} {} not entered any collective (still computing, stalled or gone)",
                silent.size() == 1 ? "" : "s", fmt::join(silent, ", "),
                silent.size() == 1 ? "has" : "have");
  if (!waiting.empty()) text += fmt::format("; {}", fmt::join(waiting, "; "));
  return text;
}

bool Heartbeat::another_waits() const {
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_ && heard_[static_cast<std::size_t>(rank)].state == WaitNotice::kWaits)
      return true;
  return false;
}

bool Heartbeat::another_fails() const {
  return std::any_of(heard_.begin(), heard_.end(),
                     [](const WaitNotice& notice) { return notice.state == WaitNotice::kFails; });
}

bool Heartbeat::is_first_to_wait() const {
  return std::none_of(heard_.begin(), heard_.begin() + rank_,
                      [](const WaitNotice& notice) { return notice.state == WaitNotice::kWaits; });
}

}  // namespace coppice
