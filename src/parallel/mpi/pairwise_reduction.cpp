#include "parallel/mpi/pairwise_reduction.hpp"

#include <algorithm>
#include <array>
#include <type_traits>

#include "core/error.hpp"
#include "parallel/mpi/mpi_communicator.hpp"

namespace coppice {
namespace {

// Of one of the two blocks under way. Large enough that a message's start costs nothing beside it.
constexpr std::int64_t kStagingBytes = std::int64_t{1} << 20;
constexpr int kTag = 1;

template <class T>
void add(T& sum, T value) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    sum = static_cast<T>(static_cast<Unsigned>(sum) + static_cast<Unsigned>(value));
  } else {
    sum += value;
  }
}

template <class T>
void reduce(ReduceOp op, std::span<const std::byte* const> pieces, std::byte* into,
            std::int64_t count) {
  // Small enough for the first cache; sums are made here, because `into` may be a piece.
  constexpr std::int64_t kBlock = 1024;
  std::array<T, kBlock> sums;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const auto length = std::min(kBlock, count - begin);
    const auto piece = [&](std::size_t rank) {
      return reinterpret_cast<const T*>(pieces[rank]) + begin;
    };
    std::copy_n(piece(0), length, sums.data());
    for (std::size_t rank = 1; rank < pieces.size(); ++rank) {
      const T* values = piece(rank);
      if (op == ReduceOp::kSum) {
        for (std::int64_t i = 0; i < length; ++i) add(sums[static_cast<std::size_t>(i)], values[i]);
      } else {
        for (std::int64_t i = 0; i < length; ++i) {
          T& most = sums[static_cast<std::size_t>(i)];
          most = values[i] > most ? values[i] : most;
        }
      }
    }
    std::copy_n(sums.data(), length, reinterpret_cast<T*>(into) + begin);
  }
}

// into[i] = pieces[0][i] op pieces[1][i] op ...; `into` may be one of the pieces.
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> pieces, std::byte* into,
            std::int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return reduce<float>(op, pieces, into, count);
    case DType::kF64:
      return reduce<double>(op, pieces, into, count);
    case DType::kI32:
      return reduce<std::int32_t>(op, pieces, into, count);
    case DType::kI64:
      return reduce<std::int64_t>(op, pieces, into, count);
    case DType::kBF16:
    case DType::kF16:
      break;
  }
  throw ContractError(fmt::format("{} is not summed over ranks", name_of(dtype)));
}

}  // namespace

// In blocks: the next is under way while one is summed.
void PairwiseReduction::run(const std::byte* whole, std::byte* result,
                            std::span<const std::int64_t> begins, DType dtype, ReduceOp op,
                            const Finish& finish) {
  int me = 0, ranks = 1;
  MPI_Comm_rank(comm_, &me);
  MPI_Comm_size(comm_, &ranks);
  const std::int64_t size = size_of(dtype);
  const std::int64_t block =
      std::max<std::int64_t>(kStagingBytes / std::max(1, ranks - 1) / size, 1);
  const auto begin_of = [&](int rank) { return begins[static_cast<std::size_t>(rank)]; };
  const auto piece_of = [&](int rank) { return begin_of(rank + 1) - begin_of(rank); };
  const auto in_block = [&](int rank, std::int64_t at) {
    return std::clamp<std::int64_t>(piece_of(rank) - at, 0, block);
  };
  std::int64_t longest = 0;
  for (int rank = 0; rank < ranks; ++rank) longest = std::max(longest, piece_of(rank));
  const auto place_bytes = std::min(block, piece_of(me)) * size;
  staging_.resize(static_cast<std::size_t>(2 * ranks * place_bytes));
  const auto turn = [&](std::int64_t at) { return at / block % 2; };
  const auto staged = [&](std::int64_t at, int rank) {
    return staging_.data() + (turn(at) * ranks + rank) * place_bytes;
  };

  std::array<std::vector<MPI_Request>, 2> requests;
  const auto start = [&](std::int64_t at) {
    auto& round = requests[static_cast<std::size_t>(turn(at))];
    round.clear();
    for (int shift = 1; shift < ranks; ++shift) {
      const int from = (me + shift) % ranks, to = (me - shift + ranks) % ranks;
      const auto received = in_block(me, at) * size, sent = in_block(to, at) * size;
      if (received > 0) {
        check_mpi(MPI_Irecv(staged(at, from), static_cast<int>(received), MPI_BYTE, from, kTag,
                            comm_, &round.emplace_back()),
                  "MPI_Irecv");
      }
      if (sent > 0) {
        check_mpi(MPI_Isend(whole + (begin_of(to) + at) * size, static_cast<int>(sent), MPI_BYTE,
                            to, kTag, comm_, &round.emplace_back()),
                  "MPI_Isend");
      }
    }
  };
  if (longest > 0) start(0);
  for (std::int64_t at = 0; at < longest; at += block) {
    if (at + block < longest) start(at + block);
    finish(requests[static_cast<std::size_t>(turn(at))]);
    std::vector<const std::byte*> pieces;
    for (int rank = 0; rank < ranks; ++rank) {
      pieces.push_back(rank == me ? whole + (begin_of(rank) + at) * size : staged(at, rank));
    }
    reduce(dtype, op, pieces, result + at * size, in_block(me, at));
  }
}

}  // namespace coppice
