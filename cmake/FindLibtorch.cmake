# Finds libtorch: the system's (Debian's libtorch-dev), or the one inside the Python package of LOCKSTEP_TORCH_PYTHON.
# Both come down to include folders and a few libraries; torch's own CMake files would also pull in CUDA's toolkit
# checks, protobuf and others that we do not use.
#
# Sets LOCKSTEP_TORCH_VERSION, LOCKSTEP_TORCH_HAS_CUDA, LOCKSTEP_TORCH_NVIDIA (where CUDA's libraries stand beside a
# Python torch); target Libtorch::Libtorch.
if(LOCKSTEP_TORCH_PYTHON)
  set(_torch_python ${LOCKSTEP_TORCH_PYTHON})
  if(NOT EXISTS ${_torch_python})  # a bare name: CMake has made a path of it
    get_filename_component(_torch_python ${_torch_python} NAME)
  endif()
  execute_process(
    COMMAND ${_torch_python} -c
      "import torch, os; print(';'.join([os.path.dirname(torch.__file__), torch.__version__, torch.version.cuda or '']))"
    OUTPUT_VARIABLE _torch OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _torch_failed)
  if(_torch_failed)
    message(FATAL_ERROR "LOCKSTEP_TORCH_PYTHON=${LOCKSTEP_TORCH_PYTHON} cannot import torch; install it there or unset it")
  endif()
  list(GET _torch 0 _torch_dir)
  list(GET _torch 1 LOCKSTEP_TORCH_VERSION)
  list(LENGTH _torch _torch_fields)
  set(_torch_cuda "")
  if(_torch_fields GREATER 2)
    list(GET _torch 2 _torch_cuda)
  endif()
  set(_torch_includes ${_torch_dir}/include ${_torch_dir}/include/torch/csrc/api/include)
  set(_torch_libs ${_torch_dir}/lib)
else()
  find_path(_torch_types torch/types.h PATH_SUFFIXES torch/csrc/api/include)
  find_library(_torch_cpu torch_cpu)
  if(NOT _torch_types OR NOT _torch_cpu)
    message(FATAL_ERROR "libtorch was not found; run scripts/setup.sh, or set LOCKSTEP_TORCH_PYTHON to a python with torch")
  endif()
  set(_torch_includes ${_torch_types})
  get_filename_component(_torch_libs ${_torch_cpu} DIRECTORY)
  get_filename_component(_torch_real ${_torch_cpu} REALPATH)
  string(REGEX REPLACE ".*\\.so\\.?" "" LOCKSTEP_TORCH_VERSION "${_torch_real}")
  set(_torch_cuda "")
endif()

add_library(Libtorch::Libtorch INTERFACE IMPORTED)
set_target_properties(Libtorch::Libtorch PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_torch_includes}")
set(_torch_link ${_torch_libs}/libtorch.so ${_torch_libs}/libtorch_cpu.so ${_torch_libs}/libc10.so)
set(LOCKSTEP_TORCH_HAS_CUDA OFF)
if(_torch_cuda)
  set(LOCKSTEP_TORCH_HAS_CUDA ON)
  # Nothing refers to them by name, so a linker that keeps only what is needed would leave CUDA out.
  list(APPEND _torch_link ${_torch_libs}/libtorch_cuda.so ${_torch_libs}/libc10_cuda.so
       -Wl,--push-state,--no-as-needed,${_torch_libs}/libtorch_cuda.so,${_torch_libs}/libc10_cuda.so,--pop-state)
  # CUDA's libraries stand beside torch, where libtorch_cuda.so finds them and the linker does not.
  target_link_options(Libtorch::Libtorch INTERFACE "LINKER:--allow-shlib-undefined")
  get_filename_component(LOCKSTEP_TORCH_NVIDIA ${_torch_dir}/../nvidia ABSOLUTE)
endif()
target_link_libraries(Libtorch::Libtorch INTERFACE ${_torch_link})
if(LOCKSTEP_TORCH_PYTHON)  # the system's is where the loader looks
  target_link_options(Libtorch::Libtorch INTERFACE -Wl,-rpath,${_torch_libs})
endif()
target_compile_definitions(Libtorch::Libtorch INTERFACE LOCKSTEP_TORCH_VERSION="${LOCKSTEP_TORCH_VERSION}")
if(EXISTS ${_torch_dir}/include/fmt/format.h)
  # PyPI's torch brings headers of its own fmt, which come first and find no library of their version to link.
  target_compile_definitions(Libtorch::Libtorch INTERFACE FMT_HEADER_ONLY=1)
endif()
if(LOCKSTEP_TORCH_HAS_CUDA)
  target_compile_definitions(Libtorch::Libtorch INTERFACE LOCKSTEP_TORCH_HAS_CUDA=1)
endif()
message(STATUS "libtorch ${LOCKSTEP_TORCH_VERSION} in ${_torch_libs} (CUDA: ${LOCKSTEP_TORCH_HAS_CUDA})")
set(Libtorch_FOUND TRUE)
