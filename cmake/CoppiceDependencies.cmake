# Every library the program stands on, found once. Nothing is downloaded: launch/setup installs them.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(dnnl REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(Protobuf REQUIRED)
find_package(CLI11 REQUIRED)
find_package(simdjson REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)

# The parallel build of HDF5: one library for one process and for many.
set(HDF5_PREFER_PARALLEL ON)
# MPI's old C++ classes are not wanted, only its C functions.
set(MPI_CXX_SKIP_MPICXX TRUE)
find_package(MPI REQUIRED COMPONENTS C CXX)
find_package(HDF5 REQUIRED COMPONENTS C)

if(COPPICE_TESTS)
  find_package(GTest REQUIRED)
endif()
if(COPPICE_BENCH)
  find_package(benchmark REQUIRED)
endif()
