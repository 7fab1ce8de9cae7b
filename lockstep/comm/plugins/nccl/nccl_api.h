// The seam over NCCL: every call that the backend makes, as a table of function pointers, so that a test can stand in
// for the library where there is no second GPU.
#pragma once

#include <nccl.h>

namespace lockstep::comm {

struct NcclApi {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclGetErrorString) error_string;

  // The library that the plugin is linked with.
  static NcclApi linked() {
    return {&ncclGetUniqueId,
            &ncclCommInitRankConfig,
            &ncclCommGetAsyncError,
            &ncclCommAbort,
            &ncclCommFinalize,
            &ncclCommDestroy,
            &ncclAllReduce,
            &ncclReduceScatter,
            &ncclAllGather,
            &ncclBroadcast,
            &ncclSend,
            &ncclRecv,
            &ncclGroupStart,
            &ncclGroupEnd,
            &ncclGetErrorString};
  }
};

}  // namespace lockstep::comm
