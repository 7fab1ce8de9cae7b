# One CMake target per folder of lockstep/, and one way to declare a test.
#
#   lockstep_folder(spec SOURCES a.cpp b.cpp DEPENDS base LIBRARIES yaml-cpp)   target lockstep_spec
#   lockstep_folder(nn TORCH SOURCES ... DEPENDS spec)                          the libtorch half
#   lockstep_test(spec_units SOURCES units_test.cpp FOLDERS spec LABELS fast)
#
#   lockstep_test(data_loader ... TIMING)    its suites named *Timing* become a test of their own, label `timing`
#
# tests/architecture checks that DEPENDS and the #include lines agree with the order of folders in docs/architecture.md.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
if(NOT LOCKSTEP_FMT)  # the wheel compiles it in
  set(LOCKSTEP_FMT fmt::fmt)
endif()

# How this build compiles; none of it reaches those who link an installed library.
add_library(lockstep_options INTERFACE)
set(LOCKSTEP_WARNINGS -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(LOCKSTEP_WERROR)
  list(APPEND LOCKSTEP_WARNINGS -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 at -O3 sees overflows inside std::string where there are none; they stay warnings.
    list(APPEND LOCKSTEP_WARNINGS -Wno-error=array-bounds -Wno-error=stringop-overflow -Wno-error=restrict)
  endif()
endif()
target_compile_options(lockstep_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${LOCKSTEP_WARNINGS}>")  # nvcc takes none
target_link_libraries(lockstep_options INTERFACE Threads::Threads ${LOCKSTEP_FMT} nlohmann_json::nlohmann_json)
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -O1 -g)
  target_link_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
  target_compile_definitions(lockstep_options INTERFACE LOCKSTEP_SANITIZED=1)
endif()

find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE)
  # The sloppiness is what ccache asks for to cache translation units that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${LOCKSTEP_CCACHE})
  target_compile_options(lockstep_options INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fpch-preprocess>)
endif()
find_program(LOCKSTEP_MOLD mold)
if(LOCKSTEP_MOLD)
  target_link_options(lockstep_options INTERFACE -fuse-ld=mold)
endif()

if(LOCKSTEP_ENGINE)
  find_package(Libtorch REQUIRED)
  if(LOCKSTEP_TORCH_PYTHON)
    # The shared libstdc++, and before libtorch. PyPI's libtorch exports parts of an older one (std::filesystem), and
    # whatever comes first in the loader's order serves the whole process. By its full name: where `-lstdc++` takes the
    # archive, the executable's own copy meets libtorch's objects and the first regex crashes. An option stands before
    # all libraries.
    target_link_options(lockstep_options INTERFACE "LINKER:--push-state,--no-as-needed,-l:libstdc++.so.6,--pop-state")
  endif()
  # One precompiled header for the whole libtorch half: parsing libtorch takes 20-30 s, once instead of per file.
  file(WRITE ${CMAKE_BINARY_DIR}/lockstep_torch_pch.cpp "// Owner of the precompiled libtorch header.\n")
  add_library(lockstep_torch_pch OBJECT ${CMAKE_BINARY_DIR}/lockstep_torch_pch.cpp)
  target_link_libraries(lockstep_torch_pch PUBLIC lockstep_options Libtorch::Libtorch)
  target_precompile_headers(lockstep_torch_pch PRIVATE
    <torch/types.h> <torch/autograd.h> <torch/nn/module.h> <string> <vector> <memory> <map> <nlohmann/json.hpp>)
endif()

# One precompiled header for the other half too: JSON and formatting are half of what its files are parsed for.
file(WRITE ${CMAKE_BINARY_DIR}/lockstep_plain_pch.cpp "// Owner of the precompiled header of the libtorch-free half.\n")
add_library(lockstep_plain_pch OBJECT ${CMAKE_BINARY_DIR}/lockstep_plain_pch.cpp)
target_link_libraries(lockstep_plain_pch PUBLIC lockstep_options)
target_precompile_headers(lockstep_plain_pch PRIVATE
  <algorithm> <functional> <map> <memory> <optional> <string> <vector> <fmt/format.h> <nlohmann/json.hpp>)

function(_lockstep_use_pch target owner)
  target_precompile_headers(${target} REUSE_FROM ${owner})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    # CMake would pass -fPIE, and GCC refuses a precompiled header that was made with -fPIC.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

function(_lockstep_use_torch target)
  target_link_libraries(${target} PUBLIC Libtorch::Libtorch)
  _lockstep_use_pch(${target} lockstep_torch_pch)
endfunction()

# Headers are included as "lockstep/<folder>/...". Each folder has an include root of its own that holds nothing but
# that folder, so a target sees only the folders it depends on: an include the wrong way does not compile.
function(lockstep_headers_of target folder)
  set(root ${CMAKE_BINARY_DIR}/include/${folder})
  file(MAKE_DIRECTORY ${root}/lockstep)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/lockstep/${folder} ${root}/lockstep/${folder} SYMBOLIC)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${root}> $<INSTALL_INTERFACE:include>)
endfunction()

function(lockstep_folder name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS;LIBRARIES;PRIVATE_LIBRARIES" ${ARGN})
  set(target lockstep_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  lockstep_headers_of(${target} ${folder})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target}
    PUBLIC $<BUILD_INTERFACE:lockstep_options> Threads::Threads ${LOCKSTEP_FMT} nlohmann_json::nlohmann_json ${ARG_LIBRARIES}
    PRIVATE ${ARG_PRIVATE_LIBRARIES})
  foreach(dependency ${ARG_DEPENDS})
    target_link_libraries(${target} PUBLIC lockstep_${dependency})
  endforeach()
  if(ARG_TORCH)
    _lockstep_use_torch(${target})
  else()
    _lockstep_use_pch(${target} lockstep_plain_pch)
  endif()
endfunction()

# Seconds after which a test counts as hung. Generous: it must hold on a machine that is busy with something else.
set(LOCKSTEP_TEST_TIMEOUT 1200)

function(lockstep_test name)
  cmake_parse_arguments(ARG "TORCH;TIMING" "TIMEOUT" "SOURCES;FOLDERS;LIBRARIES;LABELS" ${ARGN})
  find_package(GTest REQUIRED)
  set(target ${name}_test)
  add_executable(${target} ${ARG_SOURCES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${target} PUBLIC lockstep_options GTest::gtest GTest::gtest_main ${ARG_LIBRARIES})
  foreach(folder ${ARG_FOLDERS})
    target_link_libraries(${target} PUBLIC lockstep_${folder})
  endforeach()
  target_compile_definitions(${target} PRIVATE
    LOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LOCKSTEP_BUILD_DIR="${CMAKE_BINARY_DIR}")
  if(ARG_TORCH)
    _lockstep_use_torch(${target})
  else()
    _lockstep_use_pch(${target} lockstep_plain_pch)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT ${LOCKSTEP_TEST_TIMEOUT})
  endif()
  if(ARG_TIMING)
    add_test(NAME ${name} COMMAND ${target} --gtest_filter=-*Timing*.*)
    add_test(NAME ${name}_timing COMMAND ${target} --gtest_filter=*Timing*.*)
    set_tests_properties(${name}_timing PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS timing RUN_SERIAL ON)
  else()
    add_test(NAME ${name} COMMAND ${target})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# lockstep_python_test(cli_plan test_plan.py LABELS fast TIMING PlanTiming): a Python file that drives the built
# programs; its class PlanTiming becomes the test cli_plan_timing, label `timing`.
function(lockstep_python_test name file)
  cmake_parse_arguments(ARG "" "TIMING" "LABELS" ${ARGN})
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  set(environment LOCKSTEP_BUILD_DIR=${CMAKE_BINARY_DIR} LOCKSTEP_SOURCE_DIR=${PROJECT_SOURCE_DIR})
  set(command ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  add_test(NAME ${name} COMMAND ${command})
  set_tests_properties(${name} PROPERTIES TIMEOUT 2400 LABELS "${ARG_LABELS}" ENVIRONMENT "${environment}")
  if(ARG_TIMING)
    add_test(NAME ${name}_timing COMMAND ${command} ${ARG_TIMING})
    set_tests_properties(${name}_timing PROPERTIES TIMEOUT 2400 LABELS timing RUN_SERIAL ON
      ENVIRONMENT "${environment};LOCKSTEP_TIMING=1")
  endif()
endfunction()

# Every executable and library that a folder and those below it declare.
function(lockstep_targets_in folder result)
  get_property(found DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(child ${below})
    lockstep_targets_in(${child} more)
    list(APPEND found ${more})
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()
