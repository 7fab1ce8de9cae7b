#include "lockstep/elastic/link_probe.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::elastic {
namespace {

TEST(LinkProbe, measures_a_link_of_this_machine) {
  const LinkEcho echo("127.0.0.1", "secret");
  const LinkFigures figures = probe_link("127.0.0.1", echo.port(), "secret", 60.0);
  EXPECT_GT(figures.latency_seconds, 0.0);
  EXPECT_GT(figures.bytes_per_second, 1e6);
  EXPECT_LT(std::abs(figures.clock_offset_seconds), 1.0);
}

TEST(LinkProbe, one_echo_answers_several_probers) {
  const LinkEcho echo("127.0.0.1", "secret");
  for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(probe_link("127.0.0.1", echo.port(), "secret", 60.0));
}

TEST(LinkProbe, a_stranger_is_not_answered) {
  const LinkEcho echo("127.0.0.1", "secret");
  EXPECT_THROW(probe_link("127.0.0.1", echo.port(), "guess", 60.0), Fault);
}

TEST(LinkProbe, a_port_that_nobody_listens_on_is_a_fault) {
  int port = 0;
  { port = LinkEcho("127.0.0.1", "secret").port(); }
  EXPECT_THROW(probe_link("127.0.0.1", port, "secret", 5.0), Fault);
}

}  // namespace
}  // namespace lockstep::elastic
