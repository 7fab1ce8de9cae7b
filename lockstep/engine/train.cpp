#include "lockstep/engine/train.h"

#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/local.h"
#include "lockstep/engine/training_step.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::engine {
namespace {

void run_rank(const spec::Job& job, const plan::Run& run, const TrainOptions& options, comm::Communicator world,
              TrainResult& result, std::mutex& mutex) {
  nn::compat::set_compute_threads(options.threads);
  TrainingState state = build_training_state(job, run, world, {.make_model = options.make_model});
  while (state.step < state.total_steps) {
    const double loss = run_step(state, {}).loss;
    if (world.rank() == 0) result.losses.push_back(loss);
  }
  if (options.evaluate) {
    if (!state.datasets.evaluation) {
      throw bad_input("the job keeps no data for evaluation", "set data.evaluation_path, or data.holdout above 0");
    }
    const EvaluationResult evaluation = evaluate(state, job, run.layout, world);
    if (world.rank() == 0) result.evaluation = evaluation;
  }
  checkpoint::CheckpointPart part;
  state.executor->save(part);
  {
    const std::lock_guard lock(mutex);
    for (const checkpoint::TensorPiece& piece : part.pieces) {
      if (piece.kind == checkpoint::TensorKind::kModel) place(piece, result.weights);
      if (piece.kind == checkpoint::TensorKind::kOptimizer) place(piece, result.optimizer);
    }
  }
  world.barrier().wait();  // nobody goes while a peer still needs it
}

}  // namespace

TrainResult train(const spec::Job& given, const plan::Layout& layout, const TrainOptions& options) {
  spec::Job job = given;
  job.cluster = {};  // the ranks are here, however many the job's cluster has
  plan::Run run = plan::run_of(job, layout);
  run.layout.precision = job.precision;
  const int ranks = static_cast<int>(layout.world());
  comm::LocalWorld world(ranks, comm::milliseconds(static_cast<int>(job.communication.timeout_seconds * 1e3)));
  TrainResult result;
  std::mutex mutex;
  std::exception_ptr error;
  bool is_fault = false;  // a peer's end, not the cause
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, communicator = world.communicator(rank)]() mutable {
      const auto keep = [&](bool fault) {
        const std::lock_guard lock(mutex);
        if (error && !(is_fault && !fault)) return;
        error = std::current_exception();
        is_fault = fault;
      };
      try {
        run_rank(job, run, options, std::move(communicator), result, mutex);
      } catch (const Fault&) {
        keep(true);
      } catch (...) {
        keep(false);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  return result;
}

}  // namespace lockstep::engine
