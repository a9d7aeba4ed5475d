# Mutated copies of attention's CUDA sources, each in a namespace of its own, compiled into one test.
# A copy differs from the source in one place; a place that is not there any more is an error.

# attention_mutation(NAME KIND OP FILE FROM TO)
# KIND is what must notice it: stopped (the emulated device), wrong (results against the reference)
# or leaks (garbage in other rows changes a row's results). OP, forward or backward, is mutated; the
# other one is the program's.
function(attention_mutation name kind op file from to)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/mutations/${name})
  file(GLOB sources ${PROJECT_SOURCE_DIR}/src/attention/cuda/*.cuh)
  list(APPEND sources ${PROJECT_SOURCE_DIR}/src/attention/cuda/prefix_attention_${op}.cu)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME)
    file(READ ${source} text)
    if(stem STREQUAL "${file}")
      string(FIND "${text}" "${from}" place)
      if(place EQUAL -1)
        message(FATAL_ERROR "The mutation ${name} finds nothing to change in ${stem}.")
      endif()
      string(REPLACE "${from}" "${to}" text "${text}")
    endif()
    set(opening "namespace coppice::mutated_${name} {\nusing namespace cuda;\n")
    if(stem MATCHES "\\.cu$")
      # One head dim is enough, and takes a third of the time to compile.
      string(APPEND opening "template <class F>\nauto visit_head_dim(std::int64_t, F&& f) {\n"
                            "  return f(std::integral_constant<int, 64>{});\n}\n")
      set_property(DIRECTORY APPEND PROPERTY coppice_mutated ${folder}/${stem})
    endif()
    string(REPLACE "namespace coppice::cuda {\n" "${opening}" text "${text}")
    string(REGEX REPLACE "\"attention/cuda/([a-z_]+\\.cuh)\"" "\"mutations/${name}/\\1\"" text
                         "${text}")
    file(CONFIGURE OUTPUT ${folder}/${stem} CONTENT "${text}" @ONLY)
  endforeach()
  set_property(DIRECTORY APPEND_STRING PROPERTY coppice_mutations
                         "COPPICE_${op}_MUTATION(${name}, ${kind})\n")
endfunction()

set(keys prefix_attention_keys.cuh)
set(backward_keys prefix_attention_backward_keys.cuh)
set(garbage prefix_attention_garbage.cuh)

attention_mutation(query_side_without_its_wait stopped forward ${keys}
  "        device::wait_copies<0>();\n        // Behind" "        // Behind")
attention_mutation(query_side_without_its_barrier stopped forward ${keys}
  "          __syncthreads();\n        }\n        copy_next()" "        }\n        copy_next()")
attention_mutation(query_side_without_the_barrier_before_clearing stopped forward ${keys}
  "          __syncthreads();\n          clear" "          clear")
attention_mutation(query_side_without_the_barrier_after_clearing stopped forward ${keys}
  "(weighted);\n          __syncthreads();" "(weighted);")
attention_mutation(any_of_a_block_without_its_barrier stopped forward ${garbage}
  "  __syncthreads();\n  std::uint32_t found" "  std::uint32_t found")
attention_mutation(key_side_without_its_wait stopped backward ${backward_keys}
  "          device::wait_copies<0>();\n          // Behind" "          // Behind")
attention_mutation(key_side_without_its_barrier stopped backward ${backward_keys}
  "            __syncthreads();\n          }\n          copy_next()"
  "          }\n          copy_next()")
attention_mutation(key_side_without_the_barrier_before_clearing stopped backward ${backward_keys}
  "            __syncthreads();\n            clear" "            clear")
attention_mutation(key_side_without_the_barrier_after_clearing stopped backward ${backward_keys}
  "(d_out);\n            __syncthreads();" "(d_out);")

attention_mutation(queries_that_see_no_key_not_waited_for stopped forward
  prefix_attention_forward.cuh
  "  device::wait_copies<0>();  // of the queries, where they see no key\n" "")
attention_mutation(gradients_of_queries_that_see_no_key_not_waited_for stopped backward
  prefix_attention_backward_queries.cuh
  "  device::wait_copies<0>();  // of the queries, where they see no key\n" "")
attention_mutation(keys_that_nobody_sees_not_waited_for stopped backward ${backward_keys}
  "  device::wait_copies<0>();  // of the keys, where nobody sees them\n" "")

attention_mutation(the_last_key_hidden wrong forward ${keys} "last_key(piece.rows - 1)"
                   "last_key(piece.rows - 2)")
attention_mutation(a_square_seen_one_key_too_far wrong forward ${keys} "first_row + row :"
                   "first_row + row + 1 :")
attention_mutation(keys_seen_by_the_query_before_them wrong backward ${backward_keys}
                   "(lane & 3) * 2 - lead)" "(lane & 3) * 2 - lead - 1)")
attention_mutation(statistics_of_another_head wrong backward ${backward_keys} "* args.heads + head;"
                   "* args.heads + first_head;")
attention_mutation(maximum_not_taken_off_again wrong forward prefix_attention_forward.cuh
                   "sum[f][r] * shrink + tile_sum" "sum[f][r] + tile_sum")

attention_mutation(garbage_of_values_not_looked_for leaks forward prefix_attention_forward.cuh
                   "run<Weighted::kValues>" "run<Weighted::kKeys>")
attention_mutation(garbage_not_cleared leaks backward ${garbage} "words[i] &= ~non" "words[i] |= 0u & non")
attention_mutation(garbage_of_d_out_not_looked_for leaks backward ${backward_keys}
  "kThreads>(queries) ||\n                              own_chunks_hold_garbage<kDim, kQueries, kThreads>(d_out);"
  "kThreads>(queries);")

get_property(coppice_mutated_sources DIRECTORY PROPERTY coppice_mutated)
get_property(list DIRECTORY PROPERTY coppice_mutations)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/mutations/list.inc CONTENT "${list}" @ONLY)
