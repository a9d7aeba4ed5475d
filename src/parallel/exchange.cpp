#include "parallel/exchange.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"

namespace coppice {
namespace {

// Texts travel as 64-bit words, the last one filled up with zeros.
constexpr std::int64_t kWord = 8;

std::int64_t words_of(std::int64_t bytes) { return (bytes + kWord - 1) / kWord; }

std::vector<std::int64_t> packed(std::string_view text) {
  std::vector<std::int64_t> words(static_cast<std::size_t>(words_of(std::ssize(text))));
  if (!text.empty()) std::memcpy(words.data(), text.data(), text.size());
  return words;
}

TensorView view_of(std::vector<std::int64_t>& words) {
  return host_view(words.data(), Shape{std::ssize(words)});
}

std::string unpacked(const std::int64_t* words, std::int64_t bytes) {
  return {reinterpret_cast<const char*>(words), static_cast<std::size_t>(bytes)};
}

// What a failure is told as: which class, and its lines; more than one only for input errors.
enum class ErrorClass : char {
  kConfig = 'c',
  kData = 'd',
  kInput = 'i',
  kIo = 'o',
  kComm = 'm',
  kDevice = 'v',
  kContract = 'k',
  kOther = 'e'
};

struct Failure {
  ErrorClass kind;
  std::vector<std::string> lines;

  bool is_input() const {
    return kind == ErrorClass::kConfig || kind == ErrorClass::kData || kind == ErrorClass::kInput;
  }
};

Failure current_failure() {
  try {
    throw;
  } catch (const ConfigError& error) {
    return {ErrorClass::kConfig, error.problems()};
  } catch (const DataError& error) {
    return {ErrorClass::kData, error.problems()};
  } catch (const InputError& error) {
    return {ErrorClass::kInput, error.problems()};
  } catch (const IoError& error) {
    return {ErrorClass::kIo, {error.what()}};
  } catch (const CommError& error) {
    return {ErrorClass::kComm, {error.what()}};
  } catch (const DeviceError& error) {
    return {ErrorClass::kDevice, {error.what()}};
  } catch (const ContractError& error) {
    return {ErrorClass::kContract, {error.what()}};
  } catch (const std::exception& error) {
    return {ErrorClass::kOther, {error.what()}};
  } catch (...) {
    return {ErrorClass::kOther, {"an exception without a message"}};
  }
}

// The class, then each line behind its length: "o12:disk is full". Empty: no failure.
std::string text_of(const Failure& failure) {
  std::string text(1, static_cast<char>(failure.kind));
  for (const auto& line : failure.lines) text += fmt::format("{}:{}", line.size(), line);
  return text;
}

Failure failure_of(const std::string& text) {
  Failure failure{static_cast<ErrorClass>(text.front()), {}};
  for (std::size_t at = 1; at < text.size();) {
    const std::size_t colon = text.find(':', at);
    const std::size_t size = std::stoull(text.substr(at, colon - at));
    failure.lines.push_back(text.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return failure;
}

[[noreturn]] void raise(const Failure& failure) {
  const auto message = [&] { return failure.lines.empty() ? std::string() : failure.lines[0]; };
  switch (failure.kind) {
    case ErrorClass::kConfig:
      throw ConfigError(failure.lines);
    case ErrorClass::kData:
      throw DataError(failure.lines);
    case ErrorClass::kInput:
      throw InputError(failure.lines);
    case ErrorClass::kIo:
      throw IoError(message());
    case ErrorClass::kComm:
      throw CommError(message());
    case ErrorClass::kDevice:
      throw DeviceError(message());
    case ErrorClass::kContract:
      throw ContractError(message());
    case ErrorClass::kOther:
      break;
  }
  throw Error(message());
}

}  // namespace

std::vector<std::string> all_gather_texts(Communicator& comm, std::string_view mine) {
  Stream host{Device{}};
  const auto ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::int64_t> length{std::ssize(mine)}, lengths(ranks), rows, words = packed(mine);
  comm.all_gather(host, view_of(length), view_of(lengths));
  std::int64_t total = 0;
  for (const std::int64_t bytes : lengths) {
    rows.push_back(words_of(bytes));
    total += rows.back();
  }
  std::vector<std::int64_t> whole(static_cast<std::size_t>(total));
  comm.all_gather(host, view_of(words), view_of(whole), rows);
  std::vector<std::string> texts;
  const std::int64_t* at = whole.data();
  for (std::size_t rank = 0; rank < ranks; at += rows[rank++]) {
    texts.push_back(unpacked(at, lengths[rank]));
  }
  return texts;
}

std::string broadcast_text(Communicator& comm, std::string_view mine, int root) {
  Stream host{Device{}};
  std::vector<std::int64_t> length{std::ssize(mine)};
  comm.broadcast(host, view_of(length), root);
  std::vector<std::int64_t> words =
      comm.rank() == root ? packed(mine) : std::vector<std::int64_t>{};
  words.resize(static_cast<std::size_t>(words_of(length[0])));
  comm.broadcast(host, view_of(words), root);
  return unpacked(words.data(), length[0]);
}

void sum_modulo_2_64(Communicator& comm, std::span<std::uint64_t> numbers) {
  // Upper and lower halves are summed apart: no sum of them overflows a signed number.
  Stream host{Device{}};
  std::vector<std::int64_t> halves;
  for (const std::uint64_t number : numbers) {
    halves.push_back(static_cast<std::int64_t>(number >> 32));
    halves.push_back(static_cast<std::int64_t>(number & 0xFFFF'FFFFu));
  }
  comm.all_reduce(host, view_of(halves), ReduceOp::kSum);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto upper = static_cast<std::uint64_t>(halves[2 * i]);
    const auto lower = static_cast<std::uint64_t>(halves[2 * i + 1]);
    numbers[i] = (upper << 32) + lower;
  }
}

void succeed_together(Communicator& comm, const std::function<void()>& body) {
  if (comm.size() == 1) return body();
  std::string mine;
  try {
    body();
  } catch (...) {
    mine = text_of(current_failure());
  }
  const auto texts = all_gather_texts(comm, mine);
  const auto first =
      std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
  if (first == texts.end()) return;
  Failure failure = failure_of(*first);
  if (failure.is_input()) {
    for (auto text = first + 1; text != texts.end(); ++text) {
      if (text->empty()) continue;
      for (const auto& line : failure_of(*text).lines) {
        const bool is_known = std::ranges::find(failure.lines, line) != failure.lines.end();
        if (!is_known) failure.lines.push_back(line);
      }
    }
  } else {
    failure.lines.resize(1);
    failure.lines[0] = fmt::format("rank {}: {}", first - texts.begin(), failure.lines[0]);
  }
  raise(failure);
}

}  // namespace coppice
