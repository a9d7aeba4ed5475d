#pragma once
// What ranks tell each other beside tensors: texts, sums that wrap around, and whether a step that
// each took on its own has succeeded everywhere. A rank that fails alone would leave the others
// waiting in the next collective for ever; here all go on, or all throw.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/communicator.hpp"

namespace coppice {

/// The texts of all ranks (any bytes, of any length), in rank order.
///
/// Parallel  collective, like everything here
std::vector<std::string> all_gather_texts(Communicator& comm, std::string_view mine);

/// The text of rank `root`; what others pass is not looked at.
std::string broadcast_text(Communicator& comm, std::string_view mine, int root = 0);

/// Every number becomes its sum over ranks, modulo 2^64. All ranks pass equally many.
void sum_modulo_2_64(Communicator& comm, std::span<std::uint64_t> numbers);

/// Runs `body` on every rank. If it throws on any, all ranks throw the same error: the class and
/// message of the lowest rank that failed, which the message names; of input errors the problems of
/// all ranks together, each once. With one rank its exception passes unchanged.
///
/// Parallel  collective; `body` itself must not wait for other ranks
void succeed_together(Communicator& comm, const std::function<void()>& body);

}  // namespace coppice
