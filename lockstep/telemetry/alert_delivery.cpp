#include "lockstep/telemetry/alert_delivery.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/http_request.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"

namespace lockstep::telemetry {
namespace {

constexpr std::size_t kMostAlerts = 50;     // of one notification; more are counted
constexpr std::size_t kMostPending = 1000;  // beyond them the oldest are dropped and counted
constexpr double kGather = 0.2;             // what fires at once goes out at once, together
constexpr std::uint64_t kMostAddressBytes = 8192;
constexpr std::size_t kPipeBytes = 32768;  // fit into a pipe that nobody reads
constexpr double kLook = 0.1;              // seconds between two looks whether to give up
constexpr const char* kVariable = "LOCKSTEP_ALERT";

UserError problem(const std::string& text, const std::string& fix) {
  return UserError(ExitCode::kEnvironment, "alerts.webhook: " + text, fix);
}

// A line of curl's configuration: quoted, so that an address cannot become another option.
std::string curl_line(const std::string& key, const std::string& value) {
  std::string text = key + " = \"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + "\"\n";
}

using GiveUp = std::function<bool()>;

// Runs it with `input` on its standard input; whether it ended well in time.
bool run_with_input(SpawnOptions options, const std::string& input, double seconds, const GiveUp& give_up) {
  options.standard_input = StreamMode::kPipe;
  options.standard_output = options.standard_error = StreamMode::kNull;
  Process child = Process::spawn(options);
  std::string_view rest = std::string_view(input).substr(0, kPipeBytes);
  while (!rest.empty()) {
    const ssize_t written = ::write(child.stdin_fd().get(), rest.data(), rest.size());
    if (written <= 0) break;  // it does not want to read
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  child.stdin_fd().reset();
  const Deadline deadline = Deadline::after(seconds);
  while (!deadline.expired() && !give_up()) {
    if (const auto status = child.wait(kLook)) return status->ok();
  }
  return false;
}

// Encrypted addresses go through curl, which reads the address and the body where nobody else sees them.
bool post_by_curl(const std::string& url, const std::string& body, double seconds, const GiveUp& give_up) {
  const TemporaryFolder folder("lockstep-alert");  // for its owner alone
  const auto file = folder.path() / "body";
  replace_file(file, body);
  const std::string config = curl_line("url", url) + curl_line("data-binary", "@" + file.string()) +
                             curl_line("header", "Content-Type: application/json") +
                             fmt::format("max-time = {:.0f}\nsilent\nfail\nproto = \"=https\"\n", seconds);
  return run_with_input({.argv = {"curl", "--config", "-"}}, config, seconds + 5.0, give_up);
}

bool post(const std::string& url, const std::string& body, double seconds, const GiveUp& give_up) {
  if (url.starts_with("https://")) return post_by_curl(url, body, seconds, give_up);
  HttpExchange exchange({.method = "POST",
                         .url = url,
                         .headers = {{"Content-Type", "application/json"}},
                         .body = body,
                         .timeout_seconds = seconds});
  while (!exchange.advance()) {
    if (give_up()) return false;
    exchange.wait(static_cast<int>(1000 * kLook));
  }
  const auto answer = exchange.answer();
  return answer && answer->status >= 200 && answer->status < 300;
}

}  // namespace

nlohmann::json notification(const std::vector<Alert>& alerts, const DeliveryOptions& options) {
  std::vector<std::string> lines = {fmt::format("{} ({})", printable(options.name, 80), printable(options.run, 80))};
  nlohmann::json events = nlohmann::json::array();
  for (const Alert& alert : alerts) {
    if (events.size() == kMostAlerts) {
      lines.push_back(fmt::format("and {} more", alerts.size() - kMostAlerts));
      break;
    }
    const Event event = to_event(alert);
    lines.push_back(to_text(alert));
    nlohmann::json one = event.data;
    one["message"] = event.message;
    one["level"] = to_string(event.level);
    one["rank"] = event.rank;
    one["step"] = event.step;
    one["time"] = event.time;
    events.push_back(std::move(one));
  }
  return {{"text", join(lines, "\n")},
          {"run", options.run},
          {"name", options.name},
          {"host", host_name()},
          {"alerts", std::move(events)}};
}

std::string webhook_address(const std::string& setting) {
  std::string address = setting;
  if (setting.starts_with("env:")) {
    const char* value = std::getenv(setting.c_str() + 4);
    if (value == nullptr) throw problem("the variable " + setting.substr(4) + " is not set", "export it");
    address = value;
  } else if (setting.starts_with("file:")) {
    address = read_file(setting.substr(5), kMostAddressBytes);
    address = address.substr(0, address.find('\n'));
  }
  address = std::string(trim(address));
  const bool is_address = address.starts_with("https://") || address.starts_with("http://");
  if (!is_address || !is_printable(address) || address.find(' ') != std::string::npos) {
    throw problem(printable(setting) + " does not hold an address", "it begins with https:// or http://");
  }
  if (address.starts_with("http://")) {
    try {
      require_http_url(address);
    } catch (const UserError&) {
      throw problem(printable(setting) + " does not hold an address", "for example http://relay:8080/alerts");
    }
  }
  return address;
}

struct AlertDelivery::Impl {
  spec::Alerts settings;
  DeliveryOptions options;
  std::string address;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Alert> pending;
  bool closing = false;
  double close_at = 0.0;
  bool told_webhook = false, told_command = false;
  std::thread thread;

  // The run is over, and so is what was left for the last ones.
  bool is_late() {
    const std::lock_guard lock(mutex);
    return closing && monotonic_seconds() > close_at;
  }

  // Whether the wait was not cut short because the run ends.
  bool pause(double seconds) {
    std::unique_lock lock(mutex);
    return !changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return closing; });
  }

  std::vector<Alert> take() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return closing || !pending.empty(); });
    lock.unlock();
    pause(kGather);
    lock.lock();
    return std::exchange(pending, {});
  }

  void run() {
    // A command that does not read must not end the run.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    while (true) {
      const std::vector<Alert> alerts = take();
      if (alerts.empty()) return;  // closing
      deliver(alerts);
      pause(settings.pause_seconds);
    }
  }

  void deliver(const std::vector<Alert>& alerts) {
    const nlohmann::json message = notification(alerts, options);
    const std::string body = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (!address.empty() && !post_with_retries(body)) say(told_webhook, "the webhook of alerts does not take them");
    if (!settings.command.empty() && !run_command_of_user(message.at("text").get<std::string>(), body)) {
      say(told_command, "the command of alerts failed: " + printable(settings.command[0]));
    }
  }

  bool post_with_retries(const std::string& body) {
    double wait = options.first_retry_seconds;
    for (int i = 0; i < options.tries && !is_late(); ++i, wait *= 4.0) {
      try {
        if (post(address, body, options.timeout_seconds, [this] { return is_late(); })) return true;
      } catch (const UserError&) {
        say(told_webhook, "alerts for an https webhook need the program curl");
        return true;  // said; another try is no use
      }
      if (i + 1 < options.tries && !pause(wait)) wait = 0.0;
    }
    return false;
  }

  bool run_command_of_user(const std::string& text, const std::string& body) {
    try {
      return run_with_input({.argv = settings.command, .environment = {{kVariable, body}}}, text + "\n",
                            options.command_seconds, [this] { return is_late(); });
    } catch (const UserError&) {
      return false;
    }
  }

  void say(bool& told, const std::string& text) {
    if (!std::exchange(told, true) && options.on_problem) options.on_problem(text);
  }
};

AlertDelivery::AlertDelivery(const spec::Alerts& settings, DeliveryOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->settings = settings;
  impl_->options = std::move(options);
  if (!settings.webhook.empty()) impl_->address = webhook_address(settings.webhook);
  if (is_wanted()) impl_->thread = std::thread([this] { impl_->run(); });
}

AlertDelivery::~AlertDelivery() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->closing = true;
    impl_->close_at = monotonic_seconds() + impl_->options.close_seconds;
  }
  impl_->changed.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

bool AlertDelivery::is_wanted() const { return !impl_->address.empty() || !impl_->settings.command.empty(); }

void AlertDelivery::tell(const Alert& alert) {
  if (!is_wanted()) return;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->pending.size() >= kMostPending) impl_->pending.erase(impl_->pending.begin());
    impl_->pending.push_back(alert);
  }
  impl_->changed.notify_all();
}

}  // namespace lockstep::telemetry
