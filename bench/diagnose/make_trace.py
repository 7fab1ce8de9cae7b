#!/usr/bin/env python3
"""Writes a PyTorch profiler trace of any size: make_trace.py FILE BYTES. Steps of a data-parallel job with a starved
loader (a quarter of the step), so that a reader's answer can be checked too. Ends in .gz: packed."""
import gzip
import sys


def events(size_limit):
    """Yields lines of JSON; yields None when the size is reached at the end of a step."""
    now, number, correlation, written = 1_000_000.0, 0, 1000, 0
    while written < size_limit:
        lines = []
        begin = now
        lines.append('{"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", '
                     f'"pid": 100, "tid": 100, "ts": {now:.3f}, "dur": 20000.000, "args": {{"External id": {correlation}}}}}')
        now += 20000.0
        free = now
        for k in range(600):
            correlation += 5
            name = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)" if k % 100 == 99 else
                    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >"
                    "(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)")
            lines.append(f'{{"ph": "X", "cat": "cpu_op", "name": "aten::add_", "pid": 100, "tid": 100, "ts": {now:.3f}, "dur": 14.250, '
                         f'"args": {{"External id": {correlation}, "Record function id": 0, "Ev Idx": {k}, '
                         '"Input Dims": [[1024, 4096], [1024, 4096], []], "Input type": ["float", "float", "Scalar"]}}')
            lines.append(f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": 100, "ts": {now + 5:.3f}, '
                         f'"dur": 4.750, "args": {{"External id": {correlation}, "cbid": 211, "correlation": {correlation}}}}}')
            lines.append(f'{{"ph": "s", "id": {correlation}, "pid": 100, "tid": 100, "ts": {now + 5:.3f}, "cat": "ac2g", "name": "ac2g"}}')
            start = max(free, now + 12)
            free = start + 99.5
            lines.append(f'{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {start:.3f}, "dur": 99.500, "args": '
                         f'{{"External id": {correlation}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {correlation}, '
                         '"registers per thread": 32, "shared memory": 0, "blocks per SM": 22.2, "warps per SM": 177.7, '
                         '"grid": [2400, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 100}}')
            lines.append(f'{{"ph": "f", "id": {correlation}, "pid": 0, "tid": 7, "ts": {start:.3f}, "cat": "ac2g", "name": "ac2g", "bp": "e"}}')
            now += 15.0
        lines.append(f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 100, "tid": 100, "ts": {now:.3f}, '
                     f'"dur": {free - now:.3f}, "args": {{"correlation": {correlation + 1}}}}}')
        now = free + 5
        lines.append(f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", "pid": 100, "tid": 100, '
                     f'"ts": {begin:.3f}, "dur": {now - begin - 1:.3f}, "args": {{"External id": {number}}}}}')
        number += 1
        text = ",\n".join(lines)
        written += len(text)
        yield text


def main():
    path, size = sys.argv[1], int(float(sys.argv[2]))
    opened = gzip.open(path, "wt", compresslevel=4) if path.endswith(".gz") else open(path, "w", encoding="utf-8")
    with opened as out:
        out.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Made-up GPU", "totalGlobalMem": 85899345920}],\n'
                  '"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}, "traceEvents": [\n')
        for i, text in enumerate(events(size)):
            out.write((",\n" if i else "") + text)
        out.write('\n], "displayTimeUnit": "ms", "baseTimeNanoseconds": 0}\n')


if __name__ == "__main__":
    main()
