// What the team types, from the first check to the last checkpoint.
#include <fmt/format.h>

#include "lockstep/report/runbook/facts.h"
#include "lockstep/report/runbook/sections.h"

namespace lockstep::report {
namespace {

void add_group(Writer& writer, CommandGroup group, const std::string& title, const std::string& text) {
  const std::string lines = command_lines(writer.commands, group);
  if (lines.empty()) return;
  writer.add(Paragraph{.text = title, .strong = true});
  if (!text.empty()) writer.add(Paragraph{text});
  writer.add(Code{lines, true});
}

std::string before_launch(Writer& writer) {
  Quotes& q = writer.q;
  std::string text = fmt::format("Have ready: the data ({})", q.text("/job/data"));
  if (!writer.input.job.weights.empty())
    text += fmt::format(", the weights to start from ({})", q.text("/job/weights"));
  text += writer.input.job.checkpoint.directory.empty()
              ? ", and room for checkpoints under the run's folder"
              : fmt::format(", and room for checkpoints ({})", q.text("/job/directory"));
  text += fmt::format(": {} for {} of them and the one being written.", q.bytes("/checkpoint/kept_bytes"),
                      q.whole("/job/keep"));
  if (writer.input.question.run.nodes > 1) {
    text +=
        " All nodes must find data, checkpoints, job file and plan at the same paths, and the same version of "
        "lockstep.";
  }
  return text;
}

std::string name_of(const std::string& scheduler) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"slurm", "Slurm"},       {"kubernetes", "Kubernetes"},
                                                            {"kubeflow", "Kubeflow"}, {"ray", "Ray"},
                                                            {"skypilot", "SkyPilot"}, {"mpi", "MPI"}};
  for (const auto& [name, shown] : kNames) {
    if (scheduler == name) return shown;
  }
  return scheduler;
}

std::string launch_text(Writer& writer) {
  const RunbookInput& input = writer.input;
  Quotes& q = writer.q;
  if (input.scheduler == kHere) return "On the machine itself, in a session that stays (tmux, nohup).";
  std::string text = fmt::format("Through {}: {} nodes of {} GPUs", name_of(input.scheduler), q.whole("/size/nodes"),
                                 q.whole("/size/gpus_per_node"));
  if (input.launch.spares > 0) text += fmt::format(", and {} spare", q.whole("/size/spares"));
  text += ". Look at the submission first.";
  if (input.scheduler == "kubernetes" || input.scheduler == "kubeflow") {
    if (input.launch.image.empty()) text += " IMAGE is your container image with lockstep in it.";
    text += " Paths are those inside of it.";
  }
  if (input.scheduler == "ssh" || input.scheduler == "mpi") text += " The file hosts names the machines, one per line.";
  return text;
}

std::string resume_text(Writer& writer) {
  const RunbookInput& input = writer.input;
  Quotes& q = writer.q;
  std::string text;
  if (has_agents(input)) {
    text = fmt::format("Lost ranks {}are replaced without you, up to {} times. ",
                       input.question.run.nodes > 1 ? "and nodes " : "", q.whole("/job/restarts"));
  }
  if (input.scheduler == "slurm" && input.launch.requeue) {
    text += fmt::format("{} before a time limit the run saves, and Slurm starts it again. ",
                        q.seconds("/job/notice_seconds"));
  }
  return text + "By hand, after anything else; the command is the same for the first start and for every later one:";
}

}  // namespace

void add_commands(Writer& writer) {
  writer.add(Heading{"What to type"});
  writer.add(Paragraph{before_launch(writer)});
  if (!writer.input.job_text.empty()) {
    writer.add(Paragraph{.text = fmt::format("Save this as {} and put in where the data is", writer.input.job_file),
                         .strong = true});
    writer.add(Code{writer.input.job_text, false});
  }
  add_group(writer, CommandGroup::kPlan, "Plan", "");
  add_group(writer, CommandGroup::kCheck, "Health checks",
            "Before the hours are paid for, and after every repair. Anything fatal is named with its fix.");
  add_group(writer, CommandGroup::kLaunch, "Launch", launch_text(writer));
  add_group(writer, CommandGroup::kWatch, "Monitor", "");
  add_group(writer, CommandGroup::kResume, "Resume", resume_text(writer));
  add_group(writer, CommandGroup::kStop, "Stop",
            fmt::format("All ranks stop after the same step and save; after {} they are ended.",
                        writer.q.seconds("/job/stop_seconds")));
  add_group(writer, CommandGroup::kKeep, "At the end", "");
}

}  // namespace lockstep::report
