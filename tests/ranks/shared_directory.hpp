#pragma once
// One temporary directory for all ranks of a test; it goes when every rank is done with it.
#include <filesystem>
#include <optional>
#include <string>

#include "parallel/exchange.hpp"
#include "support/temporary_directory.hpp"

namespace coppice::test {

class SharedDirectory {
 public:
  explicit SharedDirectory(Communicator& world) : world_(world) {
    if (world.rank() == 0) own_.emplace();
    path_ = broadcast_text(world, own_ ? own_->path().string() : "");
  }
  ~SharedDirectory() { wait_for_all(); }
  SharedDirectory(const SharedDirectory&) = delete;
  SharedDirectory& operator=(const SharedDirectory&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  /// Names inside as rank 0 sees them, hidden ones too, in one text.
  std::string names() const {
    std::string text;
    if (own_) {
      for (const auto& name : own_->names()) text += name + " ";
    }
    return broadcast_text(world_, text);
  }
  void wait_for_all() const {
    Stream host{Device{}};
    world_.barrier(host);
  }

 private:
  Communicator& world_;
  std::optional<TemporaryDirectory> own_;
  std::filesystem::path path_;
};

}  // namespace coppice::test
