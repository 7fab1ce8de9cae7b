#include "lockstep/elastic/preemption.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/http_request.h"
#include "lockstep/elastic/sockets.h"

namespace lockstep::elastic {
namespace {

// Answers each connection with what `answer` makes of the request.
class Server {
 public:
  explicit Server(std::function<std::string(const std::string& request)> answer)
      : listener_(listen_on({"the test", "127.0.0.1", 0, ""})), thread_([this, answer] { serve(answer); }) {}
  ~Server() {
    closing_ = true;
    thread_.join();
  }
  std::string url(const std::string& path = "/") const {
    return "http://127.0.0.1:" + std::to_string(port_of(listener_.get())) + path;
  }

 private:
  void serve(const std::function<std::string(const std::string&)>& answer) {
    while (!closing_) {
      pollfd polled{listener_.get(), POLLIN, 0};
      if (poll(&polled, 1, 20) <= 0) continue;
      const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
      std::string request;
      char buffer[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t got = ::recv(client.get(), buffer, sizeof(buffer), 0);
        if (got <= 0) break;
        request.append(buffer, static_cast<std::size_t>(got));
      }
      const std::string text = answer(request);
      if (text.empty()) silent_.emplace_back(::dup(client.get()));  // never answered
      (void)!::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  }

  UniqueFd listener_;
  std::atomic<bool> closing_{false};
  std::vector<UniqueFd> silent_;
  std::thread thread_;
};

std::string http(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

bool has(const std::string& text, const std::string& piece) { return text.find(piece) != std::string::npos; }

VariableLookup variables(std::map<std::string, std::string> values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

std::optional<std::string> ask(const NoticeSource& source) {
  std::string token;
  return ask_for_notice(source, token);
}

TEST(Preemption, is_an_answer_of_200_and_not_one_of_404_or_500) {
  std::atomic<int> status{404};
  const Server server([&](const std::string&) { return http(status, "going"); });
  const NoticeSource source = notice_source(server.url("/notice"), "");
  EXPECT_FALSE(ask(source));
  status = 500;
  EXPECT_FALSE(ask(source));
  status = 200;
  const auto notice = ask(source);
  ASSERT_TRUE(notice);
  EXPECT_TRUE(has(*notice, "going")) << *notice;
}

TEST(Preemption, needs_the_text_that_is_looked_for) {
  const Server server([](const std::string&) { return http(200, "state: running"); });
  EXPECT_FALSE(ask(notice_source(server.url(), "terminating")));
  EXPECT_TRUE(ask(notice_source(server.url(), "running")));
}

TEST(Preemption, of_aws_is_asked_for_with_a_token_where_one_is_given_out) {
  std::atomic<int> tokens{0};
  const Server server([&](const std::string& request) {
    if (has(request, "PUT /latest/api/token ") && has(request, "X-aws-ec2-metadata-token-ttl-seconds: 21600\r\n")) {
      tokens += 1;
      return http(200, "secret");
    }
    if (!has(request, "GET /latest/meta-data/spot/instance-action ")) return http(404, "");
    if (!has(request, "X-aws-ec2-metadata-token: secret\r\n")) return http(401, "");
    return http(200, R"({"action": "terminate", "time": "2026-11-16T15:00:00Z"})");
  });
  const NoticeSource source =
      notice_source("aws", "", variables({{"AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url()}}));
  std::string token;
  const auto notice = ask_for_notice(source, token);
  ASSERT_TRUE(notice);
  EXPECT_TRUE(has(*notice, "terminate")) << *notice;
  EXPECT_TRUE(ask_for_notice(source, token));
  EXPECT_EQ(tokens, 1);
  token = "too old";
  EXPECT_FALSE(ask_for_notice(source, token));
  EXPECT_TRUE(ask_for_notice(source, token));
}

TEST(Preemption, of_aws_without_tokens_is_asked_for_without_one) {
  const Server server([](const std::string& request) {
    return has(request, "GET /latest/meta-data/spot/instance-action ") ? http(200, "{}") : http(403, "");
  });
  EXPECT_TRUE(ask(notice_source("aws", "", variables({{"AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url()}}))));
}

TEST(Preemption, of_gcp_is_the_answer_true_to_a_request_with_its_header) {
  std::atomic<bool> preempted{false};
  const Server server([&](const std::string& request) {
    if (!has(request, "Metadata-Flavor: Google\r\n")) return http(403, "");
    if (!has(request, "GET /computeMetadata/v1/instance/preempted ")) return http(404, "");
    return http(200, preempted ? "TRUE" : "FALSE");
  });
  const NoticeSource source =
      notice_source("gcp", "", variables({{"GCE_METADATA_HOST", server.url().substr(7, server.url().size() - 8)}}));
  EXPECT_FALSE(ask(source));
  preempted = true;
  EXPECT_TRUE(ask(source));
}

TEST(Preemption, of_azure_is_an_event_that_preempts_or_terminates) {
  std::atomic<bool> preempted{false};
  const Server server([&](const std::string& request) {
    if (!has(request, "Metadata: true\r\n")) return http(400, "");
    return http(200, preempted ? R"({"Events":[{"EventType":"Preempt"}]})" : R"({"Events":[{"EventType":"Freeze"}]})");
  });
  NoticeSource source = notice_source("azure", "");
  EXPECT_TRUE(has(source.url, "169.254.169.254/metadata/scheduledevents"));
  source.url = server.url("/metadata/scheduledevents?api-version=2020-07-01");
  EXPECT_FALSE(ask(source));
  preempted = true;
  EXPECT_TRUE(ask(source));
}

TEST(Preemption, is_not_silence_nor_a_closed_door_nor_nonsense) {
  const Server silent([](const std::string&) { return std::string(); });
  NoticeSource source = notice_source(silent.url(), "");
  source.timeout_seconds = 0.2;
  EXPECT_FALSE(ask(source));
  EXPECT_FALSE(ask(notice_source("http://127.0.0.1:1/", "")));
  const Server other([](const std::string&) { return std::string("SSH-2.0-OpenSSH\r\n\r\n"); });
  NoticeSource nonsense = notice_source(other.url(), "");
  nonsense.timeout_seconds = 0.5;
  EXPECT_FALSE(ask(nonsense));
}

TEST(Preemption, is_found_on_a_thread_of_its_own) {
  std::atomic<int> asked{0};
  const Server server([&](const std::string&) { return http(++asked > 3 ? 200 : 404, ""); });
  const PreemptionWatch watch(notice_source(server.url(), ""), 0.01);
  const Deadline deadline = Deadline::after(30.0);
  while (!watch.notice() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(watch.notice());
}

TEST(Http, puts_an_answer_in_chunks_together) {
  const Server server([](const std::string&) {
    return std::string(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        "2\r\nTR\r\n2\r\nUE\r\n0\r\n\r\n");
  });
  const auto answer = ask_http({.url = server.url()});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "TRUE");
}

TEST(Http, refuses_what_is_not_a_url) {
  for (const char* text : {"https://a/", "ftp://a", "http://", "http://a:0/", "http://a:99999/", "http://a b/"}) {
    EXPECT_THROW(require_http_url(text), UserError) << text;
  }
  EXPECT_NO_THROW(require_http_url("http://[fd00:ec2::254]/latest"));
  EXPECT_NO_THROW(require_http_url("http://169.254.169.254/x?y=z"));
}

}  // namespace
}  // namespace lockstep::elastic
