# Mutated copies of the layers' and the optimizer's CUDA sources and of what uploads for them, each in
# a namespace of its own, compiled into one test. A copy lacks one barrier, wait or event; a place
# that is not there any more is an error. Attention has its own (tests/attention/mutations.cmake).

# kernel_mutation(NAME OP SOURCE CHANGED FROM TO)
# OP says what runs it (kernel_cuda_mutation_test.cpp). CHANGED is the source itself or a header
# device/<stem> that it includes.
function(kernel_mutation name op source changed from to)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/mutations/${name})
  set(path ${PROJECT_SOURCE_DIR}/src/${source})
  set(changed_path ${path})
  if(NOT changed STREQUAL source)
    set(changed_path ${PROJECT_SOURCE_DIR}/src/core/cuda/both/${changed})
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path} ${changed_path})
  file(READ ${changed_path} text)
  string(FIND "${text}" "${from}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "The mutation ${name} finds nothing to change in ${changed}.")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")
  if(NOT changed STREQUAL source)
    # Its functions are inline: they must not be taken for those of other files.
    string(REPLACE "namespace coppice::device {\n"
                   "namespace coppice::device {\ninline namespace mutated_${name} {\n" text "${text}")
    string(REPLACE "}  // namespace coppice::device" "}\n}" text "${text}")
    get_filename_component(stem ${changed} NAME)
    file(CONFIGURE OUTPUT ${folder}/${stem} CONTENT "${text}" @ONLY)
    file(READ ${path} text)
    string(REPLACE "\"${changed}\"" "\"mutations/${name}/${stem}\"" text "${text}")
  endif()
  string(REPLACE "namespace coppice::cuda {\n"
                 "namespace coppice::mutated_${name} {\nusing namespace cuda;\n" text "${text}")
  get_filename_component(stem ${source} NAME)
  file(CONFIGURE OUTPUT ${folder}/${stem} CONTENT "${text}" @ONLY)
  if(stem MATCHES "\\.cu$")
    set_property(DIRECTORY APPEND PROPERTY coppice_mutated_kernels ${folder}/${stem})
  else()
    set_property(DIRECTORY APPEND PROPERTY coppice_mutated_sources ${folder}/${stem})
  endif()
  set_property(DIRECTORY APPEND_STRING PROPERTY coppice_kernel_mutations
                         "COPPICE_MUTATION(${name}, ${op})\n")
endfunction()

set(norm layers/cuda/rms_norm.cu)
set(head layers/cuda/vocab_parallel_logprob.cu)
set(block device/block.cuh)
set(upload core/cuda/upload.cpp)

kernel_mutation(block_sum_without_its_barrier norm ${norm} ${block}
  "  __syncthreads();\n  T sum" "  T sum")
kernel_mutation(block_sum_used_again_too_soon norm ${norm} ${block}
  "  __syncthreads();\n  return sum" "  return sum")
kernel_mutation(block_max_without_its_barrier head ${head} ${block}
  "  __syncthreads();\n  float most" "  float most")
kernel_mutation(block_max_used_again_too_soon head ${head} ${block}
  "  __syncthreads();\n  return most" "  return most")
kernel_mutation(squares_summed_without_a_barrier squares optim/cuda/grad_norm.cu ${block}
  "  __syncthreads();\n  T sum" "  T sum")
kernel_mutation(teams_of_a_norm_not_waited_for norm ${norm} ${norm}
  "  __syncthreads();\n  for (int i" "  for (int i")
kernel_mutation(warps_of_partials_not_waited_for norm ${norm} ${norm}
  "  __syncthreads();\n  if (warp != 0" "  if (warp != 0")
kernel_mutation(warps_of_a_bias_not_waited_for bias layers/cuda/rows.cu layers/cuda/rows.cu
  "  __syncthreads();\n  if (warp != 0" "  if (warp != 0")
kernel_mutation(logits_written_over_before_they_are_read head ${head} ${head}
  "    __syncthreads();\n    if (i + kCount" "    if (i + kCount")

kernel_mutation(staging_half_not_waited_for upload ${upload} ${upload}
  "      copied_[half_].wait();\n" "")
kernel_mutation(staging_half_without_its_event upload ${upload} ${upload}
  "      copied_[half_] = stream.record();\n" "")
kernel_mutation(staging_grown_while_it_is_read upload ${upload} ${upload}
  "    stream.synchronize();\n" "    static_cast<void>(stream);\n")

get_property(coppice_mutated_kernels DIRECTORY PROPERTY coppice_mutated_kernels)
get_property(coppice_mutated_sources DIRECTORY PROPERTY coppice_mutated_sources)
get_property(list DIRECTORY PROPERTY coppice_kernel_mutations)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/mutations/list.inc CONTENT "${list}" @ONLY)
