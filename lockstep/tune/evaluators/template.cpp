#include "lockstep/tune/evaluators/template.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::tune {
namespace {

constexpr int kLiteral = -1, kTrial = -2, kBudget = -3;

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-'; }
bool is_name(std::string_view text) {
  return !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '_') &&
         std::all_of(text.begin(), text.end(), is_name_char);
}

bool looks_like_variable(const std::string& name) {
  return std::isupper(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isupper(c) || std::isdigit(c) || c == '_'; });
}

std::string variable_of(const std::string& knob) {
  std::string name = "LOCKSTEP_KNOB_";
  for (const char c : knob) {
    const auto byte = static_cast<unsigned char>(c);
    name.push_back(std::isalnum(byte) ? static_cast<char>(std::toupper(byte)) : '_');
  }
  return name;
}

}  // namespace

CommandTemplate::CommandTemplate(const std::string& command, Space space)
    : space_(std::move(space)),
      command_(split_command(command)),
      in_arguments_(space_.size(), false),
      in_environment_(space_.size(), false) {
  for (const std::string& argument : command_.argv) arguments_.push_back(parse_argument(argument));
  for (std::size_t i = 0; i < space_.size(); ++i) {
    const Knob& knob = space_.knobs()[i];
    in_environment_[i] =
        knob.target == "env" || (knob.target.empty() && !in_arguments_[i] && looks_like_variable(knob.name));
  }
}

int CommandTemplate::find_placeholder(const std::string& name) {
  if (const auto knob = space_.find(name)) {
    in_arguments_[*knob] = true;
    return static_cast<int>(*knob);
  }
  if (name == "trial") return kTrial;
  if (name == "budget_seconds") return kBudget;
  std::vector<std::string> names;
  for (const Knob& knob : space_.knobs()) names.push_back(knob.name);
  names.insert(names.end(), {"trial", "budget_seconds"});
  throw bad_input(fmt::format("--command: {{{}}} is not a knob of the space", printable(name)),
                  fmt::format("{} (write {{{{{}}}}} for the text itself)", did_you_mean(name, names), printable(name)));
}

CommandTemplate::Argument CommandTemplate::parse_argument(const std::string& text) {
  Argument pieces{{"", kLiteral}};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool doubled = text.compare(i, 2, "{{") == 0;
    const std::size_t begin = i + (doubled ? 2 : 1);
    const std::size_t end = text[i] == '{' ? text.find('}', begin) : std::string::npos;
    const std::string name = end == std::string::npos ? "" : text.substr(begin, end - begin);
    if (!is_name(name) || (doubled && text.compare(end, 2, "}}") != 0)) {
      pieces.back().text.push_back(text[i]);
    } else if (doubled) {
      pieces.back().text += fmt::format("{{{}}}", name);
      i = end + 1;
    } else {
      pieces.push_back({name, find_placeholder(name)});
      pieces.push_back({"", kLiteral});
      i = end;
    }
  }
  if (pieces.size() == 1) return pieces;
  std::erase_if(pieces, [](const Piece& piece) { return piece.placeholder == kLiteral && piece.text.empty(); });
  return pieces;
}

bool CommandTemplate::is_dropped(const Argument& argument, const Config& config) const {
  bool any = false;
  for (const Piece& piece : argument) {
    if (piece.placeholder == kLiteral) continue;
    any = true;
    if (piece.placeholder < 0 || is_active(config.values[static_cast<std::size_t>(piece.placeholder)])) return false;
  }
  return any;
}

std::string CommandTemplate::fill_argument(const Argument& argument, const Config& config, std::int64_t trial,
                                           double budget) const {
  std::string text;
  for (const Piece& piece : argument) {
    switch (piece.placeholder) {
      case kLiteral:
        text += piece.text;
        break;
      case kTrial:
        text += std::to_string(trial);
        break;
      case kBudget:
        text += fmt::format("{:.6g}", budget);
        break;
      default:
        text += to_text(config.values[static_cast<std::size_t>(piece.placeholder)]);
    }
  }
  return text;
}

CommandTemplate::Filled CommandTemplate::fill(const Config& config, std::int64_t trial, double budget_seconds) const {
  Filled filled;
  bool flag_alone = false;  // the argument before is `--flag`, to be followed by its value
  for (const Argument& argument : arguments_) {
    if (is_dropped(argument, config)) {
      if (flag_alone && argument.size() == 1) filled.argv.pop_back();
      flag_alone = false;
      continue;
    }
    filled.argv.push_back(fill_argument(argument, config, trial, budget_seconds));
    const std::string& text = filled.argv.back();
    flag_alone = argument.size() == 1 && argument[0].placeholder == kLiteral && text.size() > 1 &&
                 text.starts_with('-') && text.find('=') == std::string::npos;
  }
  filled.environment = command_.environment;
  for (std::size_t i = 0; i < space_.size(); ++i) {
    std::vector<std::string> names{variable_of(space_.knobs()[i].name)};
    if (in_environment_[i]) names.push_back(space_.knobs()[i].name);
    for (const std::string& name : names) {
      // `auto` leaves a variable to the program; NCCL would take the word for an algorithm it does not have.
      const std::string value = to_text(config.values[i]);
      const bool is_left = name == space_.knobs()[i].name && value == "auto";
      if (is_active(config.values[i]) && !is_left) {
        filled.environment[name] = value;
      } else {
        filled.unset.push_back(name);
      }
    }
  }
  filled.environment["LOCKSTEP_TRIAL"] = std::to_string(trial);
  filled.environment["LOCKSTEP_BUDGET_SECONDS"] = fmt::format("{:.6g}", budget_seconds);
  return filled;
}

std::string CommandTemplate::place_of(std::size_t knob) const {
  if (in_arguments_[knob] && in_environment_[knob]) return "argument and environment";
  if (in_arguments_[knob]) return "argument";
  if (in_environment_[knob]) return "environment";
  return fmt::format("only {}", variable_of(space_.knobs()[knob].name));
}

std::vector<std::string> CommandTemplate::hidden_knobs() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < space_.size(); ++i)
    if (!in_arguments_[i] && !in_environment_[i]) names.push_back(space_.knobs()[i].name);
  return names;
}

}  // namespace lockstep::tune
