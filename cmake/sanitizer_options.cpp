// What the sanitizers need to know about libraries that are not ours; every program of a sanitize build
// carries it. HDF5 (1.10.8) leaks a few hundred bytes for each damaged file it refuses to open.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }
