// The two families of errors that cross folder boundaries, and the assertion for our own bugs.
//
//   UserError  what the user can fix: a bad file, a plan that does not fit, a missing package.
//              Carries the exit code of the command line and one line that says what to do next.
//   Fault      what recovery may act on: a peer was lost, a wait ran out of time, a stop was asked for.
//
// Outcomes that are expected (a key that is absent, a candidate that does not fit) are return values, not errors.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep {

// Exit codes of every verb (docs/reference/cli.md).
enum class ExitCode : int {
  kOk = 0,
  kRunFailed = 1,
  kUsage = 2,         // usage or bad file
  kAnswerIsNo = 3,    // does not fit, check failed
  kEnvironment = 4,   // something is missing on this machine
  kRetry = 75,        // worth retrying
  kInterrupted = 130  // stopped by Ctrl-C
};

// A place in a text file; line and column count from 1, 0 means unknown.
struct SourcePlace {
  std::string file;
  int line = 0;
  int column = 0;

  // "job.yaml:3:7", "job.yaml:3", "job.yaml" or "".
  std::string to_string() const {
    std::string text = file;
    if (line > 0) text.append(":").append(std::to_string(line));
    if (line > 0 && column > 0) text.append(":").append(std::to_string(column));
    return text;
  }
};

// what() is one line: "<place>: <problem>; <fix>" (place and fix may be empty).
class UserError : public std::runtime_error {
 public:
  UserError(ExitCode code, const std::string& problem, std::string fix = {}, SourcePlace place = {})
      : std::runtime_error(compose(problem, fix, place)), code_(code), fix_(std::move(fix)), place_(std::move(place)) {}

  ExitCode code() const { return code_; }
  const std::string& fix() const { return fix_; }
  const SourcePlace& place() const { return place_; }

 private:
  static std::string compose(const std::string& problem, const std::string& fix, const SourcePlace& place) {
    std::string text = place.to_string();
    if (!text.empty()) text += ": ";
    text += problem;
    if (!fix.empty()) text += "; " + fix;
    return text;
  }

  ExitCode code_;
  std::string fix_;
  SourcePlace place_;
};

// A file, flag, packet or checkpoint that says something wrong: exit code 2.
inline UserError bad_input(const std::string& problem, std::string fix = {}, SourcePlace place = {}) {
  return UserError(ExitCode::kUsage, problem, std::move(fix), std::move(place));
}

// The machine lacks something (a missing file that the job needs, a package, a free port): exit code 4.
inline UserError environment_error(const std::string& problem, std::string fix = {}, SourcePlace place = {}) {
  return UserError(ExitCode::kEnvironment, problem, std::move(fix), std::move(place));
}

// The answer to the question is no (does not fit, a check failed): exit code 3.
inline UserError does_not_fit(const std::string& problem, std::string fix = {}, SourcePlace place = {}) {
  return UserError(ExitCode::kAnswerIsNo, problem, std::move(fix), std::move(place));
}

enum class FaultKind { kPeerLost, kTimeout, kAborted };

// Something outside this process went wrong while ranks worked together.
class Fault : public std::runtime_error {
 public:
  // `rank` is the global rank that is believed to be the cause, or -1 if that is unknown.
  Fault(FaultKind kind, int rank, const std::string& what) : std::runtime_error(what), kind_(kind), rank_(rank) {}

  FaultKind kind() const { return kind_; }
  int rank() const { return rank_; }

 private:
  FaultKind kind_;
  int rank_;
};

// Thrown by LOCKSTEP_ASSERT: a bug of ours, never the user's.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace lockstep

#define LOCKSTEP_ASSERT(condition, message)                                                            \
  do {                                                                                                 \
    if (!(condition)) {                                                                                \
      throw ::lockstep::InternalError(std::string("[") + __FILE__ + ":" + std::to_string(__LINE__) +   \
                                      "] assertion `" #condition "` failed: " + std::string(message)); \
    }                                                                                                  \
  } while (false)
