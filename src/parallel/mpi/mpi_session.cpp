#include "parallel/mpi/mpi_session.hpp"

#include <mpi.h>

#include <array>
#include <exception>

#include "parallel/mpi/heartbeat.hpp"
#include "parallel/mpi/mpi_communicator.hpp"

namespace coppice {

struct MpiSession::State {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string host;
  Activity activity;
  std::unique_ptr<Heartbeat> heartbeat;
  int exceptions_at_start = std::uncaught_exceptions();
};

MpiSession::MpiSession() : state_(std::make_unique<State>()) {
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) {
    throw CommError(
        "this MPI offers no MPI_THREAD_FUNNELED (ranks compute with threads). Use another MPI.");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &state_->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &state_->size);
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
  MPI_Comm_rank(node, &state_->local_rank);
  MPI_Comm_size(node, &state_->local_size);
  MPI_Comm_free(&node);
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  state_->host.assign(name.data(), static_cast<std::size_t>(length));
  state_->heartbeat = std::make_unique<Heartbeat>(MPI_COMM_WORLD);
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > state_->exceptions_at_start) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  } else {
    state_->heartbeat.reset();
    MPI_Finalize();
  }
}

int MpiSession::rank() const { return state_->rank; }
int MpiSession::size() const { return state_->size; }
int MpiSession::local_rank() const { return state_->local_rank; }
int MpiSession::local_size() const { return state_->local_size; }
const std::string& MpiSession::host() const { return state_->host; }

void MpiSession::abort(int status) {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::terminate();  // MPI_Abort does not come back; the compiler cannot know
}

std::unique_ptr<Communicator> MpiSession::split(int color, std::string axis,
                                                WatchdogConfig watchdog) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, color, state_->rank, &comm), "MPI_Comm_split");
  return std::make_unique<MpiCommunicator>(comm, std::move(axis), watchdog, state_->activity,
                                           *state_->heartbeat);
}

Activity& MpiSession::activity() { return state_->activity; }

}  // namespace coppice
