#pragma once
// Addresses that only the device's own work may touch. A host that reads a tensor of a GPU by its
// pointer dies there; here it dies too, with a line that says why, because the pages are closed
// except while work of the device runs. Which bytes are whose is left to DeviceMemory.
#include <cstddef>
#include <cstdint>

namespace coppice::emulated {

/// Memory    pages come from a range of addresses reserved once and are never handed out twice
class GuardedRegion {
 public:
  GuardedRegion() = default;
  ~GuardedRegion();
  GuardedRegion(const GuardedRegion&) = delete;
  GuardedRegion& operator=(const GuardedRegion&) = delete;

  /// Whole pages; null where the range is used up.
  std::byte* take(std::int64_t bytes);
  /// The pages' memory goes back to the system; their addresses stay taken.
  void give_back(std::byte* pages, std::int64_t bytes);

  void open();
  void close();

 private:
  std::byte* begin_ = nullptr;
  std::int64_t used_ = 0;
  int opened_ = 0;
};

/// Open for the length of a scope; scopes may lie in each other.
class Opened {
 public:
  explicit Opened(GuardedRegion& region) : region_(region) { region_.open(); }
  ~Opened() { region_.close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  GuardedRegion& region_;
};

}  // namespace coppice::emulated
