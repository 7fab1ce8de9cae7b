# cmake -DSOURCE=dashboard -DOUTPUT=<folder> -DSTAMP=<file> -DNODE=... -DNPM=... -P build.cmake
# Installs the packages of package-lock.json when they changed, then builds the page into OUTPUT. What fails is said in
# one line and leaves OUTPUT away; it never fails the build. `cmake --build ... --target dashboard` tries again.
set(most_bytes 122880)  # of the whole page, gzipped: 120 KiB
set(modules ${SOURCE}/node_modules)

function(give_up problem)
  file(REMOVE_RECURSE ${OUTPUT})
  file(WRITE ${STAMP} "${problem}\n")
  message("The page of `lockstep serve` is left out: ${problem}. To try again: make dashboard")
endfunction()

# Builds of several folders share node_modules.
file(LOCK ${SOURCE}/.install.lock GUARD PROCESS TIMEOUT 600 RESULT_VARIABLE locked)
if(NOT locked EQUAL 0)
  give_up("${SOURCE} cannot be locked (${locked})")
  return()
endif()
file(SHA256 ${SOURCE}/package-lock.json wanted)
set(installed "")
if(EXISTS ${modules}/.lockstep-installed)
  file(READ ${modules}/.lockstep-installed installed)
endif()
if(NOT installed STREQUAL wanted)
  execute_process(
    COMMAND ${NPM} ci --omit=dev --ignore-scripts --no-audit --no-fund --no-progress --loglevel=error
            --fetch-timeout=20000 --fetch-retries=1
    WORKING_DIRECTORY ${SOURCE} TIMEOUT 300 RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    string(REGEX MATCH "[^\n]*(E[A-Z]+|code|network)[^\n]*" reason "${output}")
    give_up("npm cannot install its packages (${result}: ${reason})")
    return()
  endif()
  file(WRITE ${modules}/.lockstep-installed "${wanted}")
endif()

execute_process(
  COMMAND ${NODE} ${modules}/vite/bin/vite.js build --outDir ${OUTPUT} --emptyOutDir --logLevel error
  WORKING_DIRECTORY ${SOURCE} TIMEOUT 300 RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message("${output}")
  give_up("vite failed (${result})")
  return()
endif()
execute_process(COMMAND ${NODE} ${SOURCE}/tests/page_size.mjs ${OUTPUT} ${most_bytes}
  TIMEOUT 60 RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${output}")  # this one is ours: the page has grown too large
endif()
file(WRITE ${STAMP} "built\n")
