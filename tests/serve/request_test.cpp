#include "lockstep/serve/request.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::serve {
namespace {

using Path = std::vector<std::string>;

TEST(Target, is_taken_apart) {
  const auto target = parse_target("/api/v1/runs/a%20b?metric=step_seconds&q=x+y%26z&empty=&flag#part");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->path, (Path{"api", "v1", "runs", "a b"}));
  EXPECT_EQ(target->query.at("metric"), "step_seconds");
  EXPECT_EQ(target->query.at("q"), "x y&z");
  EXPECT_EQ(target->query.at("empty"), "");
  EXPECT_EQ(target->query.at("flag"), "");
  EXPECT_EQ(parse_target("/")->path, Path{});
  EXPECT_EQ(parse_target("/assets/")->path, Path{"assets"});
}

TEST(Target, that_could_leave_a_folder_is_none) {
  for (const char* hostile : {"/..",
                              "/../etc/passwd",
                              "/a/../b",
                              "/%2e%2e/etc",
                              "/%2E%2e%2fetc",
                              "/a%2f..%2fb",
                              "/a%5c..%5cb",
                              "/a\\b",
                              "/./a",
                              "//a",
                              "/a//b",
                              "/a%00b",
                              "/a%0ab",
                              "/%ff",
                              "/%c0%ae%c0%ae/",
                              "/%",
                              "/%4",
                              "/%zz",
                              "",
                              "a",
                              "*",
                              "http://host/a"}) {
    EXPECT_FALSE(parse_target(hostile)) << hostile;
  }
  EXPECT_FALSE(parse_target("/" + std::string(kLongestTarget, 'a')));
  EXPECT_FALSE(parse_target("/?a=%f"));
}

TEST(Query, gives_whole_numbers_within_bounds) {
  Request request;
  request.target = *parse_target("/?points=12&far=99999999999999999999&word=ten&minus=-1");
  EXPECT_EQ(request.integer("points", 5, 1, 100), 12);
  EXPECT_EQ(request.integer("absent", 5, 1, 100), 5);
  for (const char* key : {"far", "word", "minus"}) EXPECT_THROW(request.integer(key, 5, 1, 100), UserError) << key;
}

TEST(Cookie, is_found_by_its_whole_name) {
  EXPECT_EQ(cookie("a=1; token=secret; b=2", "token"), "secret");
  EXPECT_EQ(cookie("xtoken=1; token=secret", "token"), "secret");
  EXPECT_EQ(cookie("xtoken=1", "token"), "");
  EXPECT_EQ(cookie("token", "token"), "");
  EXPECT_EQ(cookie("", "token"), "");
}

TEST(Host, is_told_without_its_port) {
  EXPECT_EQ(host_of_authority("LocalHost:8642"), "localhost");
  EXPECT_EQ(host_of_authority("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(host_of_authority("[::1]:8642"), "::1");
  for (const char* wrong : {"", ":80", "a b", "user@host", "[::1", "[::1]x", "host:port", "host:123456", "a/b"}) {
    EXPECT_FALSE(host_of_authority(wrong)) << wrong;
  }
}

TEST(Origin, is_a_host_and_a_port_that_is_not_usual) {
  EXPECT_EQ(authority_of_origin("http://localhost:8642"), "localhost:8642");
  EXPECT_EQ(authority_of_origin("https://Example.com:443"), "example.com");
  EXPECT_EQ(authority_of_origin("http://example.com:443"), "example.com:443");
  for (const char* wrong : {"null", "", "file://", "localhost", "ftp://localhost", "http://a b"}) {
    EXPECT_FALSE(authority_of_origin(wrong)) << wrong;
  }
}

TEST(Accept, knows_what_is_refused) {
  EXPECT_TRUE(accepts("gzip, deflate, br", "gzip"));
  EXPECT_TRUE(accepts("br;q=1.0, GZIP;q=0.5", "gzip"));
  EXPECT_FALSE(accepts("gzip;q=0", "gzip"));
  EXPECT_FALSE(accepts("gzip;q=0.000", "gzip"));
  EXPECT_FALSE(accepts("identity", "gzip"));
  EXPECT_FALSE(accepts("", "gzip"));
}

TEST(Answer, is_not_sent_again_to_who_has_it) {
  Response response = answer_text(200, "text/plain", "text");
  response.etag = "\"1\"";
  Request request;
  EXPECT_EQ(for_client(request, response).status, 200);
  request.headers["if-none-match"] = "\"1\"";
  EXPECT_EQ(for_client(request, response).status, 304);
  EXPECT_TRUE(for_client(request, response).body->empty());
  request.headers["if-none-match"] = "\"2\"";
  EXPECT_EQ(for_client(request, response).status, 200);
}

}  // namespace
}  // namespace lockstep::serve
