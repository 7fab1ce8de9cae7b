# Run by cpack before it writes the package. The executable opens the engine and the backends at run time, so only its own
# libraries (and those of the TCP backend) are Depends. What training needs is recommended, which `apt install` installs
# unless told otherwise; Open MPI is suggested.
cmake_policy(VERSION 3.22)
if(CPACK_LOCKSTEP_TORCH_PYTHON)
  message(FATAL_ERROR "This build is of the torch in ${CPACK_LOCKSTEP_TORCH_PYTHON}, which no Debian package has; "
                      "make the package from the preset `release`")
endif()

set(files "")
macro(files_of field)  # what dpkg-shlibdeps finds in a stronger field it leaves out of the weaker ones
  list(APPEND files -d${field})
  foreach(file ${ARGN})
    if(EXISTS ${CPACK_LOCKSTEP_BUILD}/${file})
      list(APPEND files -e${CPACK_LOCKSTEP_BUILD}/${file})
    endif()
  endforeach()
endmacro()
files_of(Depends lockstep liblockstep_comm_tcp.so)
files_of(Recommends liblockstep_engine.so liblockstep_comm_gloo.so)
files_of(Suggests liblockstep_comm_mpi.so)

# dpkg-shlibdeps wants to stand in a source package.
set(stand ${CPACK_LOCKSTEP_BUILD}/shlibdeps)
file(MAKE_DIRECTORY ${stand}/debian)
file(WRITE ${stand}/debian/control "Source: lockstep\n\nPackage: lockstep\nArchitecture: any\n")
execute_process(COMMAND dpkg-shlibdeps -O --warnings=0 ${files} WORKING_DIRECTORY ${stand}
                OUTPUT_VARIABLE found ERROR_VARIABLE problem RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "dpkg-shlibdeps (Debian: dpkg-dev) failed: ${failed} ${problem}")
endif()
foreach(field Depends Recommends Suggests)
  string(TOUPPER ${field} upper)
  if(found MATCHES "shlibs:${field}=([^\n]+)")
    set(CPACK_DEBIAN_PACKAGE_${upper} "${CMAKE_MATCH_1}")
  endif()
endforeach()
if(CPACK_DEBIAN_PACKAGE_RECOMMENDS MATCHES "libtorch")
  # Debian's libtorch otherwise falls back to the reference BLAS, some 30 times slower.
  string(APPEND CPACK_DEBIAN_PACKAGE_RECOMMENDS ", libopenblas0")
endif()
if(CPACK_DEBIAN_PACKAGE_SUGGESTS MATCHES "openmpi")
  string(APPEND CPACK_DEBIAN_PACKAGE_SUGGESTS ", openmpi-bin")
endif()
