# cmake -DSPECS=<specs folder> -DOUTPUT=<file.cpp> -P embed_specs.cmake
# Writes the files of specs/{models,clusters,jobs,profiles,spaces} as string literals.
set(source "// Generated from specs/ by lockstep/spec/embed_specs.cmake.\n#include \"lockstep/spec/presets.h\"\n\n")
string(APPEND source "namespace lockstep::spec {\n")
foreach(folder models clusters jobs profiles spaces)
  file(GLOB files ${SPECS}/${folder}/*.yaml ${SPECS}/${folder}/*.json)
  list(SORT files)
  string(APPEND source "\nnamespace {\nconstexpr EmbeddedSpec k_${folder}[] = {\n")
  foreach(file ${files})
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE "\\.(yaml|json)$" "" name ${name})
    file(READ ${file} text)
    string(APPEND source "{\"${name}\", R\"__spec__(${text})__spec__\"},\n")
  endforeach()
  string(APPEND source "{},\n};\n}  // namespace\n")  # an array cannot be empty: the last entry is not part of it
  string(APPEND source "std::span<const EmbeddedSpec> embedded_${folder}() {\n  return std::span(k_${folder}).first(std::size(k_${folder}) - 1);\n}\n")
endforeach()
string(APPEND source "\n}  // namespace lockstep::spec\n")
file(WRITE ${OUTPUT} "${source}")
