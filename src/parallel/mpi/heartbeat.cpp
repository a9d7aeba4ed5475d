#include "parallel/mpi/heartbeat.hpp"

#include <fmt/ranges.h>

#include <string_view>

#include "parallel/mpi/mpi_communicator.hpp"

namespace coppice {
namespace {

constexpr int kTag = 1;
constexpr std::int64_t kSilent = -1;

std::string place_of(const WaitNotice& notice) {
  std::string place = fmt::format("{} over the {} axis, step {}, {}", notice.collective.data(),
                                  notice.axis.data(), notice.step, notice.phase.data());
  if (notice.layer >= 0) place += fmt::format(", layer {}", notice.layer);
  return place;
}

}  // namespace

Heartbeat::Heartbeat(MPI_Comm world) {
  check_mpi(MPI_Comm_dup(world, &comm_), "MPI_Comm_dup");
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  heard_.resize(static_cast<std::size_t>(size_));
  for (auto& notice : heard_) notice.step = kSilent;
}

Heartbeat::~Heartbeat() {
  for (MPI_Request& request : requests_) {
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) MPI_Request_free(&request);
  }
  MPI_Comm_free(&comm_);
}

void Heartbeat::announce(const WaitNotice& notice) {
  for (auto& heard : heard_) heard.step = kSilent;
  heard_[static_cast<std::size_t>(rank_)] = notice;
  // A long wait is rare and a notice small: each gets a place of its own, never moved while MPI
  // may still read it.
  if (sent_.capacity() == 0) sent_.reserve(1024);
  if (sent_.size() == sent_.capacity()) return;
  sent_.push_back(notice);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    requests_.push_back(MPI_REQUEST_NULL);
    MPI_Isend(&sent_.back(), sizeof(WaitNotice), MPI_BYTE, rank, kTag, comm_, &requests_.back());
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

std::string Heartbeat::report() const {
  std::vector<int> silent;
  std::vector<std::string> waiting;
  for (int rank = 0; rank < size_; ++rank) {
    const WaitNotice& notice = heard_[static_cast<std::size_t>(rank)];
    if (notice.step == kSilent) {
      silent.push_back(rank);
    } else if (rank != rank_) {
      waiting.push_back(fmt::format("rank {} waits in {}", rank, place_of(notice)));
    }
  }
  std::string text = silent.empty()
                         ? std::string("every rank waits (they disagree on what comes next)")
                         : fmt::format("rank{} {} {} not entered any collective (stalled or gone)",
                                       silent.size() == 1 ? "" : "s", fmt::join(silent, ", "),
                                       silent.size() == 1 ? "has" : "have");
  if (!waiting.empty()) text += fmt::format("; {}", fmt::join(waiting, "; "));
  return text;
}

}  // namespace coppice
