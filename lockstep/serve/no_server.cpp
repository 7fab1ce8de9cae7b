#include "lockstep/base/error.h"
#include "lockstep/serve/server.h"

namespace lockstep::serve {

std::unique_ptr<Server> make_server(const ServerOptions&) {
  throw environment_error("this lockstep was built without its HTTP server: Boost or OpenSSL was missing",
                          "install libboost-dev and libssl-dev, and build again; `lockstep watch` needs neither");
}

}  // namespace lockstep::serve
