# lockstep_add_plugin(mine mine.cpp more.cpp): libmine.so, which job files name (model: {plugin: libmine.so, ...}). It is
# built against Lockstep's plugin headers and the libtorch of its engine, and links nothing of Lockstep.
#
# LOCKSTEP_PLUGIN_INCLUDE_DIR: where lockstep/plugin/ lies; LOCKSTEP_PLUGIN_VERSION: of that Lockstep.
function(lockstep_add_plugin name)
  add_library(${name} MODULE ${ARGN})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_include_directories(${name} PRIVATE ${LOCKSTEP_PLUGIN_INCLUDE_DIR})
  target_compile_definitions(${name} PRIVATE LOCKSTEP_PLUGIN_VERSION="${LOCKSTEP_PLUGIN_VERSION}")
  target_link_libraries(${name} PRIVATE Libtorch::Libtorch)
endfunction()
