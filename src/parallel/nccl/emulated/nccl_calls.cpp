// NCCL's calls on emulated devices: over MPI, as deferred work of their stream. Every process has a
// device of its own here, so ranks of one machine can do what takes a GPU each.
#include "parallel/nccl/nccl_calls.hpp"

#include <mpi.h>

#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <utility>

#include "core/cuda/emulated/gpu.hpp"
#include "core/cuda/emulated/stream.hpp"
#include "core/cuda/runtime.hpp"
#include "parallel/nccl/emulated/faults.hpp"
#include "parallel/nccl/emulated/group_run.hpp"

namespace coppice::nccl {
namespace {

struct IdContents {
  char magic[8];
  std::int32_t root;  // who collects the ranks, by its place in the world
  std::int32_t number;
};
constexpr char kMagic[8] = "coppice";
constexpr int kFirstTag = 100, kTags = 30000;

struct Member {
  std::int32_t rank, world_rank;
};

void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) throw CommError(fmt::format("emulated NCCL: {} failed", call));
}

bool all_done(std::vector<MPI_Request>& requests) {
  int done = 0;
  check_mpi(
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
      "MPI_Testall");
  return done != 0;
}

// Ranks that share nothing but an id find each other: each tells the id's root, the root tells all.
class Joining {
 public:
  Joining(const UniqueId& id, int rank, int size) : size_(size) {
    IdContents contents;
    std::memcpy(&contents, id.bytes.data(), sizeof(contents));
    if (std::memcmp(contents.magic, kMagic, sizeof(kMagic)) != 0)
      throw CommError("emulated NCCL: this is no unique id. Broadcast the one that was made.");
    root_ = contents.root;
    tag_ = kFirstTag + 2 * (contents.number % kTags);
    MPI_Comm_rank(MPI_COMM_WORLD, &mine_.world_rank);
    mine_.rank = rank;
    members_.resize(static_cast<std::size_t>(size));
    came_.resize(static_cast<std::size_t>(size));
    if (mine_.world_rank == root_)
      for (Member& member : came_) receive(member, MPI_ANY_SOURCE, tag_);
    send(&mine_, sizeof(mine_), root_, tag_);
    check_mpi(MPI_Irecv(members_.data(), bytes_of_all(), MPI_BYTE, root_, tag_ + 1, MPI_COMM_WORLD,
                        &told_.emplace_back()),
              "MPI_Irecv");
  }

  /// MPI_COMM_NULL until all have come.
  MPI_Comm advance() {
    if (!all_done(requests_)) return MPI_COMM_NULL;
    if (mine_.world_rank == root_ && !has_told_) {
      has_told_ = true;
      list_.resize(came_.size(), {-1, -1});
      for (const Member& member : came_) {
        Member& place = list_.at(static_cast<std::size_t>(member.rank));
        if (place.world_rank >= 0)
          throw CommError(fmt::format("emulated NCCL: two ranks joined as rank {}", member.rank));
        place = member;
      }
      for (const Member& member : list_)
        send(list_.data(), static_cast<std::size_t>(bytes_of_all()), member.world_rank, tag_ + 1);
      return MPI_COMM_NULL;
    }
    if (!all_done(told_)) return MPI_COMM_NULL;
    std::vector<int> ranks;
    for (const Member& member : members_) ranks.push_back(member.world_rank);
    MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    check_mpi(MPI_Group_incl(world, size_, ranks.data(), &group), "MPI_Group_incl");
    check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, group, tag_, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    return comm;
  }

 private:
  int bytes_of_all() const { return size_ * static_cast<int>(sizeof(Member)); }
  void receive(Member& member, int from, int tag) {
    check_mpi(MPI_Irecv(&member, sizeof(member), MPI_BYTE, from, tag, MPI_COMM_WORLD,
                        &requests_.emplace_back()),
              "MPI_Irecv");
  }
  void send(const void* data, std::size_t bytes, int to, int tag) {
    check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, MPI_COMM_WORLD,
                        &requests_.emplace_back()),
              "MPI_Isend");
  }

  int size_, root_ = 0, tag_ = 0;
  Member mine_{};
  bool has_told_ = false;
  std::vector<Member> came_, list_, members_;
  std::vector<MPI_Request> requests_, told_;
};

}  // namespace

// Work that is enqueued outlives its connection, so both hold this.
struct Link {
  std::string axis;
  int rank = 0, size = 1;
  MPI_Comm comm = MPI_COMM_NULL;
  std::atomic<bool> aborted = false;
  std::mutex mutex;
  std::string failure;
  bool of_peers = false;
  cuda::StreamState* stream = nullptr;
  std::int64_t issued = 0;
  std::atomic<std::int64_t> finished = 0;

  void fail(const std::string& text) {
    const std::lock_guard lock(mutex);
    if (failure.empty()) failure = text;
  }
  bool has_failed() {
    const std::lock_guard lock(mutex);
    return !failure.empty();
  }
};

class Connection {
 public:
  std::shared_ptr<Link> link = std::make_shared<Link>();
  std::unique_ptr<Joining> joining;
  bool ending = false;
};

UniqueId make_unique_id() {
  static_assert(sizeof(IdContents) <= sizeof(UniqueId));
  // Numbers only tell ids of one process apart, so the process is where they come from.
  static std::int32_t made = 0;
  IdContents contents{};
  std::memcpy(contents.magic, kMagic, sizeof(kMagic));
  MPI_Comm_rank(MPI_COMM_WORLD, &contents.root);
  contents.number = made++;
  UniqueId id;
  std::memcpy(id.bytes.data(), &contents, sizeof(contents));
  return id;
}

void EndConnection::operator()(Connection* connection) const {
  abort(*connection);
  Link& link = *connection->link;
  if (link.comm != MPI_COMM_NULL && link.finished == link.issued) MPI_Comm_free(&link.comm);
  delete connection;
}

ConnectionPtr begin(const Device&, const UniqueId& id, int rank, int size, std::string axis) {
  ConnectionPtr connection(new Connection);
  connection->link->axis = std::move(axis);
  connection->link->rank = rank;
  connection->link->size = size;
  connection->joining = std::make_unique<Joining>(id, rank, size);
  return connection;
}

State state_of(Connection& connection) {
  Link& link = *connection.link;
  if (link.aborted || link.has_failed()) return State::kFailed;
  if (connection.joining) {
    link.comm = connection.joining->advance();
    if (link.comm == MPI_COMM_NULL) return State::kInProgress;
    connection.joining.reset();
  }
  if (!connection.ending) return State::kReady;
  emulated::go_on();
  return link.finished == link.issued ? State::kReady : State::kInProgress;
}

bool has_failed(Connection& connection) { return connection.link->has_failed(); }

bool concerns_peers(Connection& connection) {
  const std::lock_guard lock(connection.link->mutex);
  return connection.link->of_peers;
}

void fail(Connection& connection, std::string text, bool of_peers) {
  const std::lock_guard lock(connection.link->mutex);
  connection.link->failure = std::move(text);
  connection.link->of_peers = of_peers;
}

std::string failure_of(Connection& connection) {
  const std::lock_guard lock(connection.link->mutex);
  return connection.link->failure.empty() ? "it was aborted" : connection.link->failure;
}

void issue(Connection& connection, Stream& stream, std::span<const Call> group) {
  const auto link = connection.link;
  if (link->aborted) throw CommError("NCCL's communicator was aborted");
  COPPICE_CHECK(link->comm != MPI_COMM_NULL, "{} axis: a collective before all have joined",
                link->axis);
  auto& state = stream.state();
  COPPICE_CHECK(link->stream == nullptr || link->stream == &state,
                "{} axis: collectives on two streams", link->axis);
  link->stream = &state;
  const auto serial = link->issued++;
  const auto run =
      std::make_shared<GroupRun>(GroupPlace{link->comm, link->rank, link->size, link->axis, serial,
                                            emulated::gpu().options.seed},
                                 group);
  const auto attempt = [link, run] {
    if (link->aborted) return true;
    try {
      if (!run->advance()) return false;
    } catch (const std::exception& error) {
      link->fail(error.what());
      throw;
    }
    ++link->finished;
    return true;
  };
  emulated::enqueue_attempts(state, fmt::format("NCCL over the {} axis", link->axis), attempt,
                             {run->uses(), {link, &link->aborted}});
}

void begin_end(Connection& connection) { connection.ending = true; }

void abort(Connection& connection) noexcept { connection.link->aborted = true; }

void while_host_waits() { emulated::go_on(); }

std::string version() { return "emulated NCCL over MPI"; }

std::string text_of(int code) { return fmt::format("emulated NCCL's code {}", code); }

}  // namespace coppice::nccl
