#include "lockstep/elastic/rank_request.h"

#include "lockstep/base/error.h"

namespace lockstep::elastic {

nlohmann::json to_json(const RankRequest& request) {
  const RankEnvironment& ranks = request.ranks;
  return {{"verb", request.verb},
          {"job_yaml", request.job_yaml},
          {"plan", request.plan},
          {"ranks",
           {{"rank", ranks.rank},
            {"world", ranks.world},
            {"local_rank", ranks.local_rank},
            {"local_world", ranks.local_world},
            {"master_host", ranks.master_host},
            {"master_port", ranks.master_port},
            {"one_node", ranks.one_node},
            {"source", ranks.source}}},
          {"backend", request.backend},
          {"run_id", request.run_id},
          {"home", request.home},
          {"run_directory", request.run_directory},
          {"checkpoint_directory", request.checkpoint_directory},
          {"resume_from", request.resume_from},
          {"owns_run", request.owns_run},
          {"threads", request.threads},
          {"options", request.options}};
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
    ranks.at("source").get_to(request.ranks.source);
    value.at("verb").get_to(request.verb);
    value.at("job_yaml").get_to(request.job_yaml);
    value.at("backend").get_to(request.backend);
    value.at("run_id").get_to(request.run_id);
    value.at("home").get_to(request.home);
    value.at("run_directory").get_to(request.run_directory);
    value.at("checkpoint_directory").get_to(request.checkpoint_directory);
    value.at("resume_from").get_to(request.resume_from);
    value.at("owns_run").get_to(request.owns_run);
    value.at("threads").get_to(request.threads);
    request.plan = value.at("plan");
    request.options = value.at("options");
  } catch (const nlohmann::json::exception& error) {
    throw bad_input(std::string("rank request: ") + error.what(), "the executable and the engine must be of one build");
  }
  return request;
}

}  // namespace lockstep::elastic
