#include "lockstep/serve/api.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/serve/front.h"
#include "lockstep/serve/gzip.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;
using telemetry::Event;
using telemetry::Level;
using telemetry::MetricBatch;
using telemetry::Record;

constexpr const char* kHostile = "</script><script>alert(1)</script>\"'`\x1b[31m";

class ApiTest : public ::testing::Test {
 protected:
  ApiTest() : stores_(home_.path()), store_(telemetry::make_json_lines_run_store(home_.path())) {
    write(telemetry::describe_this_process(
        {.id = "run", .name = kHostile, .world = 2, .backend = "tcp", .job_yaml = "a: b"}));
    write(telemetry::PlanRecord{
        {{"model", {{"name", "gpt"}}},
         {"alternatives", {1, 2, 3}},
         {"best",
          {{"layout", {{"dp", 2}, {"tp", 1}, {"zero", 1}}},
           {"memory_gib", {{"total", 2.0}}},
           {"prediction",
            {{"tokens_per_second", 900.0},
             {"intervals", {{"tokens_per_second", {{"low", 800.0}, {"expected", 900.0}, {"high", 1000.0}}}}}}}}}}});
    for (int step = 1; step <= 100; ++step) {
      write(MetricBatch{
          0,
          step,
          1000.0 + step,
          {{"loss", step == 50 ? NAN : 100.0 / step}, {"tokens_per_second", 1000.0}, {"step_seconds", 0.1}}});
      write(MetricBatch{1, step, 1000.0 + step, {{"step_seconds", 0.2}}});
    }
    write(Event{1100, Level::kWarning, "alert", 0, 99, kHostile, {{"rule", "mfu"}, {"state", "firing"}}});
  }
  void write(Record record) { store_->write("run", std::vector<Record>{std::move(record)}); }

  Response ask(const std::string& target, const std::string& method = "GET", const std::string& body = {}) {
    Request request;
    request.method = method;
    request.target = *parse_target(target);
    request.body = body;
    request.headers["content-type"] = "application/json";
    return api_.answer(request, stores_);
  }
  json get(const std::string& target) {
    const Response response = ask(target);
    EXPECT_EQ(response.status, 200) << *response.body;
    return json::parse(*response.body);
  }

  TemporaryFolder home_;
  Stores stores_;
  std::unique_ptr<telemetry::RunStore> store_;
  Api api_;
};

TEST_F(ApiTest, lists_runs_with_predicted_beside_measured) {
  const json runs = get("/api/v1/runs")["runs"];
  ASSERT_EQ(runs.size(), 1u);
  const json& run = runs[0];
  EXPECT_EQ(run["id"], "run");
  EXPECT_EQ(run["name"], kHostile);
  EXPECT_EQ(run["status"], "running");
  EXPECT_EQ(run["ended_at"], nullptr);
  EXPECT_EQ(run["model"], "gpt");
  EXPECT_EQ(run["layout"], "dp=2,zero=1");
  EXPECT_EQ(run["steps"], 100);
  EXPECT_EQ(run["loss"], 1.0);
  EXPECT_EQ(run["tokens_per_second"], 1000.0);
  EXPECT_EQ(run["predicted_per_second"], 900.0);
  EXPECT_EQ(run["mfu"], nullptr);
  EXPECT_EQ(run["alerts"], 1);
}

TEST_F(ApiTest, filters_runs) {
  EXPECT_EQ(get("/api/v1/runs?status=running")["runs"].size(), 1u);
  EXPECT_EQ(get("/api/v1/runs?status=done")["runs"].size(), 0u);
  EXPECT_EQ(get("/api/v1/runs?q=GPT")["runs"].size(), 1u);
  EXPECT_EQ(get("/api/v1/runs?q=llama")["runs"].size(), 0u);
  EXPECT_EQ(get("/api/v1/runs?tag=x")["runs"].size(), 0u);
  EXPECT_EQ(ask("/api/v1/runs?limit=0").status, 400);
  EXPECT_EQ(ask("/api/v1/runs?limit=many").status, 400);
}

TEST_F(ApiTest, tells_a_run_whole) {
  const json answer = get("/api/v1/runs/run");
  EXPECT_EQ(answer["run"]["job_yaml"], "a: b");
  EXPECT_EQ(answer["metrics"], (json{"loss", "step_seconds", "tokens_per_second"}));
  EXPECT_EQ(answer["ranks"], (json{0, 1}));
  EXPECT_EQ(answer["predicted"]["tokens_per_second"], (json{{"low", 800.0}, {"expected", 900.0}, {"high", 1000.0}}));
  EXPECT_EQ(answer["predicted"]["mfu"], nullptr);
  EXPECT_EQ(answer["predicted"]["memory_bytes"]["expected"], 2147483648.0);
  EXPECT_FALSE(answer["plan"].contains("alternatives"));
}

TEST_F(ApiTest, ids_are_whole_and_no_paths) {
  for (const char* id : {"ru", "last", "run2", "runs.db"}) {
    EXPECT_EQ(ask(std::string("/api/v1/runs/") + id).status, 404) << id;
    EXPECT_EQ(ask(std::string("/api/v1/runs/") + id + "/series").status, 404) << id;
  }
  EXPECT_EQ(ask("/api/v1/runs/run/nothing").status, 404);
  EXPECT_EQ(ask("/api/v2/runs").status, 404);
  EXPECT_EQ(ask("/api/v1/runs", "POST").status, 405);
}

TEST_F(ApiTest, gives_a_curve_in_columns_with_its_extremes) {
  const json curve = get("/api/v1/runs/run/series?metric=loss&points=10");
  EXPECT_EQ(curve["steps"].size(), 10u);
  EXPECT_EQ(curve["steps"][0], 1);
  EXPECT_EQ(curve["max"][0], 100.0);
  EXPECT_EQ(curve["min"][0], 10.0);
  EXPECT_EQ(curve["last_step"], 100);
  const json part = get("/api/v1/runs/run/series?metric=loss&from=49&to=51");
  EXPECT_EQ(part["steps"], (json{49, 50, 51}));
  EXPECT_EQ(part["mean"][1], nullptr);  // NaN
  EXPECT_EQ(get("/api/v1/runs/run/series?metric=none")["steps"].size(), 0u);
  EXPECT_EQ(get("/api/v1/runs/run/series?metric=none")["last_step"], -1);
  EXPECT_EQ(get("/api/v1/runs/run/series?metric=step_seconds&rank=1&points=1")["mean"][0], 0.2);
  EXPECT_EQ(ask("/api/v1/runs/run/series?from=-1").status, 400);
}

TEST_F(ApiTest, gives_a_heat_map_of_all_ranks) {
  const json map = get("/api/v1/runs/run/heatmap?metric=step_seconds&columns=4");
  EXPECT_EQ(map["ranks"], (json{0, 1}));
  EXPECT_EQ(map["steps"], (json{1, 26, 51, 76}));
  ASSERT_EQ(map["values"].size(), 2u);
  EXPECT_NEAR(map["values"][0][3].get<double>(), 0.1, 1e-9);
  EXPECT_NEAR(map["values"][1][0].get<double>(), 0.2, 1e-9);
  const json gap = get("/api/v1/runs/run/heatmap?metric=loss&from=95&to=200&columns=3");
  EXPECT_EQ(gap["steps"], (json{95, 97, 99}));
}

TEST_F(ApiTest, gives_events_and_hostile_text_as_data) {
  const Response response = ask("/api/v1/runs/run/events");
  EXPECT_EQ(response.content_type, "application/json");
  const json events = json::parse(*response.body)["events"];
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["message"], kHostile);
  EXPECT_EQ(response.body->find('\x1b'), std::string::npos);  // escaped
  EXPECT_EQ(get("/api/v1/runs/run/events?level=error")["events"].size(), 0u);
  EXPECT_EQ(get("/api/v1/runs/run/events?after=1100")["events"].size(), 0u);
  EXPECT_EQ(ask("/api/v1/runs/run/events?level=loud").status, 400);
}

TEST_F(ApiTest, keeps_tags) {
  EXPECT_EQ(ask("/api/v1/runs/run/tags", "POST", R"({"tags":["b","a","b"]})").status, 200);
  EXPECT_EQ(get("/api/v1/runs")["runs"][0]["tags"], (json{"a", "b"}));
  EXPECT_EQ(get("/api/v1/runs?tag=a")["runs"].size(), 1u);
  EXPECT_EQ(ask("/api/v1/runs/run/tags", "POST", R"({"tags":[]})").status, 200);
  EXPECT_EQ(get("/api/v1/runs")["runs"][0]["tags"], json::array());
  for (const char* wrong : {"", "{", "[]", "{}", R"({"tags":"a"})", R"({"tags":[1]})", R"({"tags":[""]})",
                            R"({"tags":["a\nb"]})", R"({"tags":["a"],"more":1})"}) {
    EXPECT_EQ(ask("/api/v1/runs/run/tags", "POST", wrong).status, 400) << wrong;
  }
  EXPECT_EQ(ask("/api/v1/runs/run/tags").status, 405);
  EXPECT_EQ(ask("/api/v1/runs/other/tags", "POST", R"({"tags":[]})").status, 404);
}

TEST_F(ApiTest, passes_on_what_reports_say) {
  EXPECT_EQ(get("/api/v1/runs/run/waterfall")["schema"], "lockstep.api.waterfall/1");
  EXPECT_EQ(get("/api/v1/runs/run/goodput")["schema"], "lockstep.api.goodput/1");
  EXPECT_FALSE(get("/api/v1/runs/run/incidents").empty());
  EXPECT_FALSE(get("/api/v1/runs/run/memory").empty());
  EXPECT_EQ(get("/api/v1/runs/run/diagnosis")["schema"], "lockstep.diagnosis/1");
}

TEST_F(ApiTest, an_empty_home_is_no_error) {
  TemporaryFolder empty;
  Stores nothing(empty.path() / "not-there");
  Request request;
  for (const char* target : {"/api/v1/runs", "/api/v1/studies"}) {
    request.target = *parse_target(target);
    EXPECT_EQ(api_.answer(request, nothing).status, 200) << target;
  }
}

TEST(Front, knows_streams_from_questions) {
  Request request;
  request.target = *parse_target("/api/v1/runs/run/stream");
  EXPECT_EQ(Front::topic_of(request), "run");
  request.target = *parse_target("/api/v1/stream");
  EXPECT_EQ(Front::topic_of(request), "");
  for (const char* other :
       {"/api/v1/runs/stream", "/api/v1/runs/run/series", "/stream", "/api/v1/studies/run/stream"}) {
    request.target = *parse_target(other);
    EXPECT_EQ(Front::topic_of(request), std::nullopt) << other;
  }
}

TEST(Front, only_the_same_questions_share_an_answer) {
  Request one, other;
  one.target = *parse_target("/api/v1/runs?q=1&tag=2");
  other.target = *parse_target("/api/v1/runs?tag=2&q=1");
  EXPECT_EQ(Front::key_of(one), Front::key_of(other));
  other.target = *parse_target("/api/v1/runs?q=1%0Atag=2");
  EXPECT_NE(Front::key_of(one), Front::key_of(other));
  other.target = one.target;
  other.headers["accept-encoding"] = "gzip";
  EXPECT_NE(Front::key_of(one), Front::key_of(other));
  one.method = "POST";
  EXPECT_EQ(Front::key_of(one), "");
}

TEST(Front, answers_carry_what_keeps_pages_safe) {
  const std::string head = head_of(answer_error(404, "no"), 11, true, 5);
  for (const char* line : {"HTTP/1.1 404 Not Found\r\n", "Content-Length: 5\r\n", "X-Content-Type-Options: nosniff\r\n",
                           "frame-ancestors 'none'", "Referrer-Policy: no-referrer\r\n", "script-src 'self';"}) {
    EXPECT_NE(head.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(head.find("unsafe-inline"), std::string::npos);
  EXPECT_EQ(head.find("Access-Control"), std::string::npos);
}

TEST(Gzip, makes_it_smaller_where_there_is_zlib) {
  const std::string text(10000, 'x');
  const auto packed = gzipped(text, 4);
  EXPECT_LT(packed.value_or("").size(), 200u);
}

}  // namespace
}  // namespace lockstep::serve
