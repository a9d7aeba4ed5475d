#pragma once
// What one rank computes with: its device's stream, memory and scratch, its communicators. Commands
// make one and hand out references; nothing about it is global.
#include <memory>

#include "core/exec_context.hpp"
#include "parallel/parallel_context.hpp"

namespace coppice {

/// One rank on the CPU.
class Session {
 public:
  explicit Session(int threads)
      : ctx_{stream_, memory_, scratch_, threads}, self_(make_self_communicator()) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  ExecContext& ctx() { return ctx_; }
  Memory& memory() { return memory_; }
  ParallelContext parallel() { return {*self_, *self_, *self_}; }

 private:
  Memory memory_{Device{}};
  Stream stream_{Device{}};
  Arena scratch_{memory_, "scratch"};
  ExecContext ctx_;
  std::unique_ptr<Communicator> self_;
};

}  // namespace coppice
