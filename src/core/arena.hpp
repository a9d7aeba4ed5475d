#pragma once
// Memory that is leased in a stack's order and given back all at once: activations of a
// micro-batch, scratch of a call. In the steady state it allocates nothing: after its first round
// it holds one block as large as the most it ever leased.
#include <cstdint>
#include <string>
#include <vector>

#include "core/memory.hpp"
#include "core/tensor.hpp"

namespace coppice {

/// Memory    leases are aligned to 64 bytes and hold no defined values (NaN under kPoison)
class Arena {
 public:
  /// `name` is the line of the memory account that its blocks count in.
  Arena(Memory& memory, std::string name) : memory_(&memory), name_(std::move(name)) {}

  Tensor tensor(DType dtype, Shape shape) { return Tensor(lease(dtype, shape)); }
  TensorView lease(DType dtype, Shape shape);
  TensorView like(ConstTensorView other) { return lease(other.dtype(), other.shape()); }
  /// A matrix that a product sums over the rows of, as a weight's gradient does. Rows a multiple of
  /// 4 KiB apart would put a column's entries into the same few lines of the first cache (measured:
  /// such a product took a quarter longer), so they lie a little further apart then.
  TensorView matrix(DType dtype, std::int64_t rows, std::int64_t columns);

  /// Ends every lease. Several blocks become one that holds all of them.
  void reset();
  /// Makes room for `bytes` now, so that leases up to there allocate nothing. Call it when empty.
  void reserve(std::int64_t bytes);

  /// The most that was leased at one time since the arena was made.
  std::int64_t high_water_bytes() const { return high_water_; }
  /// Bytes that one tensor takes in an arena, for plans.
  static std::int64_t leased_bytes(DType dtype, const Shape& shape);
  static std::int64_t matrix_bytes(DType dtype, std::int64_t rows, std::int64_t columns);

 private:
  friend class ScratchScope;
  struct Mark {
    std::size_t block;
    std::int64_t used;
    std::int64_t total;
  };
  Mark mark() const;
  void release_to(const Mark& mark);

  struct Block {
    Buffer buffer;
    std::int64_t used = 0;
  };
  Memory* memory_;
  std::string name_;
  std::vector<Block> blocks_;
  std::size_t current_ = 0;  // the block that leases come from; later blocks are empty
  std::int64_t total_ = 0;
  std::int64_t high_water_ = 0;
};

/// Leases for the length of a scope; what was leased through it ends with it.
class ScratchScope {
 public:
  explicit ScratchScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ScratchScope() { arena_.release_to(mark_); }
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

  TensorView lease(DType dtype, Shape shape) { return arena_.lease(dtype, shape); }
  TensorView like(ConstTensorView other) { return arena_.like(other); }
  TensorView matrix(DType dtype, std::int64_t rows, std::int64_t columns) {
    return arena_.matrix(dtype, rows, columns);
  }
  Arena& arena() { return arena_; }

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace coppice
