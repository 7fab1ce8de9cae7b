// `lockstep completion bash|zsh|fish`: a script made from the app itself, so it never goes stale. Verbs, flags and the
// values of flags that name their values (CLI::IsMember) come from CLI11; a positional `job` completes job files.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {
namespace {

struct Flag {
  std::string name;  // with its dashes
  bool takes_value = false;
  std::vector<std::string> values;  // the only ones it takes; empty: any
};

struct Verb {
  std::string name, description;
  std::vector<Flag> flags;
  std::vector<std::string> words;  // subcommands, and the values of positionals that have a list of them
  bool reads_job = false;
};

// CLI11 keeps the list of CLI::IsMember only as text, behind the type: TEXT:{bash,zsh,fish}.
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find(":{"), end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  return split(type.substr(begin + 2, end - begin - 2), ',');
}

// Of two spellings, --max-restarts and --max_restarts, one is enough to offer.
bool second_spelling(const std::string& name, const std::vector<std::string>& all) {
  std::string dashed = name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return dashed != name && std::find(all.begin(), all.end(), dashed) != all.end();
}

void add_options_of(const CLI::App& app, Verb& verb) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden from --help too
    const std::vector<std::string> values = values_of(*option);
    if (option->get_positional()) {
      if (option->get_name(true) == "job") verb.reads_job = true;
      verb.words.insert(verb.words.end(), values.begin(), values.end());
    }
    for (const std::string& name : option->get_lnames()) {
      if (second_spelling(name, option->get_lnames())) continue;
      verb.flags.push_back({"--" + name, option->get_items_expected_max() > 0, values});
    }
  }
}

std::vector<const CLI::App*> shown_subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* candidate) { return !candidate->get_group().empty(); });
}

std::vector<Verb> verbs_of(const CLI::App& app) {
  std::vector<Verb> verbs;
  for (const CLI::App* found : shown_subcommands(app)) {
    Verb verb{found->get_name(), found->get_description(), {}, {}};
    add_options_of(*found, verb);
    for (const CLI::App* below : shown_subcommands(*found)) {
      verb.words.push_back(below->get_name());
      add_options_of(*below, verb);
    }
    const auto by_name = [](const Flag& a, const Flag& b) { return a.name < b.name; };
    const auto same_name = [](const Flag& a, const Flag& b) { return a.name == b.name; };
    std::stable_sort(verb.flags.begin(), verb.flags.end(), by_name);
    verb.flags.erase(std::unique(verb.flags.begin(), verb.flags.end(), same_name), verb.flags.end());
    verbs.push_back(std::move(verb));
  }
  return verbs;
}

std::string names_of(const std::vector<Flag>& flags) {
  std::vector<std::string> names(flags.size());
  std::transform(flags.begin(), flags.end(), names.begin(), [](const Flag& flag) { return flag.name; });
  return join(names, " ");
}

// A word of a shell script that stands for exactly this text.
std::string quoted(std::string_view text, std::string_view quote) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += quote;
    } else {
      result += c;
    }
  }
  return result + "'";
}

std::string posix_quoted(std::string_view text) { return quoted(text, "'\\''"); }

// What bash and zsh share: for a verb its flags and words; for a verb and the flag before, what that flag takes.
struct Cases {
  std::string verbs, values;
};

Cases shell_cases(const std::vector<Verb>& verbs) {
  Cases cases;
  for (const Verb& verb : verbs) {
    cases.verbs += fmt::format("    {}) flags='{}' words='{}' job={} ;;\n", verb.name, names_of(verb.flags),
                               join(verb.words, " "), verb.reads_job ? 1 : 0);
    for (const Flag& flag : verb.flags) {
      if (!flag.takes_value) continue;
      cases.values += flag.values.empty() ? fmt::format("    '{} {}') kind=file ;;\n", verb.name, flag.name)
                                          : fmt::format("    '{} {}') kind=list values='{}' ;;\n", verb.name, flag.name,
                                                        join(flag.values, " "));
    }
  }
  return cases;
}

constexpr std::string_view kBashScript = R"(# bash completion for lockstep
_lockstep() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}}
  local flags= words= job=0 kind= values= i
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W '{0} --help --version' -- "$current")
    return
  fi
  for ((i = 2; i < COMP_CWORD; i++)); do
    if [ "${{COMP_WORDS[i]}}" = -- ]; then  # a program of the user's own and its arguments
      [ "$i" -eq $((COMP_CWORD - 1)) ] && mapfile -t COMPREPLY < <(compgen -c -- "$current")
      mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -f -- "$current")
      return
    fi
  done
  # Bash makes words of its own of --flag=value: the flag, the sign and the value.
  [ "$current" = = ] && current=
  [ "$before" = = ] && before=${{COMP_WORDS[COMP_CWORD-2]}}
  case $verb in
{1}  esac
  case "$verb $before" in
{2}  esac
  case $current in
    -*) mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current"); return ;;
  esac
  if [ "$kind" = list ]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
  elif [ "$kind" = file ]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  elif [ -n "$words" ] && [ "$COMP_CWORD" -eq 2 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  elif [ "$job" = 1 ]; then
    mapfile -t COMPREPLY < <(compgen -f -X '!*.y*ml' -- "$current"; compgen -d -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}}
complete -o filenames -F _lockstep lockstep
)";

std::string bash_script(const std::vector<Verb>& verbs) {
  std::vector<std::string> names(verbs.size());
  std::transform(verbs.begin(), verbs.end(), names.begin(), [](const Verb& verb) { return verb.name; });
  const Cases cases = shell_cases(verbs);
  return fmt::format(kBashScript, join(names, " "), cases.verbs, cases.values);
}

constexpr std::string_view kZshScript = R"(#compdef lockstep
_lockstep() {{
  local before=$words[CURRENT-1] verb=$words[2] current=$words[CURRENT]
  local -a names line
  names=({0})
  line=($words)
  if (( CURRENT == 2 )); then
    _describe verb names
    return
  fi
  local stop=${{line[(i)--]}}
  if (( stop < CURRENT )); then  # a program of the user's own and its arguments
    if (( stop == CURRENT - 1 )); then _command_names -e; else _files; fi
    return
  fi
  () {{
    local flags= words= job=0 kind= values=
    case $verb in
{1}    esac
    case "$verb $before" in
{2}    esac
    if [[ $current == -* ]]; then
      compadd -- ${{=flags}}
    elif [[ $kind == list ]]; then
      compadd -- ${{=values}}
    elif [[ $kind == file ]]; then
      _files
    elif [[ -n $words ]] && (( CURRENT == 3 )); then
      compadd -- ${{=words}}
    elif (( job )); then
      _files -g '*.y(a|)ml'
    else
      _files
    fi
  }}
}}
# Found in a folder of $fpath it is the function itself; read by `source` it registers one.
if [[ $funcstack[1] == _lockstep ]]; then _lockstep; else compdef _lockstep lockstep; fi
)";

std::string zsh_script(const std::vector<Verb>& verbs) {
  std::string described;
  for (const Verb& verb : verbs) described += " " + posix_quoted(verb.name + ":" + verb.description);
  const Cases cases = shell_cases(verbs);
  return fmt::format(kZshScript, described, cases.verbs, cases.values);
}

std::string fish_script(const std::vector<Verb>& verbs) {
  std::string text = "# fish completion for lockstep\ncomplete -c lockstep -n __fish_use_subcommand -f\n";
  for (const Verb& verb : verbs) {
    text += fmt::format("complete -c lockstep -n __fish_use_subcommand -a {} -d {}\n", verb.name,
                        quoted(verb.description, "\\'"));
    const std::string here = fmt::format("complete -c lockstep -n '__fish_seen_subcommand_from {}'", verb.name);
    if (verb.reads_job) text += here + " -k -a '(__fish_complete_suffix .yaml)'\n";
    if (!verb.words.empty()) text += fmt::format("{} -f -a '{}'\n", here, join(verb.words, " "));
    for (const Flag& flag : verb.flags) {
      text += fmt::format("{} -l {}", here, flag.name.substr(2));
      if (!flag.values.empty()) {
        text += fmt::format(" -x -a '{}'", join(flag.values, " "));
      } else if (flag.takes_value) {
        text += " -r";
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app, Outcome&) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("completion", "Prints a completion script for your shell");
  verb->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  set_examples(*verb,
               "  source <(lockstep completion bash)      (also zsh)\n"
               "  lockstep completion fish | source");
  verb->callback([shell, &app] {
    const std::vector<Verb> verbs = verbs_of(app);
    fmt::print("{}", *shell == "fish" ? fish_script(verbs) : *shell == "zsh" ? zsh_script(verbs) : bash_script(verbs));
  });
}

}  // namespace lockstep::cli
