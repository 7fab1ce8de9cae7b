// The members of a tar file (ustar, with GNU's and POSIX's long names), found by their headers alone.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/data/mapped_file.h"

namespace lockstep::data {

struct TarMember {
  std::string name;
  std::uint64_t offset = 0, bytes = 0;  // of its contents in the file
};

// Calls `take` for every regular file in the archive, in order. Throws bad_input for a header whose checksum is wrong
// and for a member that reaches beyond the end of the file; what `take` throws passes through.
void for_each_tar_member(const MappedFile& file, const std::function<void(const TarMember&)>& take);

}  // namespace lockstep::data
