#include "lockstep/elastic/preemption.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/http_request.h"
#include "lockstep/base/text.h"

namespace lockstep::elastic {
namespace {

constexpr const char* kTokenHeader = "X-aws-ec2-metadata-token";
constexpr const char* kTokenSeconds = "21600";

// "host", "host:port" or a URL, without a slash at its end.
std::string base_url(std::string text) {
  if (text.rfind("http://", 0) != 0) text.insert(0, "http://");
  while (text.ends_with('/')) text.pop_back();
  return text;
}

NoticeSource aws(const VariableLookup& lookup) {
  const std::string base = base_url(lookup("AWS_EC2_METADATA_SERVICE_ENDPOINT").value_or("169.254.169.254"));
  NoticeSource source;
  source.url = base + "/latest/meta-data/spot/instance-action";
  source.token_url = base + "/latest/api/token";
  return source;
}

NoticeSource gcp(const VariableLookup& lookup) {
  NoticeSource source;
  source.url =
      base_url(lookup("GCE_METADATA_HOST").value_or("169.254.169.254")) + "/computeMetadata/v1/instance/preempted";
  source.headers = {{"Metadata-Flavor", "Google"}};
  source.texts = {"TRUE"};
  return source;
}

NoticeSource azure() {
  NoticeSource source;
  source.url = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01";
  source.headers = {{"Metadata", "true"}};
  source.texts = {"Preempt", "Terminate"};
  return source;
}

// A service that gives out none answers without it.
void renew_token(const NoticeSource& source, std::string& token) {
  HttpRequest request{.method = "PUT", .url = source.token_url, .timeout_seconds = source.timeout_seconds};
  request.headers["X-aws-ec2-metadata-token-ttl-seconds"] = kTokenSeconds;
  const auto answer = ask_http(request);
  const std::string got = answer && answer->status == 200 ? std::string(trim(answer->body)) : "";
  token = is_printable(got) ? got : "";
}

}  // namespace

NoticeSource notice_source(const std::string& where, const std::string& text, const VariableLookup& lookup) {
  NoticeSource source;
  if (where == "aws") {
    source = aws(lookup);
  } else if (where == "gcp") {
    source = gcp(lookup);
  } else if (where == "azure") {
    source = azure();
  } else {
    source.url = where;
  }
  source.name = where;
  require_http_url(source.url);
  if (!text.empty()) source.texts = {text};
  return source;
}

std::optional<std::string> ask_for_notice(const NoticeSource& source, std::string& token) {
  if (!source.token_url.empty() && token.empty()) renew_token(source, token);
  HttpRequest request{.url = source.url, .headers = source.headers, .timeout_seconds = source.timeout_seconds};
  if (!token.empty()) request.headers[kTokenHeader] = token;
  const auto answer = ask_http(request);
  constexpr int kUnauthorized = 401;
  if (answer && answer->status == kUnauthorized) token.clear();  // it is too old: the next time with a new one
  if (!answer || answer->status != 200) return std::nullopt;
  const bool found = source.texts.empty() || std::ranges::any_of(source.texts, [&](const std::string& text) {
                       return answer->body.find(text) != std::string::npos;
                     });
  if (!found) return std::nullopt;
  return fmt::format("notice of {}: this machine will be taken away ({})", source.name,
                     printable(trim(answer->body), 100));
}

struct PreemptionWatch::State {
  std::mutex mutex;
  std::optional<std::string> notice;
};

PreemptionWatch::PreemptionWatch(NoticeSource source, double every_seconds)
    : state_(std::make_shared<State>()),
      thread_(every_seconds, [state = state_, asked = std::move(source), token = std::string()]() mutable {
        {
          const std::lock_guard lock(state->mutex);
          if (state->notice) return;
        }
        auto found = ask_for_notice(asked, token);
        const std::lock_guard lock(state->mutex);
        state->notice = std::move(found);
      }) {}

std::optional<std::string> PreemptionWatch::notice() const {
  const std::lock_guard lock(state_->mutex);
  return state_->notice;
}

}  // namespace lockstep::elastic
