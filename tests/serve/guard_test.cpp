#include "lockstep/serve/guard.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::serve {
namespace {

constexpr const char* kToken = "0123456789abcdef0123456789abcdef";

Request request(const std::string& target, std::map<std::string, std::string> headers = {},
                std::string method = "GET") {
  Request made;
  made.method = std::move(method);
  made.target = *parse_target(target);
  made.headers = std::move(headers);
  if (!made.headers.contains("host")) made.headers["host"] = "localhost:8642";
  return made;
}

// 0: it may go on.
int status(const Guard& guard, const Request& made) {
  const auto answer = guard.check(made);
  return answer ? answer->status : 0;
}

std::string header(const Response& response, const std::string& name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return {};
}

TEST(GuardOnLoopback, lets_this_machine_in_without_a_token) {
  const Guard guard({});
  for (const char* host :
       {"localhost:8642", "127.0.0.1:8642", "127.0.0.1", "[::1]:8642", "localhost:9000", "127.0.0.9"}) {
    EXPECT_EQ(status(guard, request("/api/v1/runs", {{"host", host}})), 0) << host;
  }
}

TEST(GuardOnLoopback, refuses_names_that_were_made_to_resolve_to_this_machine) {
  const Guard guard({});
  for (const char* host :
       {"evil.example", "evil.example:8642", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1"}) {
    EXPECT_EQ(status(guard, request("/", {{"host", host}})), 421) << host;
    EXPECT_EQ(status(guard, request("/api/v1/runs", {{"host", host}})), 421) << host;
  }
  EXPECT_EQ(status(guard, request("/", {{"host", ""}})), 400);
}

TEST(Guard, refuses_other_origins_whatever_they_ask) {
  const Guard guard({});
  for (const char* origin : {"http://evil.example", "https://localhost.evil.example", "null", "http://localhost:3000",
                             "file://", "http://localhost"}) {
    for (const char* method : {"GET", "POST"}) {
      EXPECT_EQ(status(guard, request("/api/v1/runs", {{"origin", origin}}, method)), 403) << origin;
      EXPECT_EQ(status(guard, request("/", {{"origin", origin}}, method)), 403) << origin;
    }
  }
  EXPECT_EQ(status(guard, request("/api/v1/runs", {{"origin", "http://localhost:8642"}}, "POST")), 0);
  EXPECT_EQ(status(guard, request("/api/v1/runs", {{"origin", "https://localhost:8642"}}, "POST")), 0);  // of a proxy
}

TEST(Guard, refuses_what_a_browser_calls_cross_site_but_for_a_link_to_the_page) {
  const Guard guard({});
  for (const char* site : {"cross-site", "same-site"}) {
    EXPECT_EQ(status(guard, request("/api/v1/runs", {{"sec-fetch-site", site}})), 403);
    EXPECT_EQ(status(guard, request("/metrics", {{"sec-fetch-site", site}})), 403);
    EXPECT_EQ(status(guard, request("/", {{"sec-fetch-site", site}})), 0);
  }
  EXPECT_EQ(status(guard, request("/api/v1/runs", {{"sec-fetch-site", "same-origin"}})), 0);
}

TEST(GuardWithToken, asks_everybody_for_it) {
  const Guard guard({.token = kToken});
  EXPECT_EQ(status(guard, request("/api/v1/runs")), 401);
  EXPECT_EQ(status(guard, request("/metrics")), 401);
  EXPECT_EQ(status(guard, request("/")), 401);
  EXPECT_EQ(status(guard, request("/assets/index.js")), 401);
  for (const std::string& wrong : {std::string("x"), std::string(kToken).substr(1), std::string(kToken) + "0",
                                   std::string(32, '0'), std::string()}) {
    EXPECT_EQ(status(guard, request("/api/v1/runs", {{"authorization", "Bearer " + wrong}})), 401) << wrong;
    EXPECT_EQ(status(guard, request("/api/v1/runs", {{"cookie", "lockstep_token=" + wrong}})), 401) << wrong;
  }
  EXPECT_EQ(status(guard, request("/api/v1/runs", {{"authorization", std::string("Basic ") + kToken}})), 401);
  EXPECT_EQ(status(guard, request("/api/v1/runs?token=" + std::string(kToken))), 401);
  EXPECT_EQ(status(guard, request("/api/v1/runs", {{"authorization", std::string("Bearer ") + kToken}})), 0);
  EXPECT_EQ(status(guard, request("/api/v1/runs", {{"cookie", std::string("a=b; lockstep_token=") + kToken}})), 0);
  EXPECT_EQ(
      status(guard, request("/api/v1/runs", {{"authorization", std::string("bearer ") + kToken}, {"host", "gpu7"}})),
      0);
}

TEST(GuardWithToken, gives_a_cookie_for_it) {
  const Guard guard({.token = kToken, .behind_proxy = true});
  const auto right = guard.check(request("/login?token=" + std::string(kToken)));
  ASSERT_TRUE(right);
  EXPECT_EQ(right->status, 303);
  EXPECT_EQ(header(*right, "Location"), "/");
  const std::string given = header(*right, "Set-Cookie");
  for (const char* part : {kToken, "HttpOnly", "SameSite=Lax", "Secure"})
    EXPECT_NE(given.find(part), std::string::npos) << part;

  Request form = request("/login", {}, "POST");
  form.body = "token=" + std::string(kToken);
  EXPECT_EQ(status(guard, form), 303);
  form.body = "token=wrong";
  const auto wrong = guard.check(form);
  EXPECT_EQ(wrong->status, 403);
  EXPECT_EQ(header(*wrong, "Set-Cookie"), "");
  EXPECT_EQ(wrong->body->find("wrong"), std::string::npos);
  form.body = "%zz";
  EXPECT_EQ(status(guard, form), 403);
  EXPECT_EQ(status(guard, request("/login")), 200);
  EXPECT_EQ(status(guard, request("/login?token=")), 403);
  form.body = "token=" + std::string(kToken);
  form.headers["origin"] = "http://evil.example";
  EXPECT_EQ(status(guard, form), 403);
}

}  // namespace
}  // namespace lockstep::serve
