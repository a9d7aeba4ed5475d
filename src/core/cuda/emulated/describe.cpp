// Names of places in the program, for errors: a file and a line where debug information and
// addr2line are at hand, else an address.
#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "core/cuda/emulated/block.hpp"

extern "C" char __executable_start, _end;

namespace coppice::emulated {
namespace {

std::string_view file_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// The first of the inlined frames that is not one of the wrappers in device/.
std::string first_kernel_line(std::FILE* lines) {
  char buffer[4096];
  std::string found;
  while (std::fgets(buffer, sizeof buffer, lines) != nullptr) {
    std::string_view line(buffer);
    line = line.substr(0, line.find_first_of(" \n"));
    if (line.starts_with("??")) continue;
    if (found.empty()) found = file_of(line);
    if (line.find("/device/") != line.npos) continue;
    return std::string(file_of(line));
  }
  return found;
}

}  // namespace

std::int32_t code_offset(const void* code) {
  return static_cast<std::int32_t>(static_cast<const char*>(code) -
                                   reinterpret_cast<const char*>(&code_offset));
}

std::string describe_code(std::int32_t offset) {
  return describe_code(reinterpret_cast<const char*>(&code_offset) + offset);
}

std::string describe_code(const void* code) {
  Dl_info image{};
  if (code == nullptr || dladdr(code, &image) == 0) return "";
  // A position-independent program is looked up relative to where it lies. The address is one
  // behind a call: the call itself is what is asked for.
  const bool relative = static_cast<const Elf64_Ehdr*>(image.dli_fbase)->e_type == ET_DYN;
  const auto address = static_cast<const char*>(code) - 1 -
                       (relative ? static_cast<const char*>(image.dli_fbase) : nullptr);
  const auto command =
      fmt::format("addr2line -i -e /proc/{}/exe {:#x} 2>/dev/null", getpid(), address);
  std::string line;
  if (std::FILE* lines = popen(command.c_str(), "r")) {
    line = first_kernel_line(lines);
    pclose(lines);
  }
  return line.empty() ? fmt::format("at program address {:#x}", address) : "at " + line;
}

std::string describe(const std::source_location& place) {
  return fmt::format("{}:{}", file_of(place.file_name()), place.line());
}

bool is_program_data(const void* address) {
  return address >= &__executable_start && address < &_end;
}

}  // namespace coppice::emulated
