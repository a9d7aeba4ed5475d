#include "parallel/process_grid.hpp"

namespace coppice {

GridCoordinates coordinates_of(int world_rank, const GridSizes& sizes) {
  return {.tp_rank = world_rank % sizes.tensor,
          .cp_rank = world_rank / sizes.tensor % sizes.context,
          .dp_rank = world_rank / (sizes.tensor * sizes.context)};
}

ProcessGrid::ProcessGrid()
    : tensor_(make_self_communicator()),
      context_(make_self_communicator()),
      data_(make_self_communicator()),
      replicas_(make_self_communicator()),
      world_(make_self_communicator()) {}

ProcessGrid::ProcessGrid(MpiSession& session, const GridSizes& sizes, WatchdogConfig watchdog)
    : sizes_(sizes), coordinates_(coordinates_of(session.rank(), sizes)) {
  COPPICE_CHECK(sizes.ranks() == session.size(), "a grid of {} x {} x {} for {} ranks", sizes.data,
                sizes.context, sizes.tensor, session.size());
  const auto [tp, cp, dp] = coordinates_;
  // An axis of one rank needs no MPI communicator, and sends nothing through it.
  const auto axis = [&](int size, int color, const char* name) {
    auto comm = session.split(color, name, watchdog);
    return size == 1 ? make_self_communicator() : std::move(comm);
  };
  tensor_ = axis(sizes.tensor, dp * sizes.context + cp, "tensor");
  context_ = axis(sizes.context, dp * sizes.tensor + tp, "context");
  data_ = axis(sizes.data, cp * sizes.tensor + tp, "data");
  replicas_ = axis(sizes.data * sizes.context, tp, "data x context");
  world_ = axis(sizes.ranks(), 0, "world");
}

}  // namespace coppice
