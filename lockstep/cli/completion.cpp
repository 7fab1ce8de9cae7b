// `lockstep completion bash|zsh|fish`: a script made from the app itself, so it never goes stale.
#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {
namespace {

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
  std::vector<const CLI::App*> verbs;
  for (const CLI::App* verb :
       app.get_subcommands([](const CLI::App* candidate) { return !candidate->get_group().empty(); })) {
    verbs.push_back(verb);
  }
  return verbs;
}

std::string bash_script(const CLI::App& app) {
  std::vector<std::string> names;
  std::string cases;
  for (const CLI::App* verb : verbs_of(app)) {
    names.push_back(verb->get_name());
    cases += fmt::format("    {}) words='{}' ;;\n", verb->get_name(), join(flags_of(*verb), " "));
  }
  return fmt::format(
      "_lockstep() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} words='{}'\n"
      "  [ \"$COMP_CWORD\" -gt 1 ] && case ${{COMP_WORDS[1]}} in\n{}  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\") $(compgen -f -- \"$current\"))\n"
      "}}\ncomplete -o filenames -F _lockstep lockstep\n",
      join(names, " ") + " --help --version", cases);
}

std::string fish_script(const CLI::App& app) {
  std::string text;
  for (const CLI::App* verb : verbs_of(app)) {
    text += fmt::format("complete -c lockstep -n __fish_use_subcommand -a {} -d '{}'\n", verb->get_name(),
                        verb->get_description());
    for (const std::string& flag : flags_of(*verb)) {
      text += fmt::format("complete -c lockstep -n '__fish_seen_subcommand_from {}' -l {}\n", verb->get_name(),
                          flag.substr(2));
    }
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app, Outcome&) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("completion", "Prints a completion script for your shell");
  verb->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  set_examples(*verb, "  source <(lockstep completion bash)\n  lockstep completion fish | source");
  verb->callback([shell, &app] {
    if (*shell == "fish") {
      fmt::print("{}", fish_script(app));
      return;
    }
    if (*shell == "zsh") fmt::print("autoload -U +X bashcompinit && bashcompinit\n");
    fmt::print("{}", bash_script(app));
  });
}

}  // namespace lockstep::cli
