# `lockstep --help` as a manual page: cmake -DLOCKSTEP=... -DVERSION=... -DOUTPUT=... -P man.cmake
execute_process(COMMAND ${LOCKSTEP} --help OUTPUT_VARIABLE help RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${LOCKSTEP} --help failed")
endif()
string(REPLACE "\\" "\\e" help "${help}")
string(REPLACE "-" "\\-" help "${help}")
string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" help "${help}")
file(WRITE ${OUTPUT} ".TH LOCKSTEP 1 \"\" \"lockstep ${VERSION}\" \"User Commands\"
.SH NAME
lockstep \\- plans, runs, measures and records distributed training
.SH SYNOPSIS
.B lockstep
.I VERB
[...]
.SH DESCRIPTION
.nf
${help}
.fi
.SH SEE ALSO
.B lockstep
.I VERB
.B \\-\\-help
shows the flags of a verb, with examples.
")
