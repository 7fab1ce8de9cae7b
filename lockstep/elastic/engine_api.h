// The door between the torch-free executable and liblockstep_engine.so: three C functions and JSON text.
// This header is the only file of the libtorch half that the command line includes.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Raised whenever a request or message below changes meaning; the executable refuses an engine of another number.
#define LOCKSTEP_ENGINE_ABI 3

// What the engine may ask of the process that opened it. Callbacks may come from any thread.
struct LockstepEngineHost {
  void* context;
  // One JSON object per call, valid during the call. By its "type":
  //
  //   progress     {rank, step, steps, loss, rate, unit, efficiency, gradient_norm, memory_bytes, learning_rate,
  //                 eta_seconds}
  //   evaluation   {step, loss, accuracy?}
  //   checkpoint   {step, path, bytes, seconds, stall_seconds}
  //   alert        {line}: an event of telemetry/schema.h as a JSON line (telemetry/alert.h)
  //   note         {text}
  //   error        {rank, kind: user|peer_lost|timeout|aborted|internal, exit_code, message, suspect_rank}
  //   result       the verb's answer (train: rank 0's summary; calibrate: the profile; checkpoint: what it found)
  void (*message)(void* context, const char* json);
  // Polled once per step: non-zero asks all ranks to stop at the same step, save and return 130; 2: 75, to be requeued.
  int (*stop_requested)(void* context);
  // The next command of an agent as JSON (elastic/control.h), valid until the next call; NULL when none came in time.
  // One thread calls it. A null pointer: nobody commands this process.
  const char* (*next_command)(void* context, int timeout_ms);
};

int lockstep_engine_abi(void);

// {"torch": "1.13", "cuda": false, "blas": "...", "threads": N} as JSON; the pointer stays valid.
const char* lockstep_engine_versions(void);

// Runs a verb ("train", "calibrate", "calibrate_shapes") described by a JSON request (elastic/rank_request.h) in the
// calling process, or "checkpoint" ({action, path, output, layout, whole}), and returns the exit code. Never throws;
// what went wrong was sent as an "error" message.
int lockstep_engine_call(const char* verb, const char* request_json, const struct LockstepEngineHost* host);

#ifdef __cplusplus
}
#endif
