# What `cmake --install` writes beside the executable, the engine and the backends: headers, static libraries and the
# files behind find_package(Lockstep). Component `development`; the programs are component `runtime`, and with them what a
# plugin is built with.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

lockstep_targets_in(${CMAKE_CURRENT_SOURCE_DIR}/lockstep product_targets)
set(exported_plain "")
set(exported_engine "")
foreach(target ${product_targets})
  get_target_property(type ${target} TYPE)
  get_target_property(folder ${target} SOURCE_DIR)
  if(NOT type STREQUAL "STATIC_LIBRARY" OR folder MATCHES "/cli$")
    continue()  # the command line's own library is nobody else's
  endif()
  if(folder MATCHES "/lockstep/(plugin|kernels|nn|parallel|data|checkpoint|engine)(/|$)")
    list(APPEND exported_engine ${target})
  else()
    list(APPEND exported_plain ${target})
  endif()
endforeach()

# Everything a user runs.
add_custom_target(lockstep_product)
add_dependencies(lockstep_product ${product_targets})

find_package(SQLite3 QUIET)  # as telemetry/ and tune/ did
find_package(ZLIB QUIET)     # as diagnose/ and serve/ did
find_package(Boost 1.74 QUIET)  # as serve/ did
find_package(OpenSSL QUIET)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
install(TARGETS ${exported_plain} EXPORT LockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT development)
install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${package_folder} COMPONENT development)
if(exported_engine)
  install(TARGETS ${exported_engine} EXPORT LockstepEngineTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT development)
  install(EXPORT LockstepEngineTargets NAMESPACE Lockstep:: DESTINATION ${package_folder} COMPONENT development)
endif()

# Headers of plugins need libtorch alone: those of the host's side stay with the others.
file(GLOB plugin_headers RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS lockstep/plugin/*.h)
list(FILTER plugin_headers EXCLUDE REGEX "/(library|option_map)\\.h$")
install(FILES ${plugin_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/plugin COMPONENT runtime)
install(FILES lockstep/base/plugin_tag.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/base COMPONENT runtime)
install(DIRECTORY examples/own-model DESTINATION share/lockstep/examples COMPONENT runtime)

file(GLOB_RECURSE headers RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS lockstep/*.h lockstep/*.cuh)
list(FILTER headers EXCLUDE REGEX "^lockstep/cli/")
list(REMOVE_ITEM headers ${plugin_headers} lockstep/base/plugin_tag.h)
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder} COMPONENT development)
endforeach()

configure_package_config_file(cmake/LockstepConfig.cmake.in ${CMAKE_BINARY_DIR}/LockstepConfig.cmake
  INSTALL_DESTINATION ${package_folder} PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/LockstepConfig.cmake ${CMAKE_BINARY_DIR}/LockstepConfigVersion.cmake
  cmake/FindLibtorch.cmake cmake/LockstepPlugin.cmake DESTINATION ${package_folder} COMPONENT runtime)
