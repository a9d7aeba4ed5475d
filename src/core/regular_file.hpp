#pragma once
// Whether a name leads to a file with a content of its own. Opening a pipe waits for whoever writes
// into it, for ever if nobody does, and what was read from one is gone; so whoever opens an input
// asks here first. What is in the file is the reader's business.
#include <filesystem>
#include <string>

namespace coppice {

/// Why `path` cannot be read as a file, e.g. "No such file or directory" or "it is no file but a
/// pipe, socket or device"; empty where it can. Links are followed. Never waits, never throws.
std::string why_unreadable(const std::filesystem::path& path);

}  // namespace coppice
