# What an install carries for people (completions, manual page, examples), and the Debian package of it: `make deb`, or
# `cpack --config build/release/CPackConfig.cmake`. The package is the component `runtime`.
if(LOCKSTEP_SANITIZE)
  return()  # such a build is for tests
endif()
set(shell_files ${CMAKE_BINARY_DIR}/shell)
set(manual ${shell_files}/lockstep.1.gz)
add_custom_command(
  OUTPUT ${shell_files}/lockstep.bash ${shell_files}/_lockstep ${shell_files}/lockstep.fish ${manual}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${shell_files}
  COMMAND lockstep_cli completion bash > ${shell_files}/lockstep.bash
  COMMAND lockstep_cli completion zsh > ${shell_files}/_lockstep
  COMMAND lockstep_cli completion fish > ${shell_files}/lockstep.fish
  COMMAND ${CMAKE_COMMAND} -DLOCKSTEP=$<TARGET_FILE:lockstep_cli> -DOUTPUT=${shell_files}/lockstep.1
          -DVERSION=${PROJECT_VERSION} -P ${CMAKE_CURRENT_SOURCE_DIR}/packaging/man.cmake
  COMMAND gzip -9nf ${shell_files}/lockstep.1
  DEPENDS lockstep_cli packaging/man.cmake
  COMMENT "Completions and manual page")
add_custom_target(lockstep_shell_files ALL
  DEPENDS ${shell_files}/lockstep.bash ${shell_files}/_lockstep ${shell_files}/lockstep.fish ${manual})
add_dependencies(lockstep_product lockstep_shell_files)

install(FILES ${shell_files}/lockstep.bash DESTINATION share/bash-completion/completions RENAME lockstep COMPONENT runtime)
install(FILES ${shell_files}/_lockstep DESTINATION share/zsh/vendor-completions COMPONENT runtime)
install(FILES ${shell_files}/lockstep.fish DESTINATION share/fish/vendor_completions.d COMPONENT runtime)
install(FILES ${manual} DESTINATION share/man/man1 COMPONENT runtime)
install(FILES packaging/copyright DESTINATION share/doc/lockstep COMPONENT runtime)
# The executable carries the presets itself; these are to read, copy and train.
install(DIRECTORY specs DESTINATION share/lockstep COMPONENT runtime)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR Lockstep)
set(CPACK_PACKAGE_CONTACT "The Lockstep maintainers <maintainers@lockstep.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "plans, runs, measures and records distributed training")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"Finds the best layout of a model on a cluster, predicts its speed and
memory, trains under any layout on libtorch, recovers lost ranks and
nodes, tunes settings, and shows predicted beside measured.

Planning, tuning and launching need nothing else. Training needs libtorch;
backends other than TCP need Gloo or Open MPI.")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL runtime)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_OUTPUT_FILE_PREFIX ${PROJECT_SOURCE_DIR}/dist)
# Read by cpack itself, which then asks dpkg-shlibdeps what the programs of this build need.
set(CPACK_LOCKSTEP_TORCH_PYTHON "${LOCKSTEP_TORCH_PYTHON}")
set(CPACK_LOCKSTEP_BUILD ${CMAKE_BINARY_DIR})
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/packaging/debian_dependencies.cmake)
include(CPack)
