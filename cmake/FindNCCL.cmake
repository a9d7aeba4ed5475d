# Finds NVIDIA's NCCL as the target NCCL::NCCL: where launch/setup --cuda puts it, beside the CUDA
# toolkit, then where the system's packages are. No environment variable is read.
find_path(NCCL_INCLUDE_DIR nccl.h
  PATHS ${PROJECT_SOURCE_DIR}/.cache/nccl ${coppice_toolkits} ${COPPICE_CUDA_INCLUDE}/.. /usr /usr/local
  PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(NCCL_LIBRARY nccl
  PATHS ${PROJECT_SOURCE_DIR}/.cache/nccl ${coppice_toolkits} ${COPPICE_CUDA_INCLUDE}/.. /usr /usr/local
  PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu NO_DEFAULT_PATH)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  list(TRANSFORM lines REPLACE ".* ([0-9]+)$" "\\1")
  list(JOIN lines "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "Run launch/setup --cuda, or use the preset emulated.")

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES
    IMPORTED_LOCATION ${NCCL_LIBRARY}
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR};${COPPICE_CUDA_INCLUDE}")
endif()
