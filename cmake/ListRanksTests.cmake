# Writes a CTest file with one entry per case of PROGRAM and number of RANKS; cases with Cuda in
# their names get DEVICE_LABEL and run with each number of DEVICE_RANKS. Unbound, because mpirun binds
# the ranks of every job to the same first cores.
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listing
                COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" lines "${listing}")
separate_arguments(cpu_ranks UNIX_COMMAND "${RANKS}")
separate_arguments(device_ranks UNIX_COMMAND "${DEVICE_RANKS}")
set(text "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE " *#.*" "" line "${line}")
  if(line MATCHES "^([A-Za-z].*\\.)$")
    set(suite "${CMAKE_MATCH_1}")
  elseif(line MATCHES "^  (.+)$")
    set(case "${suite}${CMAKE_MATCH_1}")
    set(label ranks)
    set(ranks ${cpu_ranks})
    if(case MATCHES "Cuda")
      set(label ${DEVICE_LABEL})
      set(ranks ${device_ranks})
    endif()
    foreach(n IN LISTS ranks)
      set(processors 2)
      if(n EQUAL 1)
        set(processors 1)
      endif()
      string(APPEND text
        "add_test([=[${case}/${n}Ranks]=] [=[${MPIEXEC}]=] --allow-run-as-root --oversubscribe "
        "--bind-to none -np ${n} [=[${PROGRAM}]=] [=[--gtest_filter=${case}]=])\n"
        "set_tests_properties([=[${case}/${n}Ranks]=] PROPERTIES LABELS ${label} TIMEOUT ${TIMEOUT} "
        "PROCESSORS ${processors} ENVIRONMENT "
        "\"OMPI_MCA_pml=ob1;OMP_WAIT_POLICY=passive\")\n")
    endforeach()
  endif()
endforeach()
file(WRITE ${OUTPUT} "${text}")
