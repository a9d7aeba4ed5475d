#include "parallel/mpi/mpi_session.hpp"

#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <list>
#include <numeric>
#include <thread>

#include "parallel/mpi/deadline.hpp"
#include "parallel/mpi/heartbeat.hpp"
#include "parallel/mpi/long_wait.hpp"
#include "parallel/mpi/mpi_communicator.hpp"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

// One bit per processor that this process may use.
using CoreMask = std::array<unsigned char, sizeof(cpu_set_t)>;

CoreMask own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CoreMask mask{};
  if (sched_getaffinity(0, sizeof(set), &set) == 0) std::memcpy(mask.data(), &set, sizeof(set));
  return mask;
}

int count(const CoreMask& cores) {
  int bits = 0;
  for (const unsigned char byte : cores) bits += std::popcount(byte);
  return std::max(1, bits);
}

// Whether somebody started this process as one of several. Every launcher (mpirun, srun, Hydra)
// hands its processes the way to it in variables of the process management interface, PMI or PMIx.
bool has_launcher() {
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (std::string_view(*variable).starts_with("PMI")) return true;
  return false;
}

// The memory of one gather().
struct Gathering {
  std::string word, all;
  int length = 0;
  std::vector<int> lengths, offsets;
};

}  // namespace

struct MpiSession::State {
  bool has_mpi = false, has_threads = true;
  int rank = 0, size = 1, local_rank = 0, local_size = 1, local_cores = 1;
  std::string host;
  MPI_Comm words = MPI_COMM_NULL;  // of gather()
  std::list<Gathering> gatherings;
  Activity activity;
  std::unique_ptr<Heartbeat> heartbeat;
  std::function<void(const std::string&)> notice;
  bool wait_for(MPI_Request& request, Clock::time_point begin, std::optional<double> seconds);
  int exceptions_at_start = std::uncaught_exceptions();
};

MpiSession::MpiSession(WatchdogConfig start) : state_(std::make_unique<State>()) {
  CoreMask cores = own_cores();  // before MPI's libraries move the process about
  state_->local_cores = count(cores);
  if (!has_launcher()) {
    // A rank alone needs no MPI. Starting it all the same takes a fifth of a second and, as Open
    // MPI does it, fails now and then while another lone process ends: they share a directory.
    std::array<char, 256> name{};
    gethostname(name.data(), name.size() - 1);
    state_->host = name.data();
    return;
  }
  state_->has_mpi = true;
  state_->notice = start.notice;
  const Deadline deadline("the start of MPI", start.seconds, start.notice);
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  state_->has_threads = provided >= MPI_THREAD_MULTIPLE;
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
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, cores.data(), static_cast<int>(cores.size()), MPI_BYTE,
                          MPI_BOR, node),
            "MPI_Allreduce");
  state_->local_cores = count(cores);
  MPI_Comm_free(&node);
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &state_->words), "MPI_Comm_dup");
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  MPI_Get_processor_name(name.data(), &length);
  state_->host.assign(name.data(), static_cast<std::size_t>(length));
  state_->heartbeat = std::make_unique<Heartbeat>(MPI_COMM_WORLD);
}

MpiSession::~MpiSession() {
  if (!state_->has_mpi) return;
  if (std::uncaught_exceptions() > state_->exceptions_at_start) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  } else {
    constexpr double kSeconds = 60;  // all ranks have come to their end before
    const Deadline deadline("the end of MPI", kSeconds, state_->notice);
    state_->heartbeat.reset();
    MPI_Comm_free(&state_->words);
    MPI_Finalize();
  }
}

bool MpiSession::can_overlap() const { return state_->has_threads; }
int MpiSession::rank() const { return state_->rank; }
int MpiSession::size() const { return state_->size; }
int MpiSession::local_rank() const { return state_->local_rank; }
int MpiSession::local_size() const { return state_->local_size; }
int MpiSession::local_cores() const { return state_->local_cores; }
const std::string& MpiSession::host() const { return state_->host; }

bool MpiSession::claim_report() {
  if (!state_->has_mpi) return true;
  // What another rank has sent already still takes a few looks to come in.
  for (int look = 0; look < 20; ++look) {
    state_->heartbeat->listen();
    if (state_->heartbeat->another_fails()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  WaitNotice notice{};
  notice.state = WaitNotice::kFails;
  state_->heartbeat->announce(notice);
  return true;
}

void MpiSession::abort(int status) {
  if (!state_->has_mpi) std::_Exit(status);
  // Open MPI asks mpirun to end the job and waits for its word: from a host that is cut off, for
  // ever.
  std::thread([status] {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(status);
  }).detach();
  MPI_Abort(MPI_COMM_WORLD, status);
  std::terminate();  // MPI_Abort does not come back; the compiler cannot know
}

std::unique_ptr<Communicator> MpiSession::split(int color, std::string axis,
                                                WatchdogConfig watchdog) {
  if (!state_->has_mpi) return make_self_communicator();
  const Deadline deadline("making the communicator of the " + axis + " axis", watchdog.seconds,
                          watchdog.notice);
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, color, state_->rank, &comm), "MPI_Comm_split");
  return std::make_unique<MpiCommunicator>(comm, std::move(axis), watchdog, state_->activity,
                                           *state_->heartbeat, state_->has_threads);
}

// Polls with pauses, so that ranks that wait for another's long work leave it the cores.
bool MpiSession::State::wait_for(MPI_Request& request, Clock::time_point begin,
                                 std::optional<double> seconds) {
  WaitNotice here = notice_of("gather", "world", activity);
  for (auto pause = std::chrono::microseconds(20);;
       pause = std::min(2 * pause, std::chrono::microseconds(5000))) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) break;
    const std::chrono::duration<double> waited = Clock::now() - begin;
    heartbeat->listen();
    heartbeat->host_waits();
    const bool is_long = seconds && waited.count() > *seconds / 2;
    if (here.state == WaitNotice::kSilent && (is_long || heartbeat->another_waits())) {
      here.state = WaitNotice::kWaits;
      heartbeat->announce(here);
    }
    if (seconds && waited.count() > *seconds) return false;
    std::this_thread::sleep_for(pause);
  }
  if (here.state == WaitNotice::kWaits) {
    here.state = WaitNotice::kSilent;
    heartbeat->announce(here);
  }
  return true;
}

std::optional<std::vector<std::string>> MpiSession::gather(std::string_view word,
                                                           std::optional<double> seconds) {
  if (state_->size == 1) return std::vector<std::string>{std::string(word)};
  // What MPI may still read and write when a rank has not come lives as long as the session.
  Gathering& g = state_->gatherings.emplace_back();
  const auto ranks = static_cast<std::size_t>(state_->size);
  const auto begin = Clock::now();
  g.word = word;
  g.length = static_cast<int>(word.size());
  g.lengths.resize(ranks);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Iallgather(&g.length, 1, MPI_INT, g.lengths.data(), 1, MPI_INT, state_->words, &request),
      "MPI_Iallgather");
  if (!state_->wait_for(request, begin, seconds)) return std::nullopt;
  g.offsets.resize(ranks);
  std::exclusive_scan(g.lengths.begin(), g.lengths.end(), g.offsets.begin(), 0);
  g.all.resize(static_cast<std::size_t>(g.offsets.back() + g.lengths.back()));
  check_mpi(MPI_Iallgatherv(g.word.data(), g.length, MPI_CHAR, g.all.data(), g.lengths.data(),
                            g.offsets.data(), MPI_CHAR, state_->words, &request),
            "MPI_Iallgatherv");
  if (!state_->wait_for(request, begin, seconds)) return std::nullopt;
  std::vector<std::string> words;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    words.push_back(g.all.substr(static_cast<std::size_t>(g.offsets[rank]),
                                 static_cast<std::size_t>(g.lengths[rank])));
  state_->gatherings.pop_back();
  return words;
}

void MpiSession::add_wait_hook(const void* owner, std::function<void()> hook) {
  if (state_->has_mpi) state_->heartbeat->hooks[owner] = std::move(hook);
}
void MpiSession::remove_wait_hook(const void* owner) {
  if (state_->has_mpi && state_->heartbeat) state_->heartbeat->hooks.erase(owner);
}

std::unique_ptr<LongWait> MpiSession::begin_wait(std::string_view collective, std::string_view axis,
                                                 const Activity& activity,
                                                 const WatchdogConfig& watchdog,
                                                 Clock::time_point start) {
  COPPICE_CHECK(state_->has_mpi, "a wait for others without any");
  return std::make_unique<LongWait>(*state_->heartbeat, watchdog, collective, axis, activity,
                                    start);
}

std::string MpiSession::whereabouts() const { return state_->heartbeat->report(); }

Activity& MpiSession::activity() { return state_->activity; }

}  // namespace coppice
