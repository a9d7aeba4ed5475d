#include "parallel/mpi/pairwise_reduction.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "parallel/mpi/mpi_communicator.hpp"

namespace coppice {
namespace {

// Large enough that a message's start costs nothing beside it; a rank's blocks stay in its cache.
constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
constexpr int kTag = 1;

template <class T>
void reduce_into(T* sum, const T* other, std::int64_t count, ReduceOp op) {
  if (op == ReduceOp::kSum) {
    for (std::int64_t i = 0; i < count; ++i) sum[i] += other[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i) sum[i] = std::max(sum[i], other[i]);
  }
}

void reduce_into(std::byte* sum, const std::byte* other, std::int64_t count, DType dtype,
                 ReduceOp op) {
  const auto as = [&]<class T>(const T*) {
    reduce_into(reinterpret_cast<T*>(sum), reinterpret_cast<const T*>(other), count, op);
  };
  switch (dtype) {
    case DType::kF32:
      return as(static_cast<const float*>(nullptr));
    case DType::kF64:
      return as(static_cast<const double*>(nullptr));
    case DType::kI32:
      return as(static_cast<const std::int32_t*>(nullptr));
    case DType::kI64:
      return as(static_cast<const std::int64_t*>(nullptr));
    case DType::kBF16:
    case DType::kF16:
      break;
  }
  throw ContractError(fmt::format("{} is not summed over ranks", name_of(dtype)));
}

}  // namespace

MPI_Datatype number_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kI32:
      return MPI_INT32_T;
    case DType::kI64:
      return MPI_INT64_T;
    case DType::kBF16:
    case DType::kF16:
      break;
  }
  throw ContractError(fmt::format("MPI cannot sum {}", name_of(dtype)));
}

void PairwiseReduction::run(const std::byte* whole, std::byte* result,
                            std::span<const std::int64_t> begins, DType dtype, ReduceOp op,
                            const Finish& finish) {
  int me = 0, ranks = 1;
  MPI_Comm_rank(comm_, &me);
  MPI_Comm_size(comm_, &ranks);
  const MPI_Datatype type = number_type(dtype);
  const std::int64_t size = size_of(dtype), block = kBlockBytes / size;
  const auto piece = [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    return begins[r + 1] - begins[r];
  };
  std::int64_t longest = 0;
  for (int rank = 0; rank < ranks; ++rank) longest = std::max(longest, piece(rank));
  staging_.resize(static_cast<std::size_t>(ranks * std::min(block, longest) * size));
  const auto staged = [&](int rank) {
    return staging_.data() + rank * std::min(block, longest) * size;
  };
  const std::byte* own = whole + begins[static_cast<std::size_t>(me)] * size;

  std::vector<MPI_Request> requests;
  for (std::int64_t at = 0; at < longest; at += block) {
    const auto count_of = [&](int rank) {
      return std::clamp<std::int64_t>(piece(rank) - at, 0, block);
    };
    const std::int64_t mine = count_of(me);
    requests.clear();
    for (int shift = 1; shift < ranks; ++shift) {
      const int to = (me + shift) % ranks, from = (me - shift + ranks) % ranks;
      if (mine > 0) {
        check_mpi(MPI_Irecv(staged(from), static_cast<int>(mine), type, from, kTag, comm_,
                            &requests.emplace_back()),
                  "MPI_Irecv");
      }
      if (count_of(to) > 0) {
        const std::byte* sent = whole + (begins[static_cast<std::size_t>(to)] + at) * size;
        check_mpi(MPI_Isend(sent, static_cast<int>(count_of(to)), type, to, kTag, comm_,
                            &requests.emplace_back()),
                  "MPI_Isend");
      }
    }
    finish(requests);
    if (mine == 0) continue;
    const auto bytes = static_cast<std::size_t>(mine * size);
    std::memcpy(staged(me), own + at * size, bytes);
    std::memcpy(result + at * size, staged(0), bytes);
    for (int rank = 1; rank < ranks; ++rank) {
      reduce_into(result + at * size, staged(rank), mine, dtype, op);
    }
  }
}

}  // namespace coppice
