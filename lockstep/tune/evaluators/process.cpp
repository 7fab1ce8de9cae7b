#include "lockstep/tune/evaluators/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <set>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kLongestLine = 1u << 20;
constexpr std::size_t kMostPerRead = 1u << 20;
constexpr std::size_t kMostSamples = 4096;
constexpr std::size_t kLongestLog = 4u << 20;
constexpr std::size_t kTailLines = 200;
constexpr const char* kMark = "LOCKSTEP_TRIAL_MARK";

// Start of a process in clock ticks since boot: with the pid it names one process for good. 0: not there.
std::uint64_t start_ticks(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields = split(trim(text.substr(name_end + 1)), ' ');
  if (fields.size() < 20 || fields[0] == "Z" || fields[0] == "X") return 0;
  return std::stoull(fields[19]);
}

// Process ids mean something only within their namespace; "" where that is unknown.
std::string process_namespace() {
  std::error_code ignored;
  std::string name = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  std::erase_if(name, [](char c) { return c < '0' || c > '9'; });
  return name;
}

// "<namespace>.<owner's pid>.<owner's start>.<now>": says whose it is and whether that process still lives.
std::string new_mark() {
  return fmt::format("{}.{}.{}.{}", process_namespace(), ::getpid(), start_ticks(::getpid()),
                     static_cast<std::int64_t>(1e9 * unix_seconds()));
}

// Processes of ours to read whose environment has a mark, with that mark.
std::vector<std::pair<pid_t, std::string>> marked_processes() {
  std::vector<std::pair<pid_t, std::string>> found;
  const std::string prefix = fmt::format("{}=", kMark);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "environ");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    for (const std::string& variable : split(text, '\0')) {
      if (!variable.starts_with(prefix)) continue;
      found.emplace_back(static_cast<pid_t>(std::stol(name)), variable.substr(prefix.size()));
      break;
    }
  }
  return found;
}

int kill_marked(const std::function<bool(const std::string& mark)>& is_meant) {
  int killed = 0;
  for (const auto& [pid, mark] : marked_processes()) {
    if (pid == ::getpid() || !is_meant(mark)) continue;
    killed += ::kill(pid, SIGKILL) == 0 ? 1 : 0;
  }
  return killed;
}

bool owner_is_gone(const std::string& mark) {
  const std::vector<std::string> parts = split(mark, '.');
  if (parts.size() != 4 || parts[0] != process_namespace()) return false;
  for (const std::string& part : parts)
    if (part.empty() || part.size() > 19 || part.find_first_not_of("0123456789") != std::string::npos) return false;
  return start_ticks(static_cast<pid_t>(std::stol(parts[1]))) != std::stoull(parts[2]);
}

bool is_environment_word(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0 || std::isdigit(static_cast<unsigned char>(word[0]))) return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

struct Word {
  std::string text;
  bool quoted = false;  // any part of it
};

// POSIX quoting without expansions.
std::vector<Word> split_words(const std::string& text) {
  std::vector<Word> words;
  bool open = false;  // a word has begun
  char quote = 0;
  auto put = [&](char c) { words.back().text.push_back(c); };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (quote == 0 && space) {
      open = false;
      continue;
    }
    if (!open) words.emplace_back();
    open = true;
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      words.back().quoted = true;
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'' && i + 1 < text.size() &&
               (quote == 0 || text[i + 1] == '"' || text[i + 1] == '\\')) {
      put(text[++i]);
      words.back().quoted = true;
    } else {
      put(c);
    }
  }
  if (quote != 0) throw bad_input(fmt::format("the command `{}` has an open {}", printable(text), quote), "close it");
  return words;
}

}  // namespace

CommandLine split_command(const std::string& text) {
  if (text.find('\0') != std::string::npos) throw bad_input("the command contains a zero byte", "leave it out");
  static const std::set<std::string> kShellOnly{"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", ">&"};
  CommandLine command;
  for (const Word& word : split_words(text)) {
    if (!word.quoted && kShellOnly.count(word.text) != 0) {
      throw bad_input(fmt::format("`{}` needs a shell, and the command is run without one", word.text),
                      "put the line into a script and name that");
    }
    if (command.argv.empty() && is_environment_word(word.text)) {
      const std::size_t equals = word.text.find('=');
      command.environment[word.text.substr(0, equals)] = word.text.substr(equals + 1);
    } else {
      command.argv.push_back(word.text);
    }
  }
  if (command.argv.empty() || command.argv.front().empty()) throw bad_input("the command is empty", "name a program");
  return command;
}

LineReader::LineReader(UniqueFd fd) : fd_(std::move(fd)) {
  if (fd_) ::fcntl(fd_.get(), F_SETFL, ::fcntl(fd_.get(), F_GETFL) | O_NONBLOCK);
}

void LineReader::read(std::vector<std::string>& lines) {
  char buffer[65536];
  for (std::size_t taken = 0; fd_ && taken < kMostPerRead; taken += sizeof buffer) {
    const ssize_t got = ::read(fd_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      fd_.reset();
      if (!rest_.empty()) lines.push_back(std::move(rest_));
      rest_.clear();
      return;
    }
    for (ssize_t i = 0; i < got; ++i) {
      // Progress bars end their lines with '\r'.
      if (buffer[i] == '\n' || buffer[i] == '\r') {
        if (!rest_.empty()) lines.push_back(std::move(rest_));
        rest_.clear();
      } else if (rest_.size() < kLongestLine) {
        rest_.push_back(buffer[i]);
      }
    }
    if (got < static_cast<ssize_t>(sizeof buffer)) return;
  }
}

void SampleList::add(double value) {
  ++seen_;
  sum_ += value;
  if (++open_ < each_) return;
  values_.push_back(sum_ / static_cast<double>(each_));
  sum_ = 0;
  open_ = 0;
  if (values_.size() < kMostSamples) return;
  for (std::size_t i = 0; i < values_.size() / 2; ++i) values_[i] = 0.5 * (values_[2 * i] + values_[2 * i + 1]);
  values_.resize(values_.size() / 2);
  each_ *= 2;
}

OutputTail::OutputTail(const std::filesystem::path& log) {
  if (log.empty()) return;
  make_folders(log.parent_path());
  log_.open(log, std::ios::app);
}

void OutputTail::add(const std::string& line) {
  lines_.push_back(line.substr(0, 4096));
  if (lines_.size() > kTailLines) lines_.pop_front();
  if (!log_.is_open() || logged_ > kLongestLog) return;
  log_ << line << '\n' << std::flush;
  logged_ += line.size() + 1;
}

std::string OutputTail::last() const {
  for (auto line = lines_.rbegin(); line != lines_.rend(); ++line)
    if (!trim(*line).empty()) return printable(trim(*line), 200);
  return "";
}

TrialProgram TrialProgram::start(SpawnOptions options) {
  const std::string mark = new_mark();
  options.environment[kMark] = mark;
  options.standard_output = options.standard_error = StreamMode::kPipe;
  return TrialProgram(Process::spawn(options), mark);
}

ExitStatus TrialProgram::end(double grace_seconds) {
  ExitStatus status;
  if (const auto ended = process_.poll()) {
    process_.signal_group(SIGKILL);
    status = *ended;
  } else {
    status = process_.terminate(grace_seconds);
  }
  // What was forked during the search is found by searching again.
  for (int round = 0; round < 5; ++round)
    if (kill_marked([&](const std::string& mark) { return mark == mark_; }) == 0) break;
  return status;
}

double TrialProgram::memory_bytes() const {
  const double page = static_cast<double>(::sysconf(_SC_PAGESIZE));
  double pages = 0;
  for (const auto& [pid, mark] : marked_processes()) {
    if (mark != mark_) continue;
    std::ifstream file(fmt::format("/proc/{}/statm", pid));
    double size = 0, resident = 0, shared = 0;
    if (file >> size >> resident >> shared) pages += std::max(0.0, resident - shared);
  }
  return pages * page;
}

int end_orphans() { return kill_marked(owner_is_gone); }

DeviceCount::DeviceCount(const std::string& number_or_knob, const Space& space) {
  if (number_or_knob.empty()) return;
  if (number_or_knob.find_first_not_of("0123456789") == std::string::npos) {
    number_ = static_cast<double>(parse_integer(number_or_knob));
    if (number_ < 1) throw bad_input("--gpus 0: a trial holds at least one device", "give what one trial holds");
    return;
  }
  knob_ = space.find(number_or_knob);
  std::vector<std::string> names;
  for (const Knob& knob : space.knobs()) names.push_back(knob.name);
  if (!knob_) {
    throw bad_input(fmt::format("--gpus {}: neither a number nor a knob", printable(number_or_knob)),
                    did_you_mean(number_or_knob, names));
  }
  const Knob& knob = space.knobs()[*knob_];
  const bool whole = knob.kind == KnobKind::kInteger
                         ? knob.low >= 1
                         : std::all_of(knob.choices.begin(), knob.choices.end(), [](const Value& value) {
                             return std::holds_alternative<std::int64_t>(value) && std::get<std::int64_t>(value) >= 1;
                           });
  if (knob.kind == KnobKind::kReal || !whole) {
    throw bad_input(
        fmt::format("--gpus {}: the knob has values that are not numbers of devices", printable(number_or_knob)),
        "name a knob of whole numbers above 0");
  }
}

double DeviceCount::operator()(const Config& config) const {
  if (!knob_) return number_;
  const auto* value = std::get_if<std::int64_t>(&config.values.at(*knob_));
  return value != nullptr ? static_cast<double>(*value) : 1;
}

}  // namespace lockstep::tune
