#include "lockstep/spec/machine.h"

#include <unistd.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::spec {

double machine_memory_bytes() {
  const double pages = static_cast<double>(::sysconf(_SC_PHYS_PAGES));
  double bytes = pages * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  for (const char* limit : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    try {
      bytes = std::min(bytes, static_cast<double>(parse_count(trim(read_file(limit, 4096)))));
    } catch (const UserError&) {
      // No such file, or "max": no limit.
    }
  }
  return bytes;
}

}  // namespace lockstep::spec
