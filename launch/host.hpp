#pragma once
// What the program asks of the machine it runs on.
#include <cstdint>
#include <string>

namespace coppice {

/// The machine's name, for error lines.
std::string host_name();

/// Processors this process may use, at least 1.
int available_cores();

/// "2 cores of AMD EPYC 7B13": what a measurement was made on.
std::string machine_description();

/// Bytes of memory that processes here may have together: the machine's, or what the control group
/// leaves of them.
std::int64_t memory_limit_bytes();

/// True if standard error is a terminal (then long work shows a bar, else one line per step).
bool shows_progress_bar();

/// Columns of the terminal at standard error; 80 where it does not say.
int terminal_width();

/// Puts /dev/null where standard input, output or error were closed, before any file is opened: the
/// first one would take their number, and receive what is printed.
void open_closed_streams();

}  // namespace coppice
