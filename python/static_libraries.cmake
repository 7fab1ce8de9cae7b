# The archives of what Debian also has as shared libraries, under the names that the folders of lockstep/ ask for. Where
# there is no archive, the shared library is used and the wheel needs it at run time.
set(LOCKSTEP_FMT fmt::fmt-header-only)  # Debian has no archive of it
find_path(yaml_headers yaml-cpp/yaml.h)
find_library(yaml_archive libyaml-cpp.a)
if(yaml_headers AND yaml_archive)
  add_library(yaml-cpp STATIC IMPORTED GLOBAL)
  set_target_properties(yaml-cpp PROPERTIES IMPORTED_LOCATION ${yaml_archive}
    INTERFACE_INCLUDE_DIRECTORIES ${yaml_headers})
else()
  message(STATUS "libyaml-cpp.a was not found: the wheel will need the shared library")
endif()
find_library(sqlite_archive libsqlite3.a)
if(sqlite_archive)
  set(SQLite3_LIBRARY ${sqlite_archive} CACHE FILEPATH "")
else()
  message(STATUS "libsqlite3.a was not found: the wheel will need the shared library")
endif()
