// What the sanitizers need to know; every program of a sanitize build carries it.

// HDF5 (1.10.8) leaks a few hundred bytes for each damaged file it refuses to open.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }

// A block that the system does not have is an error of ours to report, not the sanitizer's.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
