# How the CUDA backend is compiled. One kernel source, two builds, told apart by include path alone:
#   preset cuda      nvcc, with src/core/cuda/real before it
#   preset emulated  g++ reads the same .cu files as C++, with src/core/cuda/emulated before them.
#                    -fsanitize=thread makes the compiler report every load and store, and
#                    -fsanitize=alignment those that would fault; the emulator receives these calls,
#                    so the sanitizers' own runtime is never linked.
# A CPU build looks for nothing and compiles nothing of it.

if(COPPICE_CUDA AND NOT COPPICE_EMULATED_DEVICE)
  # Where launch/setup --cuda puts the toolkit, then where NVIDIA's packages do.
  set(coppice_toolkits ${PROJECT_SOURCE_DIR}/.cache/cuda /usr/local/cuda /opt/cuda)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(COPPICE_NVCC nvcc HINTS ${coppice_toolkits} PATH_SUFFIXES bin)
    if(NOT COPPICE_NVCC)
      message(FATAL_ERROR "No nvcc in ${coppice_toolkits} or on the PATH (the preset cuda compiles "
                          "kernels with it). Run launch/setup --cuda, or use the preset emulated.")
    endif()
    set(CMAKE_CUDA_COMPILER ${COPPICE_NVCC})
  endif()
  # Each file's flags name the architectures: CMake's own list has no "code for 90a and PTX for 90".
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  enable_language(CUDA)
  # CMake 3.25 has not heard that nvcc speaks C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA_STANDARD 20)
  # By hand: the module FindCUDAToolkit of CMake 3.25 fails on a toolkit 13 that has no NVTX.
  get_filename_component(toolkit ${CMAKE_CUDA_COMPILER} REALPATH)
  get_filename_component(toolkit ${toolkit}/../.. ABSOLUTE)
  find_path(COPPICE_CUDA_INCLUDE cuda_runtime_api.h PATHS ${toolkit}/include
            ${toolkit}/targets/x86_64-linux/include REQUIRED NO_DEFAULT_PATH)
  foreach(library cudart cublasLt)
    find_library(COPPICE_CUDA_${library} ${library} PATHS ${toolkit}/lib64 ${toolkit}/lib
                 ${toolkit}/targets/x86_64-linux/lib REQUIRED NO_DEFAULT_PATH)
  endforeach()
  # 90a holds what only this chip has; the PTX is for chips that do not exist yet.
  set(coppice_cuda_flags
      -gencode=arch=compute_80,code=sm_80
      -gencode=arch=compute_90a,code=sm_90a
      -gencode=arch=compute_90,code=compute_90
      --expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall
      --no-compress  # tools/kernel_resources reads the code in the object files
      -DFMT_USE_CONSTEXPR=1)  # fmt 9 does not know that nvcc has constexpr
endif()

# What kernels and their launches include as "device/...".
add_library(coppice_device INTERFACE)
if(COPPICE_CUDA)
  target_include_directories(coppice_device INTERFACE ${PROJECT_SOURCE_DIR}/src/core/cuda/both)
endif()
if(COPPICE_EMULATED_DEVICE)
  target_include_directories(coppice_device INTERFACE ${PROJECT_SOURCE_DIR}/src/core/cuda/emulated)
elseif(COPPICE_CUDA)
  target_include_directories(coppice_device INTERFACE ${PROJECT_SOURCE_DIR}/src/core/cuda/real)
  target_include_directories(coppice_device SYSTEM INTERFACE ${COPPICE_CUDA_INCLUDE})
  target_link_libraries(coppice_device INTERFACE ${COPPICE_CUDA_cudart})
endif()

# All kernels, and all test programs with the label of a CUDA device.
add_custom_target(device_tests)

# coppice_cuda_sources(TARGET file.cu...) adds kernels to a target of this folder.
function(coppice_cuda_sources target)
  if(NOT COPPICE_CUDA OR NOT ARGN)
    return()
  endif()
  target_sources(${target} PRIVATE ${ARGN})
  target_link_libraries(${target} PRIVATE coppice_device)
  add_dependencies(device_tests ${target})
  if(COPPICE_EMULATED_DEVICE)
    # Not vectorised: a vector load may take in a neighbour that another thread writes. And no loop
    # turned into memset or memcpy, which the compiler does not report.
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
      "-x;c++;-fsanitize=thread,alignment;--param;tsan-instrument-func-entry-exit=0;-g1;-Wno-unknown-pragmas;-fno-tree-vectorize;-fno-tree-loop-distribute-patterns")
  else()
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${coppice_cuda_flags}")
  endif()
endfunction()
