# All test programs with the label unit: what the sanitizers' build needs.
add_custom_target(unit_tests)

# Three helpers, so that a folder's CMakeLists.txt only lists its files and what it stands on.
include(GoogleTest)

# Flags every target of ours is built with; no target passes its own.
add_library(coppice_flags INTERFACE)
# -Wrestrict warns of the standard library's own strings in g++ 12 (its bug 105329).
target_compile_options(coppice_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion;-Wno-restrict;-Werror=return-type>")
target_include_directories(coppice_flags INTERFACE ${PROJECT_SOURCE_DIR}/src
                                                   ${PROJECT_BINARY_DIR}/generated)
if(COPPICE_SANITIZE)
  target_compile_options(coppice_flags INTERFACE -fsanitize=address,undefined
                                                 -fno-sanitize-recover=all
                                                 -fno-omit-frame-pointer)
  target_link_options(coppice_flags INTERFACE -fsanitize=address,undefined)
  target_sources(coppice_flags INTERFACE ${PROJECT_SOURCE_DIR}/cmake/sanitizer_options.cpp)
endif()

# coppice_compile_together(TARGET SEPARATE file...)
# compiles the files of a target six at a time, but for those that stay separate: most of what a file
# of commands or tests costs is reading its headers. Two files may then not have the same name in
# their anonymous namespaces (tools/check_compiled_together looks). Kernels, and what other folders
# lend, stay separate.
function(coppice_compile_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  get_target_property(others ${target} SOURCES)
  list(FILTER others INCLUDE REGEX "\\.cu$|^\\.\\./")
  set_source_files_properties(${others} ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/sanitizer_options.cpp
                              PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# coppice_library(NAME SOURCES file... [CUDA file.cu...] [PUBLIC target...] [PRIVATE target...])
# makes the static library coppice_NAME of one folder of src/. A CPU build leaves the CUDA files out.
function(coppice_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;CUDA;PUBLIC;PRIVATE" ${ARGN})
  add_library(coppice_${name} STATIC ${arg_SOURCES})
  coppice_cuda_sources(coppice_${name} ${arg_CUDA})
  target_link_libraries(coppice_${name} PUBLIC coppice_flags ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
endfunction()

# coppice_test(NAME SOURCES file... [SEPARATE file...] [CUDA file.cu...] LINK target...
#              [LABELS label...] [TIMEOUT seconds] [PROCESSORS n])
# makes one test program; every case in it becomes a CTest entry of its own. Cases with Cuda in their
# names need a CUDA device: they get the label `cuda`, or `emulated` where the device is.
function(coppice_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;PROCESSORS" "SOURCES;SEPARATE;CUDA;LINK;LABELS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES} ${arg_SEPARATE})
  coppice_cuda_sources(${name} ${arg_CUDA})
  coppice_compile_together(${name} ${arg_SEPARATE})
  target_link_libraries(${name} PRIVATE coppice_flags coppice_test_main GTest::gmock ${arg_LINK})
  if(arg_LABELS MATCHES "cuda|emulated")
    add_dependencies(device_tests ${name})
  endif()
  if("unit" IN_LIST arg_LABELS)
    add_dependencies(unit_tests ${name})
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE COPPICE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  # Threads that wait without spinning: tests run side by side on few cores, and spinning threads
  # would take the cores from those that work (attention's took 134 s instead of 8 on a busy machine).
  # And Open MPI without a look for network cards, which takes each start of the program 0.25 s.
  set(processors)
  if(arg_PROCESSORS)
    set(processors PROCESSORS ${arg_PROCESSORS})
  endif()
  set(on_cpu)
  if(COPPICE_CUDA)
    set(on_cpu TEST_FILTER "-*Cuda*")
    set(device_label cuda)
    if(COPPICE_EMULATED_DEVICE)
      set(device_label emulated)
    endif()
    gtest_discover_tests(${name} TEST_FILTER "*Cuda*" DISCOVERY_TIMEOUT 60
                         PROPERTIES LABELS ${device_label} TIMEOUT ${arg_TIMEOUT} ${processors}
                         ENVIRONMENT OMP_WAIT_POLICY=passive
                         ENVIRONMENT_MODIFICATION OMPI_MCA_pml=set:ob1)
  endif()
  gtest_discover_tests(${name} ${on_cpu} DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} ${processors}
                       ENVIRONMENT OMP_WAIT_POLICY=passive  # one value: lists are torn apart
                       ENVIRONMENT_MODIFICATION OMPI_MCA_pml=set:ob1)
endfunction()

# coppice_bench(NAME SOURCES file... LINK target...) makes one bench program.
function(coppice_bench name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE coppice_flags ${arg_LINK})
endfunction()

# coppice_ranks_test(NAME SOURCES file... [SEPARATE file...] LINK target... RANKS n...
#                    [DEVICE_RANKS n...] [TIMEOUT seconds])
# makes one test program and, after each build, a CTest entry per case and number of ranks. Cases with
# Cuda in their names run with DEVICE_RANKS, all ranks on one device.
function(coppice_ranks_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;SEPARATE;LINK;RANKS;DEVICE_RANKS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SOURCES} ${arg_SEPARATE})
  coppice_compile_together(${name} ${arg_SEPARATE})
  target_link_libraries(${name} PRIVATE coppice_flags coppice_ranks_main ${arg_LINK})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  set(listing ${CMAKE_CURRENT_BINARY_DIR}/${name}_cases.cmake)
  list(JOIN arg_RANKS " " ranks)
  list(JOIN arg_DEVICE_RANKS " " device_ranks)
  set(device_label cuda)
  if(COPPICE_EMULATED_DEVICE)
    set(device_label emulated)
  endif()
  if(COPPICE_CUDA AND arg_DEVICE_RANKS)
    add_dependencies(device_tests ${name})
  endif()
  add_custom_command(TARGET ${name} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${name}> "-DRANKS=${ranks}"
            "-DDEVICE_RANKS=${device_ranks}" -DDEVICE_LABEL=${device_label}
            -DTIMEOUT=${arg_TIMEOUT} -DMPIEXEC=${MPIEXEC_EXECUTABLE} -DOUTPUT=${listing}
            -P ${PROJECT_SOURCE_DIR}/cmake/ListRanksTests.cmake
    VERBATIM)
  # As gtest_discover_tests does it: before the program is built, one test says that it is not.
  set(entry ${CMAKE_CURRENT_BINARY_DIR}/${name}_entry.cmake)
  file(WRITE ${entry} "if(EXISTS \"${listing}\")\n  include(\"${listing}\")\nelse()\n"
                      "  add_test(${name}_NOT_BUILT ${name}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${entry})
endfunction()
