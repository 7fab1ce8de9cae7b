// From a request to a running rank: rendezvous, shared facts, recorder, verb, and errors turned into messages.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/group_settings.h"
#include "lockstep/comm/join.h"
#include "lockstep/comm/local.h"
#include "lockstep/comm/observed.h"
#include "lockstep/elastic/root_cause.h"
#include "lockstep/elastic/run_record.h"
#include "lockstep/engine/calibrate/calibration.h"
#include "lockstep/engine/chaos.h"
#include "lockstep/engine/control.h"
#include "lockstep/engine/gather_records.h"
#include "lockstep/engine/run_context.h"
#include "lockstep/engine/same_run.h"
#include "lockstep/engine/settle_checkpoints.h"
#include "lockstep/engine/step_records.h"
#include "lockstep/engine/trainer.h"
#include "lockstep/nn/device_thread.h"
#include "lockstep/nn/torch_compat.h"
#include "lockstep/plan/verdict.h"

namespace lockstep::engine {
namespace {

comm::milliseconds timeout_of(const spec::Job& job) {
  return comm::milliseconds(static_cast<std::int64_t>(job.communication.timeout_seconds * 1e3));
}

// Where this rank computes: the GPU of its number on this node. Ranks that are threads share the first one.
torch::Device device_of(const elastic::RankRequest& request) {
  const spec::Job& job = request.job;
  const auto& groups = job.cluster.groups;
  if (std::all_of(groups.begin(), groups.end(), [](const auto& group) { return group.device.is_cpu(); })) {
    return torch::kCPU;
  }
  if (!nn::compat::has_cuda()) {
    throw environment_error(
        fmt::format("the job's cluster {} has GPUs and {}", job.cluster.name,
                    nn::compat::built_with_cuda() ? "libtorch finds none here" : "this build trains on CPUs"),
        "check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or add cluster=1x1xcpu");
  }
  const int index = request.backend == "local" ? 0 : request.ranks.local_rank;
  if (index >= static_cast<int>(torch::cuda::device_count())) {
    throw environment_error(fmt::format("rank {} needs GPU {} and this node has {}", request.ranks.rank, index,
                                        torch::cuda::device_count()),
                            "start fewer ranks here, or run them as threads on one GPU: --backend local");
  }
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

// The part of a process that an agent commands in one generation.
struct Membership {
  int generation = 1;
  Control* control = nullptr;
  std::vector<checkpoint::CheckpointPart>* held = nullptr;
  Chaos* chaos = nullptr;
  Endured endured = {};
};

// The communicator and what must live as long as it.
struct Joined {
  comm::Meeting meeting;
  comm::Communicator world;
};

// Store keys of one generation do not meet those of another.
Joined join_world(const elastic::RankRequest& request, const Membership& membership = {}) {
  const elastic::RankEnvironment& ranks = request.ranks;
  const bool meets = request.backend != "mpi";
  Joined joined;
  if (meets) {
    comm::MeetingOptions how{.is_served = ranks.source == "agent"};  // under a foreign launcher nobody else serves it
    // A rank that is lost on its way here never comes; whoever hears of it first ends the wait of the others.
    if (membership.control != nullptr) {
      how.aborted = [membership] { return membership.control->aborted(membership.generation); };
    }
    joined.meeting = comm::meet(ranks, std::move(how));
  }
  comm::CommOptions options = comm::options_of(ranks, request.backend, meets ? &joined.meeting : nullptr);
  options.groups = comm::choose_group_settings(std::getenv("LOCKSTEP_NCCL_GROUPS"),
                                               request.plan ? request.plan->best.knobs.nccl_groups : "");
  options.store_prefix = fmt::format("generation-{}", membership.generation);
  options.timeout = timeout_of(request.job);
  options.connect_timeout = std::min(options.connect_timeout, options.timeout);
  if (Chaos* const chaos = membership.chaos) {
    joined.world = comm::open_observed_communicator(options, [chaos](comm::OpKind) { chaos->operation_begins(); });
  } else {
    joined.world = comm::open_communicator(options);
  }
  return joined;
}

// What rank 0 finds out before the first step: the lease of the folder and the resume point, or why there is none.
struct Settled {
  std::unique_ptr<checkpoint::Lease> lease;
  std::optional<UserError> error;
};

Settled settle(elastic::RankRequest& request, const Host& host) {
  try {
    return {settle_checkpoints(request, host), std::nullopt};
  } catch (const UserError& error) {
    return {nullptr, error};
  }
}

// Rank 0's run id, folders and resume point hold for everybody, and so does what hinders it.
void share_facts(elastic::RankRequest& request, comm::Communicator& world, const Settled& settled) {
  const nlohmann::json mine = {{"run_id", request.run_id},
                               {"home", request.home},
                               {"run_directory", request.run_directory},
                               {"checkpoint_directory", request.checkpoint_directory},
                               {"resume_from", request.resume_from},
                               {"exit_code", settled.error ? static_cast<int>(settled.error->code()) : 0},
                               {"error", settled.error ? settled.error->what() : ""}};
  const std::string text = mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // Peers wait while the first rank takes the folder and looks for what it resumes from.
  const comm::OpOptions patient = disk_options(request.job, "world: checkpoint folder");
  const nlohmann::json shared = nlohmann::json::parse(broadcast_text(world, text, 0, patient));
  if (const int code = shared.at("exit_code"); code != 0) {
    world.barrier().wait();  // nobody leaves while a peer still reads
    throw UserError(static_cast<ExitCode>(code), shared.at("error").get<std::string>());
  }
  shared.at("run_id").get_to(request.run_id);
  shared.at("home").get_to(request.home);
  shared.at("run_directory").get_to(request.run_directory);
  shared.at("checkpoint_directory").get_to(request.checkpoint_directory);
  shared.at("resume_from").get_to(request.resume_from);
}

// Records that were lost are told where the user reads: a rank's log may be on the same full disk.
void flush_records(RunContext& context) {
  const bool all = context.recorder->flush(10.0);
  const telemetry::RecorderStats stats = context.recorder->stats();
  if (all && stats.dropped == 0) return;
  const std::string text = fmt::format("{} records of {} are not in the run store{}", stats.queued + stats.dropped,
                                       context.rank_name(), stats.last_error.empty() ? "" : ": " + stats.last_error);
  context.host.note("warning: " + text);
  // Where the store can be written again, it says so itself.
  context.recorder->event({.level = telemetry::Level::kWarning,
                           .kind = std::string(telemetry::event_kind::kRecordsLost),
                           .rank = context.rank(),
                           .message = text,
                           .data = {{"dropped", stats.dropped}, {"unwritten", stats.queued}}});
}

// Where every rank is on one host they share the store. Ranks elsewhere write JSON lines into a home of their own (it
// may be the same folder, on a shared disk), which the end of the run brings together.
std::shared_ptr<telemetry::Recorder> open_run_recorder(const RunContext& context, const std::string& own_home) {
  const elastic::RankRequest& request = context.request;
  if (request.home.empty()) return nullptr;
  if (request.ranks.one_node || context.rank() == 0)
    return telemetry::open_recorder(request.home, request.run_id, context.rank());
  return telemetry::open_recorder(own_home, request.run_id, context.rank(), telemetry::RecordAs::kLines);
}

nlohmann::json train(RunContext& context) { return Trainer(context).run(); }

constexpr const char* kCalibrateShapes = "calibrate_shapes";

nlohmann::json calibrate(RunContext& context) {
  CalibrationOptions options;
  options.quick = context.request.options.quick;
  options.threads = context.request.threads;
  options.timeout_seconds = context.job.communication.timeout_seconds;
  options.precisions = {context.job.precision};
  options.backend = context.world.backend_name();
  options.lockstep_version = LOCKSTEP_VERSION;
  if (context.request.options.cuda) {
    options.device = CalibrationDevice::kCuda;
    options.fused_only = context.request.options.fused;
    options.precisions = {spec::Precision::kBf16, spec::Precision::kFp16, spec::Precision::kFp32};
    return {{"exit_code", 0}, {"profile", cost::to_json(measure_profile(context.world, options))}};
  }
  cost::Workload workload;
  workload.model = context.job.model;
  plan::Layout replicas;
  replicas.dp = context.world.size();
  workload.batch = plan::batch_of(context.job, replicas);
  workload.batch.sequence_length = context.job.batch.sequence_length;
  workload.precision = context.job.precision;
  workload.optimizer = context.job.optimizer.kind;
  workload.bucket_mib = context.job.communication.bucket_mib;
  options.workloads = {workload};
  if (context.request.verb == kCalibrateShapes) options.focus = plan::layout_of(context.job).tp;
  return {{"exit_code", 0}, {"profile", cost::to_json(measure_profile(context.world, options))}};
}

void send_error(const Host& host, int rank, const std::string& kind, int exit_code, const std::string& message,
                int suspect = -1) {
  host.send({{"type", "error"},
             {"rank", rank},
             {"kind", kind},
             {"exit_code", exit_code},
             {"message", message},
             {"suspect_rank", suspect}});
}

const char* kind_name(FaultKind kind) { return named<FaultKind::kAborted>(kind, "peer_lost", "timeout", "aborted"); }

// Runs `body` and turns whatever it throws into a message and an exit code.
template <typename Body>
int guarded(const Host& host, int rank, const Body& body) {
  try {
    return body();
  } catch (const UserError& error) {
    send_error(host, rank, "user", static_cast<int>(error.code()), error.what());
    return static_cast<int>(error.code());
  } catch (const Fault& fault) {
    send_error(host, rank, kind_name(fault.kind()), 1, fault.what(), fault.rank());
  } catch (const c10::Error& error) {
    send_error(host, rank, "internal", 1, error.what_without_backtrace());
  } catch (const std::exception& error) {
    send_error(host, rank, "internal", 1, error.what());
  }
  return 1;
}

int run_joined(elastic::RankRequest request, comm::Communicator world, torch::Device device, const Host& host,
               const Membership& membership = {}) {
  const nn::DeviceThread thread(device);
  nn::compat::set_compute_threads(request.threads);
  require_same_run(world, facts_of(request));
  Settled settled = world.rank() == 0 ? settle(request, host) : Settled{};
  std::string own_home = request.home;
  share_facts(request, world, settled);
  if (own_home.empty()) own_home = request.home;
  spec::Job job = request.job;
  plan::Run run;
  if (request.verb == "train") {
    run = resolve_run(job, request.plan, world.size());
    job.batch.micro = run.batch.micro;
    if (job.batch.global == 0) job.batch.accumulation = run.batch.accumulation;
    // A module's run has none of its own: the job says how long its data's windows are.
    if (run.batch.sequence_length > 0) job.batch.sequence_length = run.batch.sequence_length;
  }
  RunContext context{std::move(request), std::move(job), std::move(run), std::move(world), nullptr, host, device};
  context.control = membership.control;
  context.held = membership.held;
  context.chaos = membership.chaos;
  if (context.chaos != nullptr) context.files = &context.chaos->files();
  context.generation = membership.generation;
  context.endured = membership.endured;
  context.lease = std::move(settled.lease);
  context.recorder = open_run_recorder(context, own_home);
  if (context.request.verb == "train" && (context.recorder || context.chaos != nullptr)) {
    context.log = start_log(context);
    if (context.control != nullptr) context.control->watch(context.log);
  }
  const telemetry::CurrentSpanLog logging(context.log.get());
  const bool owner = context.request.owns_run && context.rank() == 0;
  elastic::RunRecord record(owner ? context.recorder : nullptr, context.request, engine_versions());
  nlohmann::json result;
  try {
    const std::string& verb = context.request.verb;
    result = verb == "calibrate" || verb == kCalibrateShapes ? calibrate(context) : train(context);
  } catch (const std::exception& error) {
    record.end(1, error.what(), nullptr);
    throw;
  }
  const bool requeued = result.at("exit_code") == static_cast<int>(ExitCode::kRetry);
  record.end(requeued ? static_cast<int>(ExitCode::kInterrupted) : result.at("exit_code").get<int>(),
             requeued ? "stopped to be started again" : "", result);
  context.world.barrier().wait();  // nobody closes a connection while a peer still needs it
  if (context.recorder && !context.request.ranks.one_node) gather_records(context, own_home);
  if (context.recorder) flush_records(context);
  if (context.rank() == 0) {
    result["type"] = "result";
    host.send(result);
  }
  return result.at("exit_code");
}

int run_threads(const elastic::RankRequest& request, const Host& host) {
  const torch::Device device = device_of(request);
  comm::LocalWorld world(request.ranks.world, timeout_of(request.job), nn::device_queues(device));
  std::atomic<int> exit_code{0};
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(request.ranks.world));
  for (int rank = 0; rank < request.ranks.world; ++rank) {
    threads.emplace_back([&, rank] {
      const int code = guarded(host, rank, [&] {
        elastic::RankRequest mine = request;
        mine.ranks.rank = mine.ranks.local_rank = rank;
        return run_joined(mine, world.communicator(rank), device, host);
      });
      // The first failure is the cause; peers that lost it follow with 1.
      int none = 0;
      if (code != 0) exit_code.compare_exchange_strong(none, code);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return exit_code;
}

// One process over the generations of a run: it joins when the agent says so, and when peers fail it comes back.
int run_generations(const elastic::RankRequest& request, const Host& host) {
  Control control(host);
  std::vector<checkpoint::CheckpointPart> held;
  std::unique_ptr<Chaos> chaos;
  while (const auto join = control.next_join()) {
    elastic::RankRequest mine = elastic::with_world(request, join->world);
    mine.ranks.rank = join->rank;
    mine.ranks.local_rank = join->local_rank;
    mine.ranks.local_world = join->local_world;
    mine.ranks.master_host = join->master_host;
    mine.ranks.master_port = join->master_port;
    mine.ranks.one_node = join->one_node;
    mine.ranks.towards = join->towards;
    if (join->generation > 1) mine.options.resume = elastic::Resume::kAuto;
    if (!join->chaos.empty() && !chaos) chaos = std::make_unique<Chaos>(host);
    if (chaos) chaos->enter(join->chaos, join->generation);
    try {
      if (chaos) chaos->joining();
      const Membership membership{join->generation, &control, &held, chaos.get(), join->endured};
      Joined joined = join_world(mine, membership);
      control.entered(join->generation, joined.world);
      return run_joined(mine, joined.world, device_of(mine), host, membership);
    } catch (const Fault& fault) {
      control.left(join->generation, fault);
    }
  }
  return 1;  // the agent gave the run up; it knows why
}

}  // namespace

plan::Run resolve_run(const spec::Job& job, const std::optional<plan::Plan>& plan, int ranks) {
  plan::Layout replicas;
  replicas.dp = ranks;
  replicas.precision = job.precision;
  plan::Run run = plan ? plan::run_of(job, plan->best) : plan::run_of(job, replicas);
  plan::require_runnable(run);
  if (run.layout.world() != ranks) {
    throw bad_input(fmt::format("layout {} has {} ranks and {} were started", plan::to_string(run.layout),
                                run.layout.world(), ranks),
                    "start as many ranks as the plan has");
  }
  return run;
}

comm::OpOptions disk_options(const spec::Job& job, const char* site) {
  const double seconds = std::max(job.communication.timeout_seconds, job.checkpoint.timeout_seconds);
  return {.timeout = comm::milliseconds(static_cast<std::int64_t>(seconds * 1e3)), .site = site};
}

std::string broadcast_text(comm::Communicator& group, const std::string& text, int root,
                           const comm::OpOptions& options) {
  std::int64_t size = static_cast<std::int64_t>(text.size());
  group.broadcast({&size, 1, comm::DType::kI64}, root, options).wait();
  std::string result = group.rank() == root ? text : std::string(static_cast<std::size_t>(size), '\0');
  group.broadcast({result.data(), size, comm::DType::kU8}, root).wait();
  return result;
}

nlohmann::json engine_versions() {
  return {{"lockstep", LOCKSTEP_VERSION},
          {"torch", TORCH_VERSION},
          {"cuda", nn::compat::built_with_cuda()},
          {"threads", at::get_num_threads()}};
}

std::string RunContext::rank_name() const {
  return elastic::rank_name(rank(), [this](int) { return request.ranks.one_node ? "" : telemetry::host_name(); });
}

void Host::send(const nlohmann::json& message) const {
  if (host_ == nullptr || host_->message == nullptr) return;
  const std::string text = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  host_->message(host_->context, text.c_str());
}

std::optional<nlohmann::json> Host::next_command(int timeout_ms) const {
  const char* text = host_->next_command(host_->context, timeout_ms);
  if (text == nullptr) return std::nullopt;
  return nlohmann::json::parse(text, nullptr, false);
}

int Host::stop_answer() const {
  return host_ != nullptr && host_->stop_requested != nullptr ? host_->stop_requested(host_->context) : 0;
}

int run_rank(const elastic::RankRequest& request, const Host& host) {
  return guarded(host, request.ranks.rank, [&] {
    if (request.backend == "local") return run_threads(request, host);
    nn::compat::set_compute_threads(request.threads);
    if (host.commanded()) return run_generations(request, host);
    Joined joined = join_world(request);
    return run_joined(request, joined.world, device_of(request), host);
  });
}

}  // namespace lockstep::engine
