// Checkpoints, the loss of a node minute by minute, drills.
#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/report/runbook/facts.h"
#include "lockstep/report/runbook/plots.h"
#include "lockstep/report/runbook/sections.h"

namespace lockstep::report {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// "after 3.1 s"
std::string after(Quotes& q, const char* key) { return "after " + q.seconds(fmt::format("/recovery/{}", key)); }

void add_first_minute(Writer& writer, Rows& rows) {
  Quotes& q = writer.q;
  rows.push_back(
      {"at once", "A node is gone. Every other GPU waits in its next exchange: no step ends any more.", "nothing"});
  rows.push_back(
      {after(q, "detect_seconds"),
       "The other nodes have had no answer from it and say so. Their ranks leave the exchange and keep what they "
       "hold in memory.",
       "nothing"});
  const bool spare = writer.input.launch.spares > 0;
  if (spare) {
    rows.push_back({after(q, "detect_seconds"), "A spare node takes its place and ranks.", "nothing"});
    rows.push_back(
        {after(q, "memory_total_seconds"),
         fmt::format("Its ranks have read back what the lost ones held ({} each, from the copies on the next node), "
                     "and training goes on.",
                     q.bytes("/recovery/copy_bytes")),
         "nothing"});
    rows.push_back({after(q, "memory_step_seconds"),
                    "The first step after the fault is done. At most one step was done again.",
                    "have the node repaired or replaced: there is one spare less"});
    return;
  }
  rows.push_back({after(q, "wait_until_seconds"),
                  fmt::format("The lost node did not come back within {} and no spare is there.",
                              q.seconds("/recovery/wait_seconds")),
                  "nothing"});
  if (!q.has("/recovery/smaller_nodes")) {
    rows.push_back(
        {"then",
         "The layout cannot do with fewer nodes: the run waits for a node, and ends with code 75 if none comes.",
         "bring a node, then resume"});
    return;
  }
  rows.push_back(
      {after(q, "shrink_total_seconds"),
       fmt::format("It goes on with {} nodes ({}). The batch stays the same, so the losses do too; state came from the "
                   "copies in memory ({} for each rank).",
                   q.whole("/recovery/smaller_nodes"), q.layout("/recovery/smaller_layout"),
                   q.bytes("/recovery/copy_bytes")),
       "ask for a replacement"});
  rows.push_back(
      {after(q, "shrink_step_seconds"),
       fmt::format("The first step is done, at about {} of the speed ({} a step). At most one step was done again.",
                   q.percent("/recovery/smaller_share", 0), q.seconds("/recovery/smaller_step_seconds")),
       "watch the speed"});
  rows.push_back(
      {"when a node comes", "It joins as a spare, and the run grows back to its full size by itself.", "nothing"});
}

void add_from_disk(Writer& writer, Rows& rows) {
  Quotes& q = writer.q;
  const RunbookInput& input = writer.input;
  const bool one = input.question.run.nodes == 1;
  if (!survives_in_memory(input)) {
    rows.push_back({"at once",
                    one ? "The only node is gone, and with it everything in memory."
                        : "A node is gone, and with it state that nobody else holds.",
                    "nothing"});
    const bool requeues = input.scheduler == "slurm" && input.launch.requeue;
    rows.push_back({"within minutes",
                    requeues ? "Slurm starts the job again on another node."
                             : "The run has ended; nothing starts it again by itself.",
                    requeues ? "see that a node is free" : "type the command of Resume"});
  }
  rows.push_back(
      {after(q, "disk_total_seconds"),
       fmt::format("The run is started anew and has read its checkpoint of {} back.", q.bytes("/checkpoint/bytes")),
       "nothing"});
  rows.push_back(
      {after(q, "disk_expected_seconds"),
       fmt::format("What was lost is done again: {} on average.", q.seconds("/checkpoint/expected_lost_seconds")),
       "nothing"});
  rows.push_back({after(q, "disk_worst_seconds"),
                  fmt::format("The same at worst: {} of work.", q.seconds("/checkpoint/worst_lost_seconds")),
                  "if it takes longer: the alert checkpoint_overdue came before"});
}

std::string cadence_sentence(Quotes& q) {
  const std::string at = "/checkpoint/";
  std::string text = fmt::format(
      "Every {} (about {} steps) the run saves its state of {}{}. Training stands still for {} while it is copied to "
      "host "
      "memory; it is written in the background within {} more. Going back to a checkpoint costs {} of work on average "
      "and {} "
      "at worst",
      q.seconds(at + "interval_seconds"), q.whole(at + "steps"), q.bytes(at + "bytes"),
      q.number("/job/lora_rank") > 0 ? " (counted as if every weight were trained: with adapters it is less)" : "",
      q.seconds(at + "stall_seconds"), q.seconds(at + "write_seconds"), q.seconds(at + "expected_lost_seconds"),
      q.seconds(at + "worst_lost_seconds"));
  if (q.is_true(at + "by_job")) return text + "; the job's file fixes how often.";
  const std::string bound = q.seconds("/job/max_lost_seconds");
  return text + (q.number(at + "worst_lost_seconds") <= q.number("/job/max_lost_seconds")
                     ? fmt::format(", within the bound of {}.", bound)
                     : fmt::format(", MORE than the bound of {}: storage is too slow for it.", bound));
}

}  // namespace

void add_checkpoints(Writer& writer) {
  Quotes& q = writer.q;
  if (!q.has("/checkpoint/interval_seconds")) return;
  writer.add(Heading{"Checkpoints"});
  std::string text = cadence_sentence(q);
  writer.add(Paragraph{text});
  Pairs pairs;
  pairs.rows.emplace_back("what for", "losing everything in memory at once; stopping and going on; the trained model");
  pairs.rows.emplace_back("cost", fmt::format("{} a day, {} of the time", q.real("/checkpoint/per_day"),
                                              q.percent("/checkpoint/stall_share", 2)));
  pairs.rows.emplace_back("where", fmt::format("{}; the newest {} and the newest that proved sound are kept",
                                               writer.input.job.checkpoint.directory.empty() ? "under the run's folder"
                                                                                             : q.text("/job/directory"),
                                               q.whole("/job/keep")));
  if (survives_in_memory(writer.input)) {
    pairs.rows.emplace_back(
        "and in memory",
        "each rank keeps a copy of its state with a rank of another node, renewed every few steps; only when both "
        "nodes die is the checkpoint read");
  }
  pairs.rows.emplace_back("cadence",
                          q.is_true("/checkpoint/by_job")
                              ? "checkpoint.every=auto lets it follow what saves and failures turn out to take"
                              : "follows what saves and failures turn out to take; this is where it begins");
  writer.add(std::move(pairs));
}

void add_node_loss(Writer& writer) {
  writer.add(Heading{"When a node dies, minute by minute"});
  const RunbookInput& input = writer.input;
  const bool memory = survives_in_memory(input);
  if (memory) {
    Table table{.rows = {{"time", "what happens", "what you do"}}, .bold_column = 0};
    add_first_minute(writer, table.rows);
    const bool shrinks = input.launch.spares > 0 || writer.q.has("/recovery/smaller_nodes");
    if (shrinks) writer.add(Pictures{{node_loss_picture(writer.q, input.launch.spares > 0)}, false});
    writer.add(std::move(table));
    writer.add(Paragraph{.text = "If the node that holds its copies dies with it", .strong = true});
  }
  Table table{.rows = {{"time", "what happens", "what you do"}}, .bold_column = 0};
  add_from_disk(writer, table.rows);
  writer.add(std::move(table));
  writer.add(Paragraph{
      .text = "Times to notice and to restart were measured on small runs and rounded up; copying and reading are "
              "computed from the sizes and the links of the plan. The drills below measure yours.",
      .muted = true});
}

void add_drills(Writer& writer) {
  const std::vector<Drill> drills = drills_of(writer.input);
  if (drills.empty()) return;
  writer.add(Heading{"Failure drills"});
  writer.add(Paragraph{
      "Before the long run, with the real job on the real nodes, for a few steps and into a folder of its own. Each "
      "makes one fault happen on purpose; afterwards lockstep report last shows it with the time that the recovery "
      "took."});
  std::size_t next = 0;
  for (const RunbookCommand& command : writer.commands) {
    if (command.group != CommandGroup::kDrill) continue;
    const Drill& drill = drills.at(next++);
    writer.add(Paragraph{.text = fmt::format("{}: {}", drill.name, drill.expected), .strong = true});
    writer.add(Code{command.text, true});
  }
}

}  // namespace lockstep::report
