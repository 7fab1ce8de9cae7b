// Notices that this machine will be taken away: asked for at a URL, as clouds tell them.
//
//   aws     IMDS of EC2: /latest/meta-data/spot/instance-action, with a token where one is given out (IMDSv2)
//   gcp     /computeMetadata/v1/instance/preempted, header "Metadata-Flavor: Google", the answer TRUE
//   azure   /metadata/scheduledevents, header "Metadata: true", an event of type Preempt or Terminate
//   http:// any address: 200 is the notice
//
// An answer of 200 that holds the text looked for is the notice; 404 is none, and neither is silence.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/elastic/rank_environment.h"
#include "lockstep/elastic/repeater.h"

namespace lockstep::elastic {

struct NoticeSource {
  std::string name;  // "aws", or the URL
  std::string url;
  std::map<std::string, std::string> headers;
  std::vector<std::string> texts;  // the answer holds one of them; empty: 200 is enough
  std::string token_url;           // aws: where a token is had by PUT; "": none is needed
  double timeout_seconds = 2.0;    // of one request
};

// `where`: "aws", "gcp", "azure" or a URL; `text`: what the answer must hold, "" for what is usual there. Metadata
// services elsewhere than usual are found as their own tools find them: AWS_EC2_METADATA_SERVICE_ENDPOINT,
// GCE_METADATA_HOST. Throws bad_input.
NoticeSource notice_source(const std::string& where, const std::string& text,
                           const VariableLookup& lookup = process_environment());

// Asks once. The notice in one line, or nothing.
std::optional<std::string> ask_for_notice(const NoticeSource& source, std::string& token);

// Asks every few seconds on a thread of its own.
class PreemptionWatch {
 public:
  explicit PreemptionWatch(NoticeSource source, double every_seconds = 3.0);
  // The notice, once there is one. Never waits.
  std::optional<std::string> notice() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  Repeater thread_;
};

}  // namespace lockstep::elastic
