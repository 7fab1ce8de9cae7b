"""lockstep.comm without torch: ranks are processes, arrays are Python's own and NumPy's where it is there."""
import importlib.util
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from ranks import clean_environment, finish_ranks, run_ranks, start_ranks  # noqa: E402

BEGIN = "import array, lockstep.comm as comm; comm.init(); rank, size = comm.rank(), comm.size()\n"
numpy = unittest.skipUnless(importlib.util.find_spec("numpy"), "NumPy is not installed")


class Ranks(unittest.TestCase):
    def succeed(self, text, world=2, **variables):
        ends = run_ranks(BEGIN + textwrap.dedent(text), world, **variables)
        for rank, (code, out, err) in enumerate(ends):
            self.assertEqual(code, 0, f"rank {rank}\n{out}\n{err}")
        return [out for _, out, _ in ends]


class Collectives(Ranks):
    def test_reductions_are_those_of_all_ranks(self):
        self.succeed("""
            mine = array.array("d", [rank, 10.0 * rank])
            assert list(comm.all_reduce(mine)) == [1.0, 10.0], "the average"
            assert list(mine) == [rank, 10.0 * rank], "a new array"
            assert list(comm.all_reduce(mine, op=comm.Sum)) == [3.0, 30.0]
            assert list(comm.all_reduce(mine, op=comm.Max)) == [2.0, 20.0]
            assert list(comm.all_reduce(mine, op=comm.Min)) == [0.0, 0.0]
            assert comm.all_reduce_(mine, op=comm.Sum) is mine and list(mine) == [3.0, 30.0], "in place"
            assert comm.all_reduce(float(rank)) == 1.0 and comm.all_reduce(rank, op=comm.Sum) == 3
            assert list(comm.all_reduce(array.array("b", [100]), op=comm.Min)) == [100]
            scaled = comm.all_reduce(array.array("d", [1.0]), op=comm.Sum, prescale_factor=2.0, postscale_factor=0.5)
            assert list(scaled) == [3.0]
        """, world=3)

    def test_arrays_go_round(self):
        self.succeed("""
            assert list(comm.all_gather(array.array("i", [rank] * (rank + 1)))) == [0, 1, 1], "ranks may have unlike counts"
            assert list(comm.broadcast(array.array("q", [rank, 7]), 1)) == [1, 7]
            held = array.array("d", [float(rank)])
            assert comm.broadcast_(held, 0) is held and list(held) == [0.0]
            assert list(comm.all_to_all(array.array("q", [10 * rank, 10 * rank + 1]))) == [rank, 10 + rank]
            uneven = comm.all_to_all(array.array("q", [rank] * 3), splits=[1, 2])
            assert list(uneven) == [0, 1] if rank == 0 else [0, 0, 1, 1]
            assert list(comm.reduce_scatter(array.array("d", [1.0, 2.0]), op=comm.Sum)) == [2.0 * (rank + 1)]
            assert comm.broadcast_object({"from": rank}, 1) == {"from": 1}
            assert comm.allgather_object("x" * rank) == ["", "x"]
            comm.barrier()
        """)

    def test_operations_that_were_begun_are_done_in_order_and_keep_their_memory(self):
        self.succeed("""
            handles = [comm.all_reduce_async(array.array("d", [float(index)] * 10_000), op=comm.Sum) for index in range(20)]
            dropped = comm.all_reduce_async(array.array("d", [1.0] * 100_000)); del dropped
            comm.barrier()
            assert all(comm.poll(handle) for handle in handles)
            assert [comm.synchronize(handle)[0] for handle in handles] == [2.0 * index for index in range(20)]
            assert comm.synchronize(handles[3])[0] == 6.0, "again"
        """)

    def test_groups_are_ranks_of_their_own(self):
        self.succeed("""
            group = comm.new_group([2, 0], "ends") if rank != 1 else None
            if group:
                assert list(comm.all_reduce(array.array("d", [float(rank)]), op=comm.Sum, group=group)) == [2.0]
                assert group.size == 2 and group.rank == (1 if rank == 0 else 0)
            assert comm.all_reduce(1.0, op=comm.Sum) == 3.0
        """, world=3)

    def test_a_world_can_be_left_and_joined_again(self):
        self.succeed("""
            comm.init()  # does nothing
            assert comm.is_initialized()
            for turn in range(3):
                assert comm.all_reduce(float(rank + turn), op=comm.Sum) == 1.0 + 2 * turn
                comm.shutdown()
                assert not comm.is_initialized()
                comm.init()
        """)

    def test_every_backend_that_is_there_gives_the_same(self):
        from lockstep import _core
        backends = [name for name in ("tcp", "gloo") if _core.has_plugin(name)]
        self.assertIn("tcp", backends, "it is always there")
        for backend in backends:
            with self.subTest(backend):
                out = self.succeed("""
                    print(comm.backend(), list(comm.all_reduce(array.array("f", [0.1 * (rank + 1)] * 3), op=comm.Sum)))
                """, LOCKSTEP_BACKEND=backend)
                self.assertEqual(out, [f"{backend} [0.30000001192092896, 0.30000001192092896, 0.30000001192092896]\n"] * 2)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_mpirun_makes_a_world_over_mpi(self):
        # One write: lines of two ranks share a pipe.
        text = BEGIN + ("import sys; total = comm.all_reduce(float(rank)); "
                        "sys.stdout.write(f'{comm.backend()} {rank} {size} {comm.local_rank()} {comm.local_size()} {total}\\n')")
        done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, "-c", text],
                              capture_output=True, text=True, timeout=300, env=clean_environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["mpi 0 2 0 2 0.5", "mpi 1 2 1 2 0.5"])

    @numpy
    def test_numpy_arrays_of_any_layout_and_dtype(self):
        self.succeed("""
            import numpy as np
            wide = np.arange(12.0).reshape(3, 4)
            for view in (wide.copy(), np.asfortranarray(wide), wide[:, ::2], wide.astype(">f8"), wide[1:1]):
                view = view + rank if view.dtype.isnative else (view + rank).astype(">f8")
                expected = view - rank + 0.5
                assert np.array_equal(comm.all_reduce(view), expected)
                comm.all_reduce_(view)
                assert np.array_equal(view, expected), "in place, whatever its strides"
            for dtype in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"):
                total = comm.all_reduce(np.full((2, 2), rank + 1, dtype), op=comm.Sum)
                assert total.dtype == dtype and (total == 3).all(), dtype
            assert comm.all_reduce(np.float32(rank)).shape == ()
            for dtype in ("bool", "complex128", "uint64", "S3"):
                kept = comm.broadcast(np.ones((2, 2)).astype(dtype) if rank == 0 else np.zeros((2, 2)).astype(dtype), 0)
                assert (kept == np.ones((2, 2)).astype(dtype)).all(), "what is only moved may be anything"
            rows = comm.all_gather(np.full((rank, 3), rank, "int16"))
            assert rows.shape == (1, 3) and rows.dtype == "int16"
            assert (comm.all_reduce(np.ones(5, "float32"), compression=comm.Compression.fp16) == 1).all()
            comm.broadcast_parameters({"a": wide, "b": np.ones(2) * rank})
        """)


class Wrong(Ranks):
    def test_what_cannot_be_done_is_said_and_harms_nothing(self):
        self.succeed("""
            import lockstep
            held = array.array("d", [1.0])
            for wrong, piece in ((lambda: comm.all_reduce("text"), "str is no NumPy array"),
                                 (lambda: comm.all_reduce(array.array("q", [1])), "the average of int64 is no int64"),
                                 (lambda: comm.all_reduce(held, op=comm.Adasum), "ADASUM is not offered"),
                                 (lambda: comm.all_reduce(held, average=True, op=comm.Sum), "not both"),
                                 (lambda: comm.broadcast(held, 2), "there is no rank 2 among 2"),
                                 (lambda: comm.all_reduce(held, timeout=0), "above 0"),
                                 (lambda: comm.reduce_scatter(array.array("d", [1.0] * 3)), "does not divide over 2"),
                                 (lambda: comm.all_to_all(held, splits=[1, 1]), "add up"),
                                 (lambda: comm.init("infiniband") if comm.shutdown() is None else 0, "there is no backend"),
                                 (lambda: comm.rank(), "call init() first")):
                try:
                    wrong()
                    raise AssertionError(piece)
                except lockstep.SpecError as error:
                    assert piece in str(error) and "\\n" not in str(error), error
            comm.init()
            assert comm.all_reduce(1.0, op=comm.Sum) == 2.0
        """)

    def test_names_of_horovod_that_are_missing_say_what_to_use(self):
        self.succeed("""
            try:
                comm.elastic
                raise SystemExit("found")
            except AttributeError as error:
                assert "lockstep launch --max-restarts" in str(error), error
            assert comm.allreduce is comm.all_reduce and comm.HorovodInternalError is comm.Fault
        """, world=1)

    def test_rows_that_do_not_fit_are_refused_on_every_rank(self):
        ends = run_ranks(BEGIN + "comm.all_gather(array.array('d' if rank else 'q', [1]))")
        for code, _, err in ends:
            self.assertEqual(code, 1)
            self.assertIn("another rank has others", err)

    def test_a_forked_child_is_told_whose_the_communicator_is(self):
        self.succeed("""
            import os
            child = os.fork()
            if child == 0:
                try:
                    comm.all_reduce(1.0)
                except ValueError as error:
                    os._exit(0 if "forked" in str(error) and not comm.is_initialized() else 1)
                os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert comm.all_reduce(1.0, op=comm.Sum) == 2.0
        """)


LOST = BEGIN + """
import lockstep, os, signal, sys, time
if rank == 1:
    {how}
begin = time.monotonic()
try:
    for _ in range(10_000_000):
        comm.all_reduce(1.0)
except lockstep.PeerLost as error:
    print(error.rank, error)
"""


class Faults(Ranks):
    def test_a_rank_that_is_killed_is_named(self):
        processes = start_ranks(LOST.format(how="os.kill(os.getpid(), signal.SIGKILL)"))
        (code, out, err), _ = finish_ranks(processes)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^1 all_reduce #\d+ of 8 B .*rank 1")

    def test_a_rank_that_raises_ends_the_others_without_a_wait(self):
        (code, out, err), other = run_ranks(LOST.format(how="raise RuntimeError('of rank 1')"))
        self.assertEqual((code, other[0]), (0, 1), err)
        self.assertIn("rank 1", out)
        self.assertIn("of rank 1", other[2])

    def test_a_rank_that_does_not_come_is_a_timeout_that_names_the_operation(self):
        ends = run_ranks([BEGIN + textwrap.dedent("""
            import lockstep
            try:
                comm.all_reduce(1.0, name="loss", timeout=1.0)
            except lockstep.TimeoutFault as error:
                print(error)
            try:
                comm.all_reduce(1.0)
            except lockstep.Fault as error:
                print("again", error)
        """), BEGIN + "import time; time.sleep(4)"])
        self.assertEqual([code for code, _, _ in ends], [0, 0], ends)
        self.assertRegex(ends[0][1], r"^loss: all_reduce #1 of 8 B [\s\S]*\nagain all_reduce")

    def test_a_rank_that_never_starts_is_said_by_its_number(self):
        text = "import lockstep.comm as comm; comm.init(connect_timeout=1.0)"
        processes = start_ranks([text, "pass"])
        (code, _, err), _ = finish_ranks(processes)
        self.assertEqual(code, 1)
        self.assertRegex(err.strip().splitlines()[-1], r"lockstep\.(TimeoutFault|PeerLost): .*rank 1")

    def test_ctrl_c_ends_a_wait(self):
        first, second = start_ranks([BEGIN + "print('waits', flush=True)\ncomm.all_reduce(1.0)",
                                     BEGIN + "import time; time.sleep(60)"])
        self.addCleanup(finish_ranks, [first, second])
        self.assertEqual(first.stdout.readline(), "waits\n")
        time.sleep(0.3)
        first.send_signal(signal.SIGINT)
        self.assertEqual(first.wait(30), -signal.SIGINT)
        self.assertIn("KeyboardInterrupt", first.stderr.read())
        second.kill()

    def test_a_port_that_is_taken_says_so(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = subprocess.run([sys.executable, "-c", f"import lockstep.comm as comm; comm.init(address='127.0.0.1:{port}')"],
                                  env=clean_environment(RANK="0", WORLD_SIZE="2"), capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, rf"lockstep\.EnvironmentError: .*{port}")


class Recorded(unittest.TestCase):
    def test_ranks_that_share_a_communicator_record_one_run(self):
        home = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-comm-"))
        self.addCleanup(shutil.rmtree, home, ignore_errors=True)
        ends = run_ranks(BEGIN + textwrap.dedent("""
            import lockstep
            with lockstep.record("shared") as run:
                for step in range(3):
                    with run.time("comm"):
                        loss = comm.all_reduce(float(rank))
                    run.step(loss=loss, samples=4)
            print(run.id)
        """), LOCKSTEP_HOME=str(home))
        self.assertEqual([code for code, _, _ in ends], [0, 0], ends)
        self.assertEqual(ends[0][1], ends[1][1])
        import lockstep
        (run,) = lockstep.runs(home=home)
        self.assertEqual((run.status, run.world, run.name, run.ranks("comm_seconds")), ("done", 2, "shared", [0, 1]))


if __name__ == "__main__":
    unittest.main()
