#include "lockstep/elastic/rank_request.h"

#include "lockstep/base/error.h"
#include "lockstep/plan/run.h"

namespace lockstep::elastic {
namespace {

nlohmann::json to_json(const RankOptions& options) {
  return {{"resume", to_string(options.resume)},
          {"accept_changes", options.accept_changes},
          {"report_steps", options.report_steps},
          {"general_step", options.general_step},
          {"export_folder", options.export_folder},
          {"quick", options.quick},
          {"cuda", options.cuda},
          {"fused", options.fused}};
}

RankOptions options_from_json(const nlohmann::json& value) {
  RankOptions options;
  options.resume = value_named<Resume>(value.at("resume").get<std::string>()).value_or(Resume::kNever);
  value.at("accept_changes").get_to(options.accept_changes);
  value.at("report_steps").get_to(options.report_steps);
  value.at("general_step").get_to(options.general_step);
  value.at("export_folder").get_to(options.export_folder);
  value.at("quick").get_to(options.quick);
  value.at("cuda").get_to(options.cuda);
  value.at("fused").get_to(options.fused);
  return options;
}

}  // namespace

RankRequest with_world(RankRequest request, int ranks) {
  request.ranks.world = ranks;
  for (const plan::Plan& plan : request.resized) {
    if (plan.best.layout.world() != ranks) continue;
    request.plan = plan;
    request.job.cluster = plan.cluster;
    plan::follow(request.job, plan.best);
    break;
  }
  return request;
}

nlohmann::json to_json(const RankRequest& request) {
  const RankEnvironment& ranks = request.ranks;
  nlohmann::json resized = nlohmann::json::array();
  for (const plan::Plan& plan : request.resized) resized.push_back(plan::to_json(plan));
  return {{"verb", request.verb},
          {"job", spec::to_yaml(request.job)},
          {"plan", request.plan ? plan::to_json(*request.plan) : nlohmann::json()},
          {"resized", std::move(resized)},
          {"ranks",
           {{"rank", ranks.rank},
            {"world", ranks.world},
            {"local_rank", ranks.local_rank},
            {"local_world", ranks.local_world},
            {"master_host", ranks.master_host},
            {"master_port", ranks.master_port},
            {"one_node", ranks.one_node},
            {"interface", ranks.interface},
            {"source", ranks.source}}},
          {"backend", request.backend},
          {"run_id", request.run_id},
          {"home", request.home},
          {"run_directory", request.run_directory},
          {"checkpoint_directory", request.checkpoint_directory},
          {"resume_from", request.resume_from},
          {"owns_run", request.owns_run},
          {"threads", request.threads},
          {"options", to_json(request.options)}};
}

RankRequest rank_request_from_json(const nlohmann::json& value) {
  RankRequest request;
  try {
    const nlohmann::json& ranks = value.at("ranks");
    ranks.at("rank").get_to(request.ranks.rank);
    ranks.at("world").get_to(request.ranks.world);
    ranks.at("local_rank").get_to(request.ranks.local_rank);
    ranks.at("local_world").get_to(request.ranks.local_world);
    ranks.at("master_host").get_to(request.ranks.master_host);
    ranks.at("master_port").get_to(request.ranks.master_port);
    ranks.at("one_node").get_to(request.ranks.one_node);
    ranks.at("interface").get_to(request.ranks.interface);
    ranks.at("source").get_to(request.ranks.source);
    value.at("verb").get_to(request.verb);
    request.job = spec::parse_job(value.at("job").get<std::string>(), "job");
    value.at("backend").get_to(request.backend);
    value.at("run_id").get_to(request.run_id);
    value.at("home").get_to(request.home);
    value.at("run_directory").get_to(request.run_directory);
    value.at("checkpoint_directory").get_to(request.checkpoint_directory);
    value.at("resume_from").get_to(request.resume_from);
    value.at("owns_run").get_to(request.owns_run);
    value.at("threads").get_to(request.threads);
    if (!value.at("plan").is_null()) request.plan = plan::read_plan(value.at("plan"), "plan");
    for (const nlohmann::json& plan : value.at("resized")) request.resized.push_back(plan::read_plan(plan, "resized"));
    request.options = options_from_json(value.at("options"));
  } catch (const nlohmann::json::exception& error) {
    throw bad_input(std::string("rank request: ") + error.what(), "the executable and the engine must be of one build");
  }
  return request;
}

}  // namespace lockstep::elastic
