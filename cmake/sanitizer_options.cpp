// What the sanitizers need to know; every program of a sanitize build carries it.

// HDF5 (1.10.8) leaks a few hundred bytes for each damaged file it refuses to open. Open MPI (4.1)
// and the libraries below it keep what they allocate at the start; some of it shows only as
// vasprintf, which nothing of ours calls.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libhdf5\n"
         "leak:libmpi\nleak:libopen-\nleak:openmpi\nleak:pmix\nleak:libhwloc\nleak:libevent\n"
         "leak:vasprintf";
}

// Open MPI unloads its plugins before leaks are counted, and what is unloaded has no name to
// suppress.
extern "C" int dlclose(void*) { return 0; }

// A block that the system does not have is an error of ours to report, not the sanitizer's.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
