#include "lockstep/elastic/host_address.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::elastic {
namespace {

TEST(Interface, loopback_has_its_address) {
  EXPECT_EQ(address_of_interface("lo"), "127.0.0.1");
  EXPECT_EQ(interface_of_address("127.0.0.1"), "lo");
  EXPECT_EQ(interface_of_address("203.0.113.7"), "");
}

TEST(Host, is_known_while_its_name_leads_somewhere) {
  EXPECT_TRUE(is_known_host("127.0.0.1"));
  EXPECT_TRUE(is_known_host("localhost"));
  EXPECT_FALSE(is_known_host("gone.invalid"));
}

TEST(Interface, that_is_not_there_is_refused_with_those_that_are) {
  try {
    address_of_interface("eth99");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("eth99"), std::string::npos);
    for (const Interface& interface : interfaces_here()) {
      EXPECT_NE(error.fix().find(interface.name + " (" + interface.address + ")"), std::string::npos) << error.fix();
    }
  }
}

TEST(Interface, must_have_the_address_that_the_node_list_names) {
  EXPECT_NO_THROW(require_on_interface("127.0.0.1", "lo", "this node"));
  EXPECT_THROW(require_on_interface("203.0.113.7", "lo", "this node"), UserError);
  for (const Interface& interface : interfaces_here()) {
    if (interface.name == "lo") continue;
    EXPECT_NO_THROW(require_on_interface(interface.address, interface.name, "this node"));
    EXPECT_THROW(require_on_interface("127.0.0.1", interface.name, "this node"), UserError);
  }
}

}  // namespace
}  // namespace lockstep::elastic
