// Alerts reach a webhook and a command, together where there are many, and never hold anybody up.
#include "lockstep/telemetry/alert_delivery.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::telemetry {
namespace {

using spec::AlertRule;

// Answers every request with the next status of its list (the last one for ever); 0: never answers.
class Webhook {
 public:
  explicit Webhook(std::vector<int> statuses) : statuses_(std::move(statuses)), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(fd_.get(), 8), 0);
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Webhook() {
    ::shutdown(fd_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/hook/secret-part"; }
  // The bodies of requests that came, once there are `count` of them.
  std::vector<std::string> bodies(std::size_t count, double seconds = 30.0) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return bodies_.size() >= count; });
    return bodies_;
  }

 private:
  void serve() {
    while (true) {
      UniqueFd client(::accept(fd_.get(), nullptr, nullptr));
      if (!client) return;
      std::string text;
      std::size_t want = std::string::npos;
      char buffer[4096];
      while (text.size() < want) {
        const ssize_t count = ::read(client.get(), buffer, sizeof buffer);
        if (count <= 0) break;
        text.append(buffer, static_cast<std::size_t>(count));
        const std::size_t end = text.find("\r\n\r\n");
        const std::size_t at = text.find("ontent-Length: ");
        if (end != std::string::npos && at != std::string::npos) want = end + 4 + std::stoul(text.substr(at + 15));
      }
      int status = 0;
      {
        const std::lock_guard lock(mutex_);
        status = statuses_[std::min(bodies_.size(), statuses_.size() - 1)];
        bodies_.push_back(text.substr(text.find("\r\n\r\n") + 4));
      }
      changed_.notify_all();
      if (status == 0) {
        silent_.push_back(std::move(client));
        continue;
      }
      const std::string answer = "HTTP/1.1 " + std::to_string(status) + " x\r\nContent-Length: 0\r\n\r\n";
      EXPECT_EQ(::write(client.get(), answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
    }
  }

  std::vector<int> statuses_;
  UniqueFd fd_;
  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> bodies_;
  std::vector<UniqueFd> silent_;
  std::thread thread_;
};

Alert an_alert(int step) {
  return {.rule = AlertRule::kLossSpike, .step = step, .time = 1.7e9, .message = "the loss rose", .fix = "less"};
}

spec::Alerts to(const std::string& webhook, std::vector<std::string> command = {}) {
  spec::Alerts settings;
  settings.webhook = webhook;
  settings.command = std::move(command);
  settings.pause_seconds = 0.0;
  return settings;
}

// What was said about problems.
struct Problems {
  std::mutex mutex;
  std::vector<std::string> lines;
  DeliveryOptions options() {
    DeliveryOptions result{.run = "r1", .name = "my job", .first_retry_seconds = 0.01};
    result.on_problem = [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      lines.push_back(text);
    };
    return result;
  }
};

TEST(AlertDelivery, a_webhook_gets_what_people_and_programs_read) {
  Webhook webhook({204});
  Problems problems;
  {
    AlertDelivery delivery(to(webhook.url()), problems.options());
    EXPECT_TRUE(delivery.is_wanted());
    delivery.tell(an_alert(7));
    const auto body = nlohmann::json::parse(webhook.bodies(1).at(0));
    EXPECT_EQ(body.at("text"), "my job (r1)\nalert loss_spike: the loss rose; do: less");
    EXPECT_EQ(body.at("run"), "r1");
    EXPECT_EQ(body.at("alerts").at(0).at("rule"), "loss_spike");
    EXPECT_EQ(body.at("alerts").at(0).at("state"), "firing");
    EXPECT_EQ(body.at("alerts").at(0).at("step"), 7);
  }
  EXPECT_TRUE(problems.lines.empty());
}

TEST(AlertDelivery, is_tried_again_until_it_is_taken) {
  Webhook webhook({500, 503, 200});
  Problems problems;
  {
    AlertDelivery delivery(to(webhook.url()), problems.options());
    delivery.tell(an_alert(1));
    const auto bodies = webhook.bodies(3);
    ASSERT_EQ(bodies.size(), 3u);
    EXPECT_EQ(bodies[0], bodies[2]);
  }
  EXPECT_TRUE(problems.lines.empty());
}

TEST(AlertDelivery, what_comes_within_the_pause_is_told_together) {
  Webhook webhook({200});
  spec::Alerts settings = to(webhook.url());
  settings.pause_seconds = 3600.0;
  Problems problems;
  {
    AlertDelivery delivery(settings, problems.options());
    delivery.tell(an_alert(1));
    ASSERT_EQ(webhook.bodies(1).size(), 1u);
    for (int i = 2; i <= 100; ++i) delivery.tell(an_alert(i));
  }  // the end of the run does not wait for the pause
  const auto bodies = webhook.bodies(2);
  ASSERT_EQ(bodies.size(), 2u);
  const auto body = nlohmann::json::parse(bodies[1]);
  EXPECT_EQ(body.at("alerts").size(), 50u);
  EXPECT_NE(body.at("text").get<std::string>().find("and 49 more"), std::string::npos);
}

TEST(AlertDelivery, a_webhook_that_refuses_is_said_once_and_without_its_address) {
  Webhook webhook({500});
  Problems problems;
  {
    AlertDelivery delivery(to(webhook.url()), problems.options());
    delivery.tell(an_alert(1));
    webhook.bodies(4);
    delivery.tell(an_alert(2));
    webhook.bodies(8);
  }
  ASSERT_EQ(problems.lines.size(), 1u);
  EXPECT_EQ(problems.lines[0].find("secret"), std::string::npos) << problems.lines[0];
}

TEST(AlertDelivery, one_that_never_answers_holds_nobody_up) {
  Webhook webhook({0});
  Problems problems;
  DeliveryOptions options = problems.options();
  options.timeout_seconds = 3600.0;
  options.close_seconds = 0.2;
  AlertDelivery delivery(to(webhook.url()), options);
  delivery.tell(an_alert(1));
  webhook.bodies(1);
}  // returns: ctest's timeout judges

TEST(AlertDelivery, a_command_gets_the_text_and_the_json) {
  const TemporaryFolder folder;
  const std::string script = (folder.path() / "notify").string(), out = (folder.path() / "out").string();
  std::ofstream(script) << "#!/bin/sh\n{ printf '%s|' \"$@\"; cat; printf '%s' \"$LOCKSTEP_ALERT\"; } > '" << out
                        << ".part'\nmv '" << out << ".part' '" << out << "'\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  Problems problems;
  {
    DeliveryOptions options = problems.options();
    options.close_seconds = 60.0;
    AlertDelivery delivery(to("", {script, "a b; $(touch x)"}), options);
    delivery.tell(an_alert(3));
  }
  const std::string text = read_file(out);
  EXPECT_EQ(text.find("a b; $(touch x)|my job (r1)\nalert loss_spike: the loss rose; do: less\n{"), 0u) << text;
  EXPECT_EQ(nlohmann::json::parse(text.substr(text.find('{'))).at("alerts").at(0).at("step"), 3);
  EXPECT_TRUE(problems.lines.empty());
}

TEST(AlertDelivery, a_command_that_fails_or_does_not_read_is_said) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"false"}, {"/no/such/program"}}) {
    Problems problems;
    {
      AlertDelivery delivery(to("", command), problems.options());
      for (int i = 0; i < 3; ++i) delivery.tell(an_alert(i));
    }
    ASSERT_EQ(problems.lines.size(), 1u);
    EXPECT_NE(problems.lines[0].find(command[0]), std::string::npos);
  }
}

// Stands before the real curl in PATH.
TEST(AlertDelivery, an_https_address_reaches_curl_by_its_standard_input_alone) {
  const TemporaryFolder folder;
  const auto curl = folder.path() / "curl";
  std::ofstream(curl) << "#!/bin/sh\necho \"$@\" > '" << folder.path().string() << "/arguments'\ncat > '"
                      << folder.path().string() << "/config'\ncp \"$(sed -n 's/^data-binary = \"@\\(.*\\)\"$/\\1/p' '"
                      << folder.path().string() << "/config')\" '" << folder.path().string() << "/body'\n";
  std::filesystem::permissions(curl, std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (folder.path().string() + ":" + path).c_str(), 1);
  ::setenv("LOCKSTEP_TEST_HOOK", "https://hooks.example.org/T0/\"quoted\"/secret", 1);
  Problems problems;
  {
    DeliveryOptions options = problems.options();
    options.close_seconds = 60.0;
    AlertDelivery delivery(to("env:LOCKSTEP_TEST_HOOK"), options);
    delivery.tell(an_alert(3));
  }
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(read_file(folder.path() / "arguments"), "--config -\n");
  const std::string config = read_file(folder.path() / "config");
  EXPECT_NE(config.find("url = \"https://hooks.example.org/T0/\\\"quoted\\\"/secret\"\n"), std::string::npos) << config;
  EXPECT_EQ(nlohmann::json::parse(read_file(folder.path() / "body")).at("run"), "r1");
  EXPECT_TRUE(problems.lines.empty());
}

TEST(AlertDelivery, an_address_comes_from_a_variable_or_a_file_and_is_never_said) {
  ::setenv("LOCKSTEP_TEST_HOOK", " http://relay:8080/x \n", 1);
  EXPECT_EQ(webhook_address("env:LOCKSTEP_TEST_HOOK"), "http://relay:8080/x");
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "hook").string();
  std::ofstream(file) << "https://hooks.example.org/secret\nmore\n";
  EXPECT_EQ(webhook_address("file:" + file), "https://hooks.example.org/secret");
  ::setenv("LOCKSTEP_TEST_HOOK", "ftp://secret", 1);
  for (const std::string& setting :
       {std::string("env:LOCKSTEP_TEST_HOOK"), std::string("env:LOCKSTEP_NO_SUCH"), "file:" + file + ".not"}) {
    try {
      webhook_address(setting);
      FAIL() << setting;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos) << error.what();
    }
  }
}

TEST(AlertDelivery, without_an_address_nothing_is_started) {
  AlertDelivery delivery({}, {});
  EXPECT_FALSE(delivery.is_wanted());
  delivery.tell(an_alert(1));
}

}  // namespace
}  // namespace lockstep::telemetry
